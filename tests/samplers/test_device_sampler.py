"""Tests of the device sampler against the serial one, which steps the same environments one by one."""

import pickle
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from accel_rl.envs import EnvConfig, make_env
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.gym import GymSimulator
from accel_rl.envs.spaces.conversion import to_env_action
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import RunError, UsageError
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.masks import allowed_actions, nth_allowed
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig, StepHook
from accel_rl.samplers.device import DeviceSampler
from accel_rl.settings.resolve import resolve
from tests.fake_cuda import counting
from tests.helpers.samplers import Echo, Flat, Greedy, assert_equal, closing, copy, spec_of, to_cpu
from tests.samplers.device_envs import OBSERVATION, Drift
from tests.samplers.test_gpu_action_server import Remembers

HERE = "tests.samplers.device_envs"
B, RUN_SEED = 6, 3
SPEC = EnvSpec(OBSERVATION, gymnasium.spaces.Discrete(4))
MASKED = replace(SPEC, mask_sources=("info",))
CONFIG = SamplerConfig(B, 7, 0, window=4, terminal_frames=True)
SEEDS = [int(np.random.SeedSequence(RUN_SEED, spawn_key=(0, env, 0, 0)).generate_state(1)[0] >> 1) for env in range(B)]
CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def serial(policy: Any, config: SamplerConfig = CONFIG, spec: EnvSpec = SPEC, **options: Any) -> SerialSampler:
    env = EnvConfig(f"{HERE}:Drift", options=options, mask_sources=spec.mask_sources)
    return SerialSampler(spec, BatchConfig(env, RUN_SEED), policy, config)


def on_device(
    policy: Any, config: SamplerConfig = CONFIG, device: torch.device = CPU, name: str = "Drifts", **options: Any
) -> DeviceSampler:
    options = options if name.startswith(("on", "too")) else {"seeds": SEEDS, **options}
    decorrelation = options.pop("decorrelation_steps", 0)
    env = EnvConfig(f"{HERE}:{name}", options=options)
    batch = BatchConfig(env, RUN_SEED, decorrelation_steps=decorrelation)
    spec = MASKED if options.get("is_masked") else SPEC
    return DeviceSampler(replace(spec, on_device=True), batch, policy, config, device)


def collect(sampler: Any) -> list[Any]:
    """Returns a rollout and what its hooks have seen; the hooks change the policy."""
    seen = []

    def on_step(t: int) -> None:
        recent = to_cpu(sampler.recent(t, 4, slice(1, 5)))
        seen.append(recent)
        with torch.no_grad():
            sampler.policy.version.add_((recent.reward * 3).sum().to(sampler.policy.version.device))

    rollout = sampler.collect(StepHook(on_step, 3))
    return [to_cpu(each) for each in (rollout, *seen)]


@pytest.mark.gpu
@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_rollouts_are_those_of_single_environments(device: torch.device) -> None:
    """Rollouts of the device sampler equal those of the serial sampler: rows, ends, scores and recurrent inputs."""
    one, other = serial(Remembers(4, CPU)), on_device(Remembers(4, device), device=device)
    counts: dict[str, int] = {}
    with closing(one, other):
        for index in range(12):
            for first, second in zip(collect(one), collect(other), strict=True):
                assert_equal(first, second, f"rollout {index}")
                found = {"truncated": len(first.final_step), "terminated": int(first.terminated.sum())}
                counts = {name: counts.get(name, 0) + number for name, number in found.items()}
            assert len(first.policy_outputs) == 2
        assert min(counts.values()) > 20


class Obeys(Greedy):
    """Takes an allowed action that depends on the whole row."""

    def act(self, observation: Tensor, noise: Tensor | None, recurrent_inputs: Any = None) -> Any:
        digest, allowed = super().act(observation, None)[1], allowed_actions(observation, MASKED)
        number = digest["digest"].long().remainder(allowed.sum(1))
        return nth_allowed(allowed, number), digest, None


