"""The GPU's kernels, run thread by thread on the CPU and on the fake GPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from accel_rl.emulator import AtariVectorEnv  # noqa: E402
from accel_rl.emulator.cuda import kernels  # noqa: E402
from accel_rl.emulator.cuda.atari import CudaAtari  # noqa: E402
from accel_rl.emulator.cuda.consoles import compare  # noqa: E402
from accel_rl.emulator.pcg64 import GENERATOR_WORDS  # noqa: E402
from accel_rl.emulator.rules import known_games  # noqa: E402
from accel_rl.emulator.state import AGENT_GENERATOR, RAM  # noqa: E402
from accel_rl.emulator.vector_steps import ENDED  # noqa: E402
from accel_rl.errors import UsageError  # noqa: E402
from tests.fake_cuda import counting  # noqa: E402
from tests.helpers.fake_kernels import use_fake_kernels  # noqa: E402

NUM_STARTS, NUM_ENVS, STEPS, SEED = 4, 7, 40, 3
GENERATOR = slice(AGENT_GENERATOR, AGENT_GENERATOR + GENERATOR_WORDS)
SIZES = {"img_height": 21, "img_width": 20, "stack_num": 2}


def shuffled(seed):
    """Returns a function that orders threads at random, anew for each launch."""
    random = np.random.default_rng(seed)
    return random.permutation


@pytest.mark.parametrize(("game", "options"), [("breakout", {"episodic_life": True}), ("pong", {"maxpool": False})])
def test_steps_are_those_of_the_vector_environment(game, options):
    """From each start on, observations, rewards, ends and lives equal those of the AtariVectorEnv environment that made
    the start, given the same actions. Each environment keeps its own random numbers."""
    options = {**SIZES, **options}
    theirs = AtariVectorEnv(game, NUM_STARTS, **options)
    envs = CudaAtari(game, NUM_ENVS, device="cpu", seed=SEED, num_starts=NUM_STARTS, order=shuffled(0), **options)
    table = np.random.default_rng(1).integers(0, len(envs.action_numbers), (STEPS, NUM_STARTS))
    observations, infos = theirs.reset(seed=SEED)
    results = [(observations, np.zeros(NUM_STARTS), np.zeros((2, NUM_STARTS), bool), infos["lives"])]
    for actions in table:
        observations, rewards, *ends, infos = theirs.step(actions)
        results.append((observations, rewards, np.array(ends), infos["lives"]))

    shown, info = envs.reset()
    step = shown, torch.zeros(NUM_ENVS), *torch.zeros(2, NUM_ENVS, dtype=torch.bool), info
    start, age, num_ends = envs.starts.numpy().copy(), np.zeros(NUM_ENVS, int), 0
    assert len({*start.tolist()}) > 1
    for _ in range(STEPS):
        for env in range(NUM_ENVS):
            frames, rewards, ends, lives = results[age[env]]
            np.testing.assert_array_equal(step[0][env], frames[start[env]])
            assert step[1][env] == rewards[start[env]]
            assert [bool(each[env]) for each in step[2:4]] == [*ends[:, start[env]]]
            assert step[4]["lives"][env] == lives[start[env]]
        ended = (step[2] | step[3]).numpy()
        num_ends += ended.sum()
        step = envs.step(torch.from_numpy(table[age, start]))
        begins = envs.starts.numpy() >= 0
        np.testing.assert_array_equal(begins, ended)
        start, age = np.where(begins, envs.starts.numpy(), start), np.where(begins, 0, age + 1)
    assert num_ends > 0 or "episodic_life" not in options
    assert len({generator.tobytes() for generator in envs.states()[:, GENERATOR]}) == NUM_ENVS
    theirs.close()


def test_a_saved_state_continues_equally():
    """Steps after set_state equal those after get_state, including the drawn starts."""
    options = {"device": "cpu", "num_starts": NUM_STARTS, "episodic_life": True, "repeat_action_probability": 0.25}
    envs = CudaAtari("breakout", NUM_ENVS, seed=SEED, **options, **SIZES)
    envs.reset()
    actions = torch.from_numpy(np.random.default_rng(2).integers(0, len(envs.action_numbers), (60, NUM_ENVS)))
    for each in actions[:20]:
        envs.step(each)
    state = envs.get_state()
    first = [[tensor.clone() for tensor in envs.step(each)[:4]] for each in actions[20:]]
    other = CudaAtari("breakout", NUM_ENVS, seed=SEED, order=shuffled(5), **options, **SIZES)
    other.set_state(state)
    for results, each in zip(first, actions[20:], strict=True):
        for ours, theirs in zip(other.step(each)[:4], results, strict=True):
            assert torch.equal(ours, theirs)
    assert len({state.tobytes() for state in envs.states()[:, RAM : RAM + 128]}) > 1


@pytest.mark.gpu(fake=True, count=2)
def test_a_graph_of_a_step_does_what_its_kernels_do(monkeypatch):
    """On a GPU that is not the current one, steps and resets equal those of the CPU's kernels, and from the third on
    each step is one graph."""
    options = {"num_starts": NUM_STARTS, "episodic_life": True, **SIZES}
    use_fake_kernels(monkeypatch)
    theirs = CudaAtari("breakout", NUM_ENVS, device="cpu", **options)
    ours = CudaAtari("breakout", NUM_ENVS, device="cuda:1", **options)
    actions = torch.from_numpy(np.random.default_rng(4).integers(0, len(theirs.action_numbers), (30, NUM_ENVS)))
    assert torch.equal(ours.reset()[0].cpu(), theirs.reset()[0])
    num_launches = []
    for step, each in enumerate(actions):
        actions_here = each.to(ours.device)
        with counting() as counts:
            *results, info = ours.step(actions_here)
        num_launches.append(sum(counts.kernels[kernel.__name__] for kernel in kernels.KERNELS))
        *expected, expected_info = theirs.step(each)
        for mine, other in zip([*results, info["lives"]], [*expected, expected_info["lives"]], strict=True):
            assert torch.equal(mine.cpu(), other)
        if step == 20:
            assert torch.equal(ours.reset()[0].cpu(), theirs.reset()[0])
    assert num_launches == [4, 4, *[0] * 28]


def test_a_reset_of_some_leaves_the_others_as_they_are():
    envs = CudaAtari("pong", 3, device="cpu", num_starts=2, **SIZES)
    envs.reset()
    envs.step(torch.tensor([0, 1, 2]))
    before, observations = envs.states(), envs._observations.clone()
    envs.reset(options={"reset_mask": torch.tensor([False, True, False])})
    assert (envs.starts >= 0).tolist() == [False, True, False]
    np.testing.assert_array_equal(envs.states()[[0, 2]], before[[0, 2]])
    assert torch.equal(envs._observations[[0, 2]], observations[[0, 2]])
    assert not (envs.states()[1] == before[1]).all()


def test_a_step_that_starts_a_game_has_no_reward():
    """The reward of the ended game's last step is not counted again."""
    envs = CudaAtari("pong", 2, device="cpu", num_starts=1, **SIZES)
    envs.reset()
    envs._rewards.fill_(7)
    envs._events[1] = ENDED
    _, rewards, *_ = envs.step(torch.zeros(2))
    assert rewards.tolist() == [0, 0] and (envs.starts >= 0).tolist() == [False, True]


