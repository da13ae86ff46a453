"""Hypothesis strategies for the settings of `accel-rl train`. Most fit together, some are wrong on purpose.

Every field of the settings' classes is drawn by its type and its rule. `sizes` and `of_kind` draw settings that must
fit others, or that would take long.
"""

import datetime
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import Field, fields
from typing import Any

from hypothesis import strategies as st

import fuzz_env
from accel_rl.algos.q_base import QAlgo
from accel_rl.config.atari_options import AtariOptions
from accel_rl.config.learners import STORE_ONLY, LearnerSettings
from accel_rl.config.presets import preset_names
from accel_rl.config.schedules import points
from accel_rl.samplers.queued.kind import QueueSettings
from accel_rl.settings.names import RUN_GROUPS
from accel_rl.settings.resolve import find_algo

Values = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

ENV = "fuzz_env:Chance"
SCHEDULES = ["constant", "linear", "linear:0.1", "0:1 20:0.5 50:0.1"]
OPTIMIZERS = [
    ("rmsprop", {"decay": 0.9, "momentum": 0.5}),
    ("adam", {"beta1": 0.8}),
    ("radam", {}),
    ("momentum_sgd", {}),
    ("sgd", {}),
    ("torch.AdamW", {"weight_decay": 0.01}),
    ("torch.SGD", {"momentum": 0.9, "nesterov": True}),
    ("torch.Adagrad", {}),
]
WRAPPERS = ["gymnasium.wrappers:FlattenObservation", "gymnasium.wrappers:RecordEpisodeStatistics"]
HUGE = [10**15, 10**30, 1e300]
"""Larger than any memory, so that nothing is allocated before it is refused."""

# Settings that `of_kind` and `sizes` draw, or that would leave this process or take long.
NOT_DRAWN = """
algo preset seed steps schedule_steps env env_options env_preset wrappers simulator reset_mode init_from
device devices learners_per_gpu share_processors cpus workers envs_per_worker sampling_threads learning_threads
update pull_horizon updates_per_exchange sampler envs horizon env_timeout_s env_build_timeout_s
eval_interval_steps eval_episodes eval_steps final_games tensorboard track report
network layer_norm core core_size previous_inputs gaussian normalize_observations normalize_returns
optimizer optimizer_options minibatches batches batch_steps steps_per_update rho_bar c_bar
log_epsilon v_min v_max atoms quantiles epsilon_final epsilon_odds
batch_size training_intensity replay_size replay_device warmup_steps n_step prioritized
auxiliary auxiliary_replay_steps auxiliary_sequence_steps reward_prediction_units
"""


def one_in(draw: Draw, number: int) -> bool:
    return bool(draw(st.integers(1, number)) == number)


def valid(field: "Field[Any]", kind: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy for values of ordinary size that the field's own rule allows."""
    rule = field.metadata
    of_none = [st.none()] if isinstance(kind, types.UnionType) else []
    wanted = next(t for t in (typing.get_args(kind) or (kind,)) if t is not type(None)) if of_none else kind
    if rule.get("choices"):
        return st.sampled_from(rule["choices"])
    if rule.get("check") is points:
        return st.sampled_from(SCHEDULES)
    if wanted is bool:
        return st.one_of(st.booleans(), *of_none)
    if wanted is int:
        least = rule.get("least") or 0
        return st.one_of(st.integers(least, least + 8), *of_none)
    if wanted is float:
        least = rule.get("least") or 0.0
        numbers = [least + part for part in (0.001, 0.25, 1.0)] + [least] * (rule.get("above") is None)
        return st.one_of(st.sampled_from(numbers), *of_none)
    return st.just(field.default)


def wrong() -> st.SearchStrategy[Any]:
    """Returns a strategy for any YAML values, which are wrong for most settings."""
    plain = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.sampled_from([math.nan, math.inf, -math.inf, -0.5, 2.5, *HUGE, *(-huge for huge in HUGE)]),
        st.text(max_size=8),
        st.sampled_from([b"x", datetime.date(2001, 2, 3), "1e400", "null", "9" * 5000, "2001-99-99", "cuda:7", "\0"]),
    )
    return st.one_of(plain, st.lists(plain, max_size=3), st.dictionaries(st.one_of(st.text(max_size=3), plain), plain))