def test_masks_are_those_of_single_environments() -> None:
    """Masks equal the serial sampler's, and no random or policy action breaks one in any reset mode."""
    one, other = serial(Obeys(4), spec=MASKED, is_masked=True), on_device(Obeys(4), is_masked=True)
    later = [
        on_device(Obeys(4), is_masked=True, mode=mode, decorrelation_steps=20) for mode in ("NextStep", "SameStep")
    ]
    with closing(one, other, *later):
        for _ in range(5):
            first = one.collect()
            assert_equal(first, other.collect())
            assert len(first.final_step)
            for sampler in later:  # the environments raise if an action is not allowed
                sampler.collect()


def steps_of(rollouts: list[Any]) -> list[list[Any]]:
    """Returns the valid steps of each environment: observation, action, reward, end, and true last observation."""
    steps: list[list[Any]] = [[] for _ in range(B)]
    for rollout in rollouts:
        last = {
            (t, b): o.tolist()
            for t, b, o in zip(
                *map(Tensor.tolist, [rollout.final_step, rollout.final_env]), rollout.final_observation, strict=True
            )
        }
        for t, env in rollout.valid.nonzero().tolist():
            values = [
                getattr(rollout, name)[t, env].tolist() for name in ("observation_rows", "age", "action", "reward")
            ]
            ends = [bool(getattr(rollout, name)[t, env]) for name in ("terminated", "truncated")]
            steps[env].append([*values, *ends, last.get((t, env))])
    return steps


def test_a_step_that_only_resets_is_no_sample() -> None:
    """A step that only resets is not valid; the other steps and the scores equal the serial sampler's."""
    one, other = serial(Greedy(4)), on_device(Greedy(4), mode="NextStep")
    with closing(one, other):
        singles, batches = ([copy(each.collect()) for _ in range(15)] for each in (one, other))
        scores = [[game for rollout in rollouts for game in rollout.games] for rollouts in (singles, batches)]
        for env, (expected, found) in enumerate(zip(steps_of(singles), steps_of(batches), strict=True)):
            num_resets = 15 * 7 - len(found)
            assert found == expected[: len(found)] and num_resets > 10
            games = [[game for game in each if game.env == env] for each in scores]
            assert games[1] == games[0][: len(games[1])] and len(games[1]) > 10
        for rollout in batches:
            assert torch.equal(rollout.reset[1:], ~rollout.valid)
            assert torch.equal(rollout.valid[1:], ~rollout.done[:-1])


@pytest.mark.gpu(fake=True)
def test_the_host_waits_once_a_rollout() -> None:
    """The numbers of waits and uploads per rollout do not depend on the horizon."""
    found = []
    for horizon in (4, 8):
        sampler = on_device(Remembers(4, GPU), SamplerConfig(B, horizon, 0), GPU)
        with closing(sampler):
            for _ in range(3):
                sampler.collect()
            with counting() as counts:
                sampler.collect()
            found.append((counts.syncs.total(), counts.up.total()))
            assert counts.graphs == horizon
    assert found[0] == found[1] and found[0][0] <= 6


@pytest.mark.parametrize("name", ["Saves", "Drifts"])
def test_state(name: str) -> None:
    """A restored state continues exactly; an environment without a state starts anew and is named."""
    for mode in ("SameStep", "NextStep"):
        samplers = [on_device(Echo(4), name=name, mode=mode) for _ in range(2)]
        with closing(*samplers):
            while not samplers[0].collect().done[-1].any():
                pass
            restarted = samplers[1].set_state(pickle.loads(pickle.dumps(samplers[0].get_state())))
            assert restarted == ([] if name == "Saves" else [*range(B)])
            if not restarted:
                for _ in range(4):
                    assert_equal(samplers[0].collect(), samplers[1].collect(), mode)
            else:
                rollout = samplers[1].collect()
                assert rollout.reset[0].all() and not rollout.age[0].any()
                assert samplers[1].num_restarts == B  # their seeds are new


def test_random_actions_come_first_and_do_not_count() -> None:
    """Random actions move the environments before the first rollout, and games begun by them have no score."""
    sampler, fresh = on_device(Echo(4), decorrelation_steps=9), on_device(Echo(4))
    with closing(sampler, fresh):
        rollout, first = sampler.collect(), fresh.collect()
        assert rollout.reset[0].all() and not torch.equal(rollout.observation_rows[0], first.observation_rows[0])
        ended = int(rollout.done.sum())
        unfinished = int(rollout.done.any(0).sum())  # games that were begun at random and have ended
        assert len(rollout.games) == ended - unfinished < ended


