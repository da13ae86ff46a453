"""Each preset's resolved settings for Atari games against its paper: every number and its source.

A preset may deviate from its paper only where DEVIATIONS says so and its own comment, or its base's, names the setting.
"""

import importlib.resources
import re
from typing import Any, NamedTuple

import pytest

from accel_rl.config.presets import load_preset, preset_names, preset_settings
from accel_rl.settings.resolve import Config, resolve
from accel_rl.training.build import build_algo


class Paper(NamedTuple):
    value: Any
    source: str


def numbers(source: str, **values: Any) -> dict[str, Paper]:
    return {name: Paper(value, source) for name, value in values.items()}


# The sources. SA is Stooke & Abbeel 2018; their code gives the numbers that the paper leaves open.
SA, SA_CODE = "Stooke & Abbeel 2018", "the code of Stooke & Abbeel"
MNIH, CULE, CULE_CODE = "Mnih et al. 2016, supplement", "Dalton et al. 2020 (CuLE)", "the code of CuLE"

SA_GAMES = numbers(
    f"{SA}, section 5.1; {SA_CODE}, envs/games/atari_env.py",
    frame_shape=(104, 80),
    frame_skip=4,
    frame_stack=4,
    noop_max=30,
    repeat_action_probability=0.0,
    episodic_lives=True,
    clip_reward=True,
    fire_on_start=True,
) | numbers(f"{SA_CODE}, sampler", max_episode_steps=27_000, decorrelation_steps=2000, discount=0.99)
MNIH_GAMES = numbers(f"{MNIH}, section 2: as Mnih et al. 2015", frame_shape=(84, 84), frame_skip=4, frame_stack=4)
MNIH_GAMES |= numbers(MNIH, discount=0.99)

A2C = SA_GAMES | numbers(f"{SA}, section 5.3", envs=16, horizon=5, learning_rate=7e-4, optimizer="rmsprop")
A2C |= numbers(
    f"{SA_CODE}, algos/pg/a2c.py",
    learning_rate_schedule="constant",
    optimizer_options={"decay": 0.9, "epsilon": 1e-6},
    gae_lambda=1.0,
    value_weight=0.25,
    entropy_weight=0.01,
    entropy_schedule="constant",
    clip_grad_norm=0.5,
    normalize_returns=False,
    learning_rate_scaling="none",
)
A3C = A2C | numbers(
    f"{SA}, sections 4.3 and 5.3",
    update="central_store",
    chunks=3,
    locks="chunks",
    rule_state="shared",
    pull_horizon=None,
)


def a2c_of(num_envs: int) -> dict[str, Paper]:
    return A2C | numbers(f"{SA}, section 5.3", envs=num_envs, learning_rate_scaling="sqrt")


PPO = SA_GAMES | numbers(f"{SA}, section 5.3", envs=8, horizon=256, epochs=4, minibatches=4)
PPO |= numbers(
    f"{SA}, section 5.3 (that there is a schedule); {SA_CODE}, algos/pg/ppo.py",
    learning_rate=1e-3,
    learning_rate_schedule="linear",
    optimizer="adam",
    optimizer_options={"epsilon": 1e-5},
    clip=0.2,
    clip_schedule="linear",
    clip_grad_norm=None,
    gae_lambda=0.95,
    value_weight=1.0,
    value_clip=None,
    entropy_weight=0.01,
    entropy_schedule="constant",
    normalize_advantage="none",
    target_kl=None,
)
APPO = PPO | numbers(
    f"{SA}, section 5.3",
    update="central_store",
    learning_rate=1e-3 / 4,
    learning_rate_schedule="constant",
    clip_schedule="constant",
    clip_grad_norm=0.5,
    pull_horizon=64,
    updates_per_exchange=1,
)