@st.composite
def runs(draw: Draw, in_process: bool = False) -> Values:
    """Draws a run's settings, perhaps with a wrong one. in_process: for a run that this process trains alone."""
    algo = draw(st.sampled_from(preset_names()))
    is_q, known = settings_of(algo)
    values: Values = {"algo": algo, "tensorboard": False, "report": False, "seed": draw(st.integers(0, 2**40))}
    values |= of_kind(draw, known, is_q, in_process)
    values |= sizes(draw, known, values)
    left_out = {field.name for each in (AtariOptions, QueueSettings) for field in fields(each)} | {*NOT_DRAWN.split()}
    others = [name for name in known if name not in left_out | values.keys()]
    for name in draw(st.lists(st.sampled_from(others), max_size=8, unique=True)):
        values[name] = draw(valid(*known[name]))
    if one_in(draw, 5):
        unknown = st.one_of(st.text(max_size=8), st.sampled_from([f"{name}s" for name in known]))
        name = draw(unknown if one_in(draw, 6) else st.sampled_from([*known]))
        values[name] = draw(st.one_of(wrong(), valid(*known[name]) if name in known else wrong()))
    return values


@functools.cache
def settings_of(algo: str) -> tuple[bool, dict[str, "tuple[Field[Any], Any]"]]:
    """Returns whether an algorithm learns action values, and all settings of its runs: fields with their types."""
    algo_class = find_algo(algo)[0]
    known: dict[str, tuple[Field[Any], Any]] = {}
    for each in (*RUN_GROUPS.values(), algo_class.Settings):
        types_of = typing.get_type_hints(each)
        known |= {field.name: (field, types_of[field.name]) for field in fields(each)}
    return issubclass(algo_class, QAlgo), known