def test_evaluation_is_apart_from_training() -> None:
    """Evaluation uses separate environments, leaves training unchanged, and repeats exactly."""
    config = SamplerConfig(B, 7, 0, num_evaluation_envs=4)
    sampler, undisturbed = (on_device(Echo(4), config) for _ in range(2))
    with closing(sampler, undisturbed):
        games = sampler.evaluate(GamesToPlay(9), 0, False)
        assert_equal(sampler.collect(), undisturbed.collect())
        assert sampler.evaluate(GamesToPlay(9), 0, False) == games and len(games) == 9
        assert_equal(sampler.collect(), undisturbed.collect())
        made = [*sampler._instances.values()]
        assert [env.num_envs for env in made] == [B, 4]
    assert all(env.closed for env in made)


SPOILT = {
    "fewer": r"observation has shape \(5, 3\), but num_envs=6 asks for \(6, 3\)",
    "dtype": "observation is of type torch.complex64, but has to be torch.float32",
    "numpy": "reward is a list, without the DLPack protocol",
    "number": "terminated is of type torch.int64, but has to be torch.bool",
    "nan reward": "the reward of environment 1 at step 0 of a rollout is not finite: nan",
    "huge reward": r"of environment 0 at step 0 .*: -?inf, or beyond the largest number of float32, 3\.403e\+38",
    "nan observation": r"the observation of environment 1 at step 1 of a rollout is not finite: \[.*inf\]",
    "no final": r"without info\['final_obs'\].*NEXT_STEP",
    "four": r"step\(\) did not return \(observation, reward",
    "exit": r"step\(\) called sys\.exit\(7\)",
}


def test_a_mask_that_allows_nothing() -> None:
    """A mask that allows no action ends the run with an error that names its environment."""
    sampler = on_device(Obeys(4), SamplerConfig(B, 1, 0), spoil="no choice", is_masked=True)
    words = f"{HERE}:Drifts: the action mask of environment 1 after 1 steps of a rollout allows nothing"
    with closing(sampler), pytest.raises(RunError, match=words):
        sampler.collect()


@pytest.mark.parametrize("how", SPOILT)
def test_what_an_environment_returns_wrongly(how: str) -> None:
    """A wrong array from an environment raises a one-line error that names the environment."""
    sampler = on_device(Echo(4), spoil=how)
    with closing(sampler), pytest.raises(RunError, match=SPOILT[how]) as raised:
        sampler.collect()
    assert str(raised.value).startswith(f"{HERE}:Drifts: ") and "\n" not in str(raised.value)


@pytest.mark.gpu
def test_arrays_on_another_device() -> None:
    """An observation on another device than the policy is an error; it is not copied at each step."""
    sampler = on_device(Remembers(4, GPU), device=GPU, name="on_the_cpu")
    with closing(sampler), pytest.raises(RunError, match="observation lies on cpu, but the policy is on cuda:0"):
        sampler.collect()


def test_what_can_not_be_made() -> None:
    """A wrong number of environments and a disabled autoreset mode are usage errors."""
    with pytest.raises(UsageError, match="num_envs=6, but returned 7"):
        on_device(Echo(4), name="too_many")
    with pytest.raises(UsageError, match="DISABLED"):
        on_device(Echo(4), mode="Disabled")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": f"{HERE}:Drifts", "sampler": "serial"}, "returns a batch on a device: use --sampler device"),
        ({"env": f"{HERE}:Drifts", "algo": "ga3c"}, "sampler=queued cannot step this environment"),
        ({"env": f"{HERE}:Drift", "sampler": "device"}, "is a single one: use --sampler alternating"),
        ({"env": f"{HERE}:too_many"}, "was asked for num_envs=1, but returned 2"),
    ],
)
def test_samplers_and_environments_that_do_not_fit(settings: dict[str, Any], words: str) -> None:
    """A sampler that cannot step the environment is a usage error."""
    with pytest.raises(UsageError, match=words):
        resolve({"algo": "ppo", **settings})