def ppo_of(num_envs: int) -> dict[str, Paper]:
    return PPO | numbers(f"{SA}, section 5.3: always 2,048 samples", envs=num_envs, horizon=2048 // num_envs)


DQN = SA_GAMES | numbers(f"{SA}, sections 5 and 5.4.1", batch_size=32, learning_rate=2.5e-4, training_intensity=8.0)
DQN |= numbers(f"{SA}, section 5", eval_interval_steps=1_000_000, eval_steps=125_000)
DQN |= numbers(f"{SA_CODE}, scripts/example", envs=32, horizon=4, network="nature")
DQN |= numbers(
    f"{SA_CODE}, algos/dqn/dqn.py",
    learning_rate_schedule="constant",
    optimizer="rmsprop",
    optimizer_options={"decay": 0.95, "epsilon": 1e-6},
    clip_grad_norm=None,
    replay_size=1_000_000,
    warmup_steps=50_000,
    target_interval_steps=10_000,
    epsilon_final=(0.1,),
    epsilon_steps=1_000_000,
    epsilon_eval=0.05,
    n_step=1,
    double=False,
    dueling=False,
    prioritized=False,
)
CATEGORICAL = DQN | numbers(
    f"{SA}, section 5.4.1; {SA_CODE}, algos/dqn/cat_dqn.py",
    optimizer="adam",
    optimizer_options={"epsilon": 0.01 / 32},
    epsilon_final=(0.01,),
    epsilon_eval=0.001,
    v_min=-10.0,
    v_max=10.0,
    atoms=51,
    priority_alpha=0.6,
    priority_beta=0.4,
    priority_beta_steps=50_000_000,
    new_priority=1.0,
)
RAINBOW = CATEGORICAL | numbers(
    f"{SA}, section 5.4.1; {SA_CODE}, algos/dqn/eps_rainbow.py",
    learning_rate=6.25e-5,
    optimizer_options={"epsilon": 0.005 / 32},
    clip_grad_norm=10.0,
    double=True,
    dueling=True,
    prioritized=True,
    n_step=3,
    warmup_steps=20_000,
    target_interval_steps=8_000,
    epsilon_steps=62_500,
    priority_alpha=0.5,
)


def larger(base: dict[str, Paper], batch_size: int, **values: Any) -> dict[str, Paper]:
    return base | numbers(f"{SA}, section 5.4.1", batch_size=batch_size, **values)


ONLINE_Q = MNIH_GAMES | numbers(
    f"{MNIH}, section 2",
    envs=16,
    horizon=5,
    network="a3c",
    learning_rate=None,  # drawn from 1e-4 to 1e-2
    learning_rate_schedule="linear",
    optimizer="rmsprop",
    target_interval_steps=10_000,  # 40,000 frames
    epsilon_final=(0.1, 0.01, 0.5),
    epsilon_odds=(0.4, 0.3, 0.3),
    epsilon_steps=1_000_000,  # 4 million frames
    clip_grad_norm=None,
)
CPU16 = numbers(
    f"{MNIH}, sections 1 and 2",
    devices=",".join(["cpu"] * 16),
    envs=16,
    horizon=5,
    network="a3c",
    update="central_store",
    locks="none",
    rule_state="shared",
)
A3C_CPU16 = (
    MNIH_GAMES
    | CPU16
    | numbers(
        f"{MNIH}, sections 1 and 2 (weights as in its equations)",
        learning_rate=None,  # drawn from 1e-4 to 1e-2
        learning_rate_schedule="linear",
        optimizer="rmsprop",
        value_weight=1.0,
        entropy_weight=0.01,
        clip_grad_norm=None,
        gae_lambda=1.0,
    )
)
UNREAL, UNREAL_CODE = "Jaderberg et al. 2017 (UNREAL), appendix", "miyosuda/unreal"
GUNREAL = "Shirahata et al. 2018 (GUNREAL), sections 2 and 4"
UNREAL_RUN = (
    numbers(UNREAL, core="lstm", core_size=256, previous_inputs=True, network="a3c", horizon=20)
    | numbers(f"{UNREAL}; {GUNREAL}", frame_shape=(84, 84), color=True, frame_stack=1, frame_skip=4, discount=0.99)
    | numbers(f"{GUNREAL}: Algorithm 2", auxiliary_start="all_when_full", update="central_store")
    | numbers(f"{GUNREAL}: Algorithm 2", auxiliary=("pixel_control", "value_replay", "reward_prediction"))
    | numbers(UNREAL, auxiliary_replay_steps=2000, pixel_control_discount=0.9, pixel_control_cell=4)
    | numbers(UNREAL, value_replay_weight=1.0, reward_prediction_weight=1.0, reward_prediction_units=128)
    | numbers(
        f"{UNREAL_CODE}, options.py, train/rmsprop_applier.py (its losses are sums over 20 steps)",
        devices=",".join(["cpu"] * 8),
        envs=8,
        locks="none",
        rule_state="shared",
        episodic_lives=False,
        learning_rate=7.07e-4,
        learning_rate_schedule="linear",
        optimizer="rmsprop",
        optimizer_options={"decay": 0.99, "epsilon": 0.1, "initial_square": 1.0},
        clip_grad_norm=40.0,
        value_weight=0.25,
        entropy_weight=0.001,
        pixel_control_weight=0.05,
        gae_lambda=1.0,
        clip_reward=False,
    )
)

GA3C, GA3C_CODE = "Babaeizadeh et al. 2017 (GA3C)", "the code of GA3C"
GA3C_RUN = (
    numbers(f"{GA3C}, section 3.2", horizon=5, optimizer="rmsprop", network="ga3c")
    | numbers(f"{GA3C}, section 4.4, equation 5", clip_grad_norm=None)
    | numbers(f"{GA3C}, section 5.3 (20 to 40); {GA3C_CODE}: merges while there are at most 40", min_training_batch=41)
    | numbers(f"{GA3C}, Figure 6", learning_rate=3e-4)
    | numbers(
        f"{GA3C_CODE}, Config.py",
        envs=32,
        predictors=2,
        trainers=2,
        prediction_batch=128,
        training_queue=100,
        learning_rate_schedule="constant",
        optimizer_options={"decay": 0.99, "epsilon": 0.1, "initial_square": 1.0},
        entropy_weight=0.01,
        entropy_schedule="constant",
        log_epsilon=1e-6,
        discount=0.99,
        clip_reward=True,
        dynamic_adjustment=True,
    )
    | numbers(f"{GA3C_CODE}, NetworkVP.py", value_weight=0.5, initialization="fan_in", gae_lambda=1.0)
    | numbers(
        f"{GA3C_CODE}, Environment.py",
        frame_shape=(84, 84),
        frame_skip=4,
        frame_stack=4,
        repeat_action_probability=0.25,
        episodic_lives=False,
        fire_on_start=False,
        noop_max=0,
        decorrelation_steps=0,
    )
)

GUNREAL_RUN = (
    GA3C_RUN  # "an extension to GA3C"
    | numbers(f"{GUNREAL}: section 4, Table 2", learning_rate=3e-4, entropy_weight=0.01, discount=0.99, horizon=20)
    | numbers(f"{GUNREAL}: Table 2", auxiliary_replay_steps=2000, pixel_control_discount=0.9)
    | numbers(f"{GUNREAL}: Table 2, Algorithm 9 (at least)", min_training_batch=40)
    | numbers(f"{GUNREAL}: section 4", envs=15, predictors=5, trainers=5)
    | numbers(f"{GUNREAL}: section 3.2", dynamic_adjustment=True, adjustment_objective="predictions")
    | numbers(f"{GUNREAL}: Algorithm 6, line 22", sampler="queued", auxiliary_start="when_full")
    | numbers(f"{GUNREAL}: section 3", auxiliary=("pixel_control", "value_replay", "reward_prediction"), core="none")
    | numbers(f"{GUNREAL}: section 3.1", frame_shape=(84, 84), frame_stack=4, color=False, pixel_control_cell=4)
    | numbers(
        f"{GUNREAL}: Deterministic-v3, and gym's registration of it",
        frame_skip=4,
        repeat_action_probability=0.0,
        max_episode_steps=100_000,
    )
    | numbers(UNREAL, network="a3c", value_replay_weight=1.0, reward_prediction_weight=1.0, reward_prediction_units=128)
    | numbers(f"{UNREAL_CODE}, options.py", pixel_control_weight=0.05)
)


def vtrace_of(num_envs: int, batches: int, batch_steps: int, steps_per_update: int) -> dict[str, Paper]:
    table = {"batches": batches, "batch_steps": batch_steps, "steps_per_update": steps_per_update}
    return VTRACE | numbers(f"{CULE}, Table 3", envs=num_envs, **table)


VTRACE = numbers(f"{CULE}, section 3 and Table 3", rho_bar=1.0, c_bar=1.0, noop_max=30)
VTRACE |= numbers(
    f"{CULE_CODE}, examples/vtrace, examples/utils/launcher.py, examples/a2c/model.py",
    frame_shape=(84, 84),
    frame_skip=4,
    frame_stack=4,
    repeat_action_probability=0.0,
    episodic_lives=False,
    clip_reward=True,
    max_episode_steps=18_000,
    discount=0.99,
    learning_rate=6.5e-4,
    learning_rate_schedule="constant",
    optimizer="rmsprop",
    optimizer_options={"decay": 0.99, "epsilon": 0.0, "epsilon_outside": 1e-5},
    clip_grad_norm=0.5,
    value_weight=0.5,
    entropy_weight=0.01,
    network="cule",
    decorrelation_steps=100,  # 400 frames
    eval_greedy=False,
)

QR_DQN = DQN | numbers(
    "Dabney et al. 2018 (QR-DQN)",
    learning_rate=5e-5,
    optimizer="adam",
    optimizer_options={"epsilon": 0.01 / 32},
    quantiles=200,
    epsilon_final=(0.01,),
    frame_shape=(84, 84),
    epsilon_steps=250_000,  # a million frames, as Mnih et al. 2015
)
QR_DQN.pop("epsilon_eval")

PQN = numbers(
    "Gallici et al. 2025 (PQN), its table for Atari games; its code, purejaxql/config/alg/pqn_atari.yaml",
    envs=128,
    horizon=32,
    epochs=2,
    minibatches=32,
    learning_rate=2.5e-4,
    learning_rate_schedule="constant",
    optimizer="radam",
    optimizer_options={},
    clip_grad_norm=10.0,
    discount=0.99,
    return_lambda=0.65,
    epsilon_final=(0.001,),
    epsilon_steps=5_000_000,  # a tenth of 50 million
    epsilon_eval=0.0,
    normalize_returns=False,
    network="nature",
    layer_norm=True,
    frame_shape=(84, 84),
    frame_skip=4,
    frame_stack=4,
    noop_max=30,
    repeat_action_probability=0.0,
    episodic_lives=True,
    clip_reward=True,
    decorrelation_steps=0,
)

PAPERS = {
    "a2c": A2C,
    **{f"a2c_{n}": a2c_of(n) for n in (32, 64, 128, 256, 512)},
    "a2c_lstm": A2C | numbers(f"{MNIH}, section 2", core="lstm", core_size=256),
    "a2c_continuous": A2C,  # the same on pixels; vectors have their own test below
    "a3c": A3C,
    "a3c_cpu16": A3C_CPU16,
    "ppo": PPO,
    **{f"ppo_{n}x{2048 // n}": ppo_of(n) for n in (16, 32, 64, 128, 256, 512)},
    "appo": APPO,
    "dqn": DQN,
    "dqn_512": larger(DQN, 512, learning_rate=7.5e-4),
    "dqn_1024": larger(DQN, 1024, learning_rate=15e-4),
    "async_dqn": larger(DQN, 512, learning_rate=7.5e-4, update="central_store", chunks=3, locks="chunks"),
    "categorical_dqn": CATEGORICAL,
    "categorical_dqn_256": larger(CATEGORICAL, 256, learning_rate=4.2e-4, optimizer_options={"epsilon": 0.01 / 256}),
    "categorical_dqn_512": larger(CATEGORICAL, 512, learning_rate=4.2e-4, optimizer_options={"epsilon": 0.01 / 512}),
    "categorical_dqn_2048": larger(
        CATEGORICAL, 2048, learning_rate=4.2e-4, optimizer_options={"epsilon": 0.01 / 2048}, envs=64
    ),
    "eps_rainbow": RAINBOW,
    "eps_rainbow_512": larger(RAINBOW, 512, optimizer_options={"epsilon": 0.005 / 512}),
    "qr_dqn": QR_DQN,
    "pqn": PQN,
    **dict.fromkeys(("n_step_q", "one_step_q", "one_step_sarsa"), ONLINE_Q),
    **{f"async_{name}": ONLINE_Q | CPU16 for name in ("n_step_q", "one_step_q", "one_step_sarsa")},
    "vtrace": vtrace_of(120, 20, 20, 1),
    "vtrace_1_5_5": vtrace_of(120, 1, 5, 5),
    "vtrace_5_5_1": vtrace_of(120, 5, 5, 1),
    "vtrace_1200": vtrace_of(1200, 20, 20, 1),
    "vtrace_1200_1_5_5": vtrace_of(1200, 1, 5, 5),
    "vtrace_1200_5_5_1": vtrace_of(1200, 5, 5, 1),
    "unreal": UNREAL_RUN,
    "ga3c": GA3C_RUN,
    "gunreal": GUNREAL_RUN,
}
NOT_IN_PAPERS = {"ppo_lstm", "ppo_small", "vtrace_lstm", "pqn_16x32", "qr_dqn_small"}

# Numbers that differ from the paper's, set by the preset or by its base.
ONLINE_Q_DEVIATIONS = {"learning_rate": 7e-4, "frame_shape": (104, 80)}
DEVIATIONS: dict[str, dict[str, Any]] = {
    "a2c": {"optimizer_options": {"decay": 0.99, "epsilon": 1e-10}},
    "a2c_lstm": {"horizon": 20},
    "a3c_cpu16": {
        "learning_rate": 7e-4,
        "learning_rate_schedule": "constant",
        "value_weight": 0.25,
        "clip_grad_norm": 0.5,
    },
    "qr_dqn": {"frame_shape": (104, 80), "epsilon_steps": 1_000_000},
    "pqn": {"epsilon_steps": 1_000_000, "decorrelation_steps": 2000},
    **dict.fromkeys(("n_step_q", "one_step_q", "one_step_sarsa"), ONLINE_Q_DEVIATIONS),
    **{f"async_{name}": {"learning_rate": 7e-4} for name in ("n_step_q", "one_step_q", "one_step_sarsa")},
    "unreal": {
        "optimizer_options": {"decay": 0.99, "epsilon": 0.1 / 20**2, "initial_square": 1 / 20**2},
        "clip_grad_norm": 40 / 20,
        "clip_reward": True,
    },
    "ga3c": {"dynamic_adjustment": False, "training_queue": 3},
    "gunreal": {"training_queue": 3, "max_episode_steps": 27_000},
    "vtrace": {"frame_shape": (104, 80), "episodic_lives": True, "max_episode_steps": 27_000},
}


def lineage(preset: str) -> list[str]:
    base = load_preset(preset).get("base")
    return [base, preset] if base else [preset]


def resolved(preset: str) -> Config:
    return resolve({"algo": preset, "env": "pong"})


def comments(preset: str) -> str:
    """Returns the comments in a preset's file or, for a variant in its base's file, in the variant's part."""
    folder = importlib.resources.files("accel_rl") / "presets"
    if (file := folder / f"{preset}.yaml").is_file():
        text = file.read_text()
    else:
        base, _ = lineage(preset)
        text = (folder / f"{base}.yaml").read_text().partition(f"\n  {preset}:\n")[2]
        text = re.split(r"^  \w", text, flags=re.MULTILINE)[0]
    return "\n".join(line for line in text.splitlines() if line.lstrip().startswith("#"))


def test_every_preset_is_compared() -> None:
    """Every preset is compared with its paper, or its comment says that no paper's table has it."""
    assert PAPERS.keys() | NOT_IN_PAPERS == set(preset_names())
    assert all("Not from a paper" in comments(preset) for preset in NOT_IN_PAPERS)


@pytest.mark.parametrize("preset", PAPERS)
def test_a_preset_has_its_papers_numbers(preset: str) -> None:
    """A preset's settings and environment have its paper's numbers, except for the listed deviations."""
    config = resolved(preset)
    settings = config.as_dict()
    expected = {name: paper.value for name, paper in PAPERS[preset].items()}
    own = preset_settings([load_preset(preset)], "pixels")
    for name in lineage(preset):  # a base's deviations hold if its paper has the same number and the variant sets none
        for setting, value in DEVIATIONS.get(name, {}).items():
            if name != preset and setting in own:
                continue
            if setting not in PAPERS[preset] or PAPERS[preset][setting].value == PAPERS[name][setting].value:
                expected[setting] = value
    if "devices" in expected and "color" not in expected:
        expected["frame_shape"] = (84, 84)  # as in the paper, unlike the base
    wrong = {
        name: (value, expected[name], PAPERS[preset][name].source)
        for name, value in ((name, _as_tuple(settings[name])) for name in expected)
        if value != (pytest.approx(expected[name]) if isinstance(expected[name], float | dict) else expected[name])
    }
    assert not wrong
    options = config.env.options
    assert all(options[name] == _as_tuple(settings[name]) for name in options)
    num_channels = 3 if options["color"] else options["frame_stack"]
    assert config.spec.observation_shape == (num_channels, *options["frame_shape"])


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("preset", DEVIATIONS)
def test_a_deviation_stands_in_the_presets_comment(preset: str) -> None:
    """The preset's comment names each setting that deviates from its paper."""
    for setting, value in DEVIATIONS[preset].items():
        assert PAPERS[preset][setting].value != value, f"{setting} is no deviation"
        assert setting in comments(preset), setting


# Numbers of parameters with 6 actions, by arithmetic from the papers' layers.
A3C_NET, DQN_NET = 899_127, 3_620_518  # on 4x104x80
NUM_PARAMETERS = {
    "a2c": A3C_NET,
    "ppo": A3C_NET,
    "dqn": DQN_NET,
    "categorical_dqn": 3_774_418,
    "eps_rainbow": 7_340_037,
    "qr_dqn": 3_620_518 + 513 * 6 * 199,
    "pqn": 1_687_206 + 2 * (32 + 64 + 64 + 512),  # on 4x84x84, with a scale and an offset per normalized feature
    "a3c_cpu16": 677_943,  # on 4x84x84
    "async_n_step_q": 677_686,  # the same without a value head
    "unreal": 2_874_977,  # on 3x84x84, with the heads of its tasks
    "ga3c": 1_005_623,  # padded, on 4x84x84
    "gunreal": 2_343_521,  # on 4x84x84, with the heads of its tasks
}


@pytest.mark.parametrize("preset", NUM_PARAMETERS)
def test_a_preset_has_its_papers_network(preset: str) -> None:
    """A preset's network has as many parameters as the layers of its paper."""
    config = resolve({"algo": preset, "env": "pong", "device": "cpu"})
    policy = build_algo(config).policy
    assert sum(parameter.numel() for parameter in policy.parameters()) == NUM_PARAMETERS[preset]


@pytest.mark.parametrize("preset", ["categorical_dqn", "eps_rainbow"])  # one of each kind of head
def test_the_last_layer_of_a_q_network_begins_with_the_authors_norm(preset: str) -> None:
    """A Q-network's last layer starts with rows of norm 0.01 and no bias, as in policies/dqn/networks/dqn_cnn.py of
    Stooke & Abbeel."""
    head = build_algo(resolve({"algo": preset, "env": "pong", "device": "cpu"})).policy.head
    layers = [head.value[-1], head.advantage[-1]] if hasattr(head, "advantage") else [head.output]
    for layer in layers:
        norms = layer.weight.detach().norm(dim=1)
        assert norms.tolist() == pytest.approx([0.01] * len(norms), rel=1e-5) and not layer.bias.any()


def test_continuous_control_has_the_a3c_papers_numbers() -> None:
    """a2c_continuous has the A3C paper's numbers (supplement, 3); its comment names those that deviate."""
    config = resolve({"algo": "a2c_continuous", "env": "Pendulum-v1", "device": "cpu"})
    expected = {"core": "lstm", "core_size": 128, "gaussian": "spherical", "entropy_weight": 1e-4, "gae_lambda": 1.0}
    expected |= {"learning_rate_schedule": "linear", "separate_value": True, "network": "a3c_mlp"}
    settings = config.as_dict()
    assert {name: settings[name] for name in expected} == expected
    deviations = {"discount": 0.95, "value_weight": 0.25, "learning_rate": 2e-3, "clip_grad_norm": 0.5, "horizon": 25}
    deviations |= {"normalize_observations": True, "normalize_returns": True}
    assert {name: settings[name] for name in deviations} == deviations
    assert all(name in comments("a2c_continuous") for name in deviations)