def of_kind(draw: Draw, names: Iterable[str], is_q: bool, in_process: bool) -> Values:
    """Draws the kind of run: environment, sampler, learners, and settings that depend on these."""
    on_device = one_in(draw, 12)
    finite, action = ("discrete", "from two on", "only one"), "discrete"
    values: Values = {"update": "all_reduce", "devices": None, "device": "cpu", "share_processors": True}
    values |= {name: getattr(LearnerSettings, name) for name in STORE_ONLY}
    if on_device:
        has_box, observed = not is_q and one_in(draw, 3), "vector"
        values |= {"env": "fuzz_env:OnDevice", "env_options": {"box": has_box}, "sampler": "device"}
    elif not in_process and one_in(draw, 12):
        has_box, observed = False, "picture"
        values |= {"env": draw(st.sampled_from(["pong", "ALE/Breakout-v5"])), "frame_shape": [40, 44], "noop_max": 2}
        values |= {"env_preset": draw(st.sampled_from(["stooke", "dqn84", "v5"]))}
        values |= {"frame_skip": draw(st.integers(1, 4))}
        values |= {"color": draw(st.booleans()), "frame_stack": draw(st.integers(1, 4))}
        values |= {"frame_stack": 1} if values["color"] else {}
        values |= {"simulator": draw(st.sampled_from(["auto", "ale"])), "clip_reward": draw(st.booleans())}
        values |= {"sampler": draw(st.sampled_from(["alternating", "serial"]))}
        values |= {"reset_mode": draw(st.sampled_from(["auto", "immediate", "wait", "reserve"]))}
    else:
        observed = draw(st.sampled_from([*fuzz_env.OBSERVATIONS]))
        action = draw(st.sampled_from([*finite] if is_q and not one_in(draw, 20) else [*fuzz_env.ACTIONS]))
        if one_in(draw, 60):
            observed = draw(st.sampled_from([*fuzz_env.REFUSED]))
        has_box = action in ("box", "scalar box", "unbounded box", "dict")
        options = {"observations": observed, "actions": action}
        options |= {"length": draw(st.integers(1, 6)), "truncates": draw(st.booleans())}
        options |= {"masked": True} if action in (*finite, "multi") and one_in(draw, 4) else {}
        env = "fuzz_env:vector" if one_in(draw, 8) else ENV
        values |= {"env": env, "env_options": options, "sampler": "serial"}
        if env == ENV and one_in(draw, 8):
            values["wrappers"] = [draw(st.sampled_from(WRAPPERS))]
            observed = "vector of anything" if values["wrappers"] == WRAPPERS[:1] else observed
        values["reset_mode"] = draw(st.sampled_from(["auto", "immediate", "wait"]))
        if not in_process:
            several = ["alternating", "alternating", "serial", *([] if is_q else ["queued"])]
            values["sampler"] = draw(st.sampled_from(several))
    if one_in(draw, 4) and values["sampler"] != "queued":
        values["update"] = "central_store"
        values |= {"chunks": draw(st.integers(1, 4)), "locks": draw(st.sampled_from(["chunks", "none"]))}
        values |= {"rule_state": draw(st.sampled_from(["shared", "own"]))}
        values |= {"pull_horizon": draw(st.integers(1, 4))} if one_in(draw, 3) else {}
    if not in_process and one_in(draw, 4) and values["sampler"] != "queued":
        values |= {"devices": draw(st.sampled_from(["cpu,cpu", "cpu,cpu,cpu"])), "device": "auto"}
    if values["sampler"] == "queued":
        values["reset_mode"] = draw(st.sampled_from(["auto", "immediate"]))
        values |= {"predictors": draw(st.integers(1, 3)), "trainers": draw(st.integers(1, 3))}
        values |= {"dynamic_adjustment": False, "min_training_batch": None}
    optimizer, optimizer_options = draw(st.sampled_from(OPTIMIZERS))
    values |= {"optimizer": optimizer, "optimizer_options": optimizer_options}
    if optimizer in ("radam", "momentum_sgd", "sgd", "torch.SGD"):  # their first steps are as large as the gradient
        values["clip_grad_norm"] = draw(st.sampled_from([0.5, 10.0]))
    if optimizer == "adam" and values["update"] == "central_store":
        values["updates_per_exchange"] = draw(st.sampled_from([None, 1, 3]))
    if optimizer.startswith("torch.") and not one_in(draw, 20):
        values |= {"rule_state": "own"} if values["update"] == "central_store" else {}
    values |= of_network(draw, names, observed, has_box, action in finite and not has_box)
    if values["sampler"] == "queued":
        values["normalize_returns"] = False
        values |= {"core": "none", "previous_inputs": False} if values["auxiliary"] != ["none"] else {}
    return values


def of_network(draw: Draw, names: Iterable[str], observed: str, has_box: bool, is_discrete: bool) -> Values:
    """Draws a network that fits the observations, and the settings around it."""
    values: Values = {"core": draw(st.sampled_from(["none", "none", "lstm", "gru"]))} if "core" in names else {}
    pictures = ("picture", "channels first")
    if observed in pictures:
        values["network"] = draw(st.sampled_from([None, "a3c", "nature_half", "cule"]))
    elif "picture" not in observed:
        values["network"] = draw(st.sampled_from([None, "a3c_mlp", "wide", "wide_tanh"]))
    if "normalize_observations" in names and observed in ("vector", "unbounded", "scalar", "picture"):
        values["normalize_observations"] = draw(st.booleans())
    if "normalize_returns" in names:
        values["normalize_returns"] = draw(st.booleans())
    if "gaussian" in names:
        values["gaussian"] = draw(st.sampled_from(["diagonal", "spherical"] if has_box else ["diagonal"]))
    if "log_epsilon" in names:
        values["log_epsilon"] = draw(st.sampled_from([0.0, 1e-6])) if is_discrete else 0.0
        values["gae_lambda"] = 1.0
    if "auxiliary" in names:
        tasks = ["value_replay", "reward_prediction"]
        tasks += ["pixel_control"] if observed in pictures and is_discrete else []
        values["auxiliary"] = draw(st.lists(st.sampled_from(tasks), max_size=3, unique=True)) or ["none"]
    if "core" in values:
        values["previous_inputs"] = values["core"] != "none" and draw(st.booleans())
    values["layer_norm"] = one_in(draw, 5)
    return values