def test_it_is_chosen_by_itself_and_one_of_it_is_a_single_environment() -> None:
    """A batched environment selects the device sampler, and a batch of one plays like a single environment."""
    run = resolve({"algo": "ppo", "env": f"{HERE}:Drifts"}).run
    assert run.sampler == "device" and run.sampling_threads is None  # not the one thread of the preset
    for mode in ("SameStep", "NextStep"):
        env, single = make_env(f"{HERE}:Drifts", seeds=[5], mode=mode), Drift()
        for game in range(3):
            seen, expected = env.reset(seed=1)[0], single.reset(seed=5 + game)[0]
            if not game:
                assert np.array_equal(seen, expected)
            over = False
            while not over and not game:
                seen, reward, terminated, truncated, _ = env.step(3)
                expected = single.step(3)
                assert np.array_equal(seen, expected[0])
                assert (reward, terminated, truncated) == expected[1:4]
                over = terminated or truncated
        assert env.render().shape == (8, 8, 3)
        env.close()
    with pytest.raises(UsageError, match=rf"^{HERE}:Shows cannot be recorded: .* render\(\) method$"):
        make_env(f"{HERE}:Shows", kind="number").render()


@pytest.mark.parametrize("kind", ["picture", "grey", "number"])
def test_spaces(kind: str) -> None:
    """Channels, action numbers and bounds of a batched environment equal those of a single one."""
    config = EnvConfig(f"{HERE}:Shows", options={"kind": kind})
    spec = spec_of(config)
    assert spec.on_device
    policy = ActorCritic(spec, network=Flat if kind != "number" else None)
    sampler = DeviceSampler(spec, BatchConfig(config, RUN_SEED), policy, SamplerConfig(4, 5, 0))
    with closing(sampler):
        rollout = sampler.collect()
        env = sampler._instances[False]
        single = GymSimulator(config, np.random.SeedSequence(0))
        row = np.zeros(spec.row_shape, spec.row_dtype)
        single.reset(row)
        assert np.array_equal(rollout.observation_rows[3, 0].numpy(), row)
        assert len(set(rollout.observation_rows[0].flatten().tolist())) == 4
        expected = to_env_action(rollout.action.numpy(), spec.action_space)
        assert np.array_equal(torch.stack(env.actions).numpy(), expected)
        assert np.array_equal(expected, rollout.action.numpy()) == (kind == "grey")


@pytest.mark.parametrize(
    ("declared", "returned", "is_masked"),
    [
        ("float64", "float64", False),
        ("float16", "float16", True),
        ("float32", "float64", False),
        ("float32", "int64", True),
        ("bool", "bool", True),
        ("bool", "int32", False),
        ("uint8", "int64", False),
    ],
)
def test_types_become_those_of_single_environments(declared: str, returned: str, is_masked: bool) -> None:
    """Observations of the space's own type, or of another that fits, give the rows that numpy makes of them."""
    options = {"declared": declared, "returned": returned, "is_masked": is_masked}
    config = EnvConfig(f"{HERE}:Typed", options=options, mask_sources=("info",) * is_masked)
    spec = spec_of(config)
    sampler = DeviceSampler(spec, BatchConfig(config, RUN_SEED), ActorCritic(spec), SamplerConfig(4, 3, 0))
    with closing(sampler):
        rows = sampler.collect().observation_rows
        shown = sampler._instances[False].shown.numpy()
    expected = shown.astype("uint8" if declared == "bool" and is_masked else spec.row_dtype)
    if is_masked:
        masks = [[0b110], [0b101], [0b011], [0b110]]  # actions 1 and 2, 0 and 2, ..., a bit for each
        expected = np.concatenate([expected, masks], 1, dtype=expected.dtype, casting="unsafe")
    assert rows.numpy().dtype == expected.dtype
    assert np.array_equal(rows.numpy(), np.stack([expected] * 4))


def test_numbers_that_the_declared_type_does_not_hold() -> None:
    """A number that the space's type cannot hold ends the run, as with single environments."""
    config = EnvConfig(f"{HERE}:Typed", options={"declared": "uint8", "returned": "int64"})
    spec = spec_of(config)
    sampler = DeviceSampler(spec, BatchConfig(config, RUN_SEED), ActorCritic(spec), SamplerConfig(4, 3, 0))
    sampler._instances[False].shown[2, 3] = 300
    with closing(sampler), pytest.raises(RunError, match="an observation does not fit the declared type uint8"):
        sampler.collect()