def test_wrong_options_are_refused():
    with pytest.raises(UsageError, match="no option grayscale"):
        CudaAtari("pong", 2, device="cpu", grayscale=False)
    with pytest.raises(UsageError, match="at most 210 and 160"):
        CudaAtari("pong", 2, device="cpu", num_starts=1, img_height=300)
    with pytest.raises(UsageError, match="num_envs=200000: a launch takes 127808 environments"):
        CudaAtari("pong", 200_000, device="cpu", num_starts=1)
    envs = CudaAtari("pong", 2, device="cpu", num_starts=1, **SIZES)
    with pytest.raises(UsageError, match="a state of 1 environments does not fit 2"):
        envs.set_state(CudaAtari("pong", 1, device="cpu", num_starts=1, **SIZES).get_state())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    with pytest.raises(UsageError, match="no GPU that PyTorch can use; AtariVectorEnv plays the same games on CPUs"):
        CudaAtari("pong", 2)


@pytest.mark.parametrize("game", ["skiing", "pitfall2", "tic_tac_toe_3d"])
def test_frames_are_those_of_the_cpu(game):
    """States, rewards and pictures of raw frames equal the CPU's, with sticky actions and threads in random order.

    skiing has a reward in each frame; tic_tac_toe_3d has frames that are shown before their end."""
    assert compare(game, 5, 33, "cpu", shuffled(1)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("game", known_games())
def test_frames_are_those_of_the_cpu_in_all_games(game):
    """The same holds in longer games with 9 consoles each."""
    compare(game, 9, 150, "cpu", shuffled(2))