def sizes(draw: Draw, names: Iterable[str], run: Values) -> Values:
    """Draws small numbers that fit each other, and the number of steps of three rollouts that are learned from."""
    learners = len((run["devices"] or "cpu").split(","))
    horizon, local = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2, 3, 4, 6]))
    local += local % 2 if run["sampler"] == "alternating" and not one_in(draw, 20) else 0
    together = 1 if run["update"] == "central_store" else learners
    rollouts = 3 + bool(run.get("normalize_returns") or run.get("normalize_observations"))
    values: Values = {"horizon": horizon, "envs": local * learners, "decorrelation_steps": draw(st.integers(0, 5))}
    values |= {"sampling_threads": 1, "learning_threads": 1, "eval_interval_steps": 0}

    def choose(name: str, strategy: st.SearchStrategy[Any]) -> Any:
        if name in names:
            values[name] = draw(strategy)
        return values.get(name)

    for name, least in {"core_size": 1, "reward_prediction_units": 1, "atoms": 2, "quantiles": 1}.items():
        choose(name, st.integers(least, 8))
    choose("epochs", st.integers(1, 2))
    is_recurrent = run.get("core", "none") != "none"
    choose("minibatches", st.sampled_from(divisors(local if is_recurrent else local * horizon)))
    choose("batches", st.sampled_from(divisors(local)))
    choose("steps_per_update", st.integers(1, 3))
    choose("c_bar", st.sampled_from([0.25, 1.0]))
    choose("rho_bar", st.sampled_from([1.0, 2.0]))
    choose("v_min", st.sampled_from([-10.0, 0.0]))
    choose("v_max", st.sampled_from([0.5, 10.0]))
    if batch_steps := choose("batch_steps", st.integers(1, 2 * horizon)):
        rollouts += math.ceil((batch_steps + 3) / horizon)
    if n_step := choose("n_step", st.integers(1, 3)):
        num_envs = local * together
        batch_size = together * draw(st.integers(1, 8))
        warmup = batch_size + num_envs * n_step + draw(st.integers(0, 10))
        steps_per_env = max(horizon + n_step, math.ceil(batch_size / num_envs)) + draw(st.integers(1, 10))
        intensity = draw(st.integers(1, 2)) * batch_size / (num_envs * horizon)
        values |= {"batch_size": batch_size, "warmup_steps": warmup, "replay_size": num_envs * steps_per_env}
        values |= {"training_intensity": intensity, "prioritized": draw(st.booleans())}
        rollouts += 1 + math.ceil(warmup / (num_envs * horizon))
    if "epsilon_final" in names:
        finals = draw(st.lists(st.sampled_from([0.0, 0.05, 0.5, 1.0]), min_size=1, max_size=3))
        values |= {"epsilon_final": finals, "epsilon_odds": draw(st.sampled_from([None, [0.5] * len(finals)]))}
    if "auxiliary" in names:
        size = max(4, 2 * horizon) + draw(st.integers(0, 6))
        values |= {"auxiliary_replay_steps": size}
        values |= {"auxiliary_sequence_steps": draw(st.sampled_from([None, 1, horizon]))}
        rollouts += 1 + math.ceil(size / horizon)
    if one_in(draw, 5):
        values |= {"eval_interval_steps": 3 * horizon * values["envs"], "eval_episodes": draw(st.integers(1, 3))}
        values |= {"eval_steps": draw(st.integers(1, 40)) if one_in(draw, 2) else None}
    return values | {"steps": rollouts * horizon * values["envs"]}


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
