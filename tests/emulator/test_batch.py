"""Batches of consoles, as a user calls them."""

from dataclasses import replace
from pathlib import Path

import ale_py
import numpy as np
import pytest

from accel_rl.emulator import BatchArrays, BatchAtari
from accel_rl.emulator import state as state_words
from accel_rl.errors import UsageError
from tests.emulator.roms import save_state, start_ale


def play(atari: BatchAtari, frames: int, seed: int = 0) -> list[np.ndarray]:
    """Returns a row for each frame of random actions: pixels, RAM and rewards."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(frames):
        arrays = atari.step(rng.integers(len(atari.actions), size=atari.num_envs))
        rows.append(np.concatenate([arrays.frames[:, 100, ::7], atari.ram, arrays.rewards[:, None]], axis=1))
    return rows


@pytest.mark.parametrize("game", ["seaquest", "video_cube"])  # video_cube's reset presses Select for a random time
def test_many_start_as_single_ones_do(game: str) -> None:
    """Environments of a batch start and step like single ones with the same seeds."""
    together = BatchAtari(game, 3, seed=[5, -6, 7], repeat_action_probability=0.5)
    alone = [BatchAtari(game, 1, seed=seed, repeat_action_probability=0.5) for seed in (5, -6, 7)]
    for actions in ([1, 1, 1], [2, 3, 3], [5, 5, 5]):
        together.reset()
        together.step(actions)
        for env, atari in enumerate(alone):
            atari.reset()
            atari.step(actions[env : env + 1])
            assert (atari.words(0) == together.words(env)).all()
            assert (atari.arrays.frames[0] == together.arrays.frames[env]).all()


@pytest.mark.parametrize("seed", [-2, -(2**31), 2**31 - 1])
def test_seeds_are_ale_pys(seed: int) -> None:
    """Negative and large seeds give the same sticky actions as in ale-py."""
    ale = start_ale("breakout", seed, 0.5)
    atari = BatchAtari("ALE/Breakout-v5", 1, seed=seed, repeat_action_probability=0.5, full_action_space=True)
    for frame in range(60):
        action = (1, 3, 4)[frame % 3]
        ale.act(ale_py.Action(action))
        atari.step([action])
        assert (ale.getRAM() == atari.ram[0]).all(), frame


def test_the_seed_of_ale_py_that_is_another_each_time() -> None:
    """The seed -1 gives a different random sequence each time, as in ale-py."""
    first, second = (BatchAtari("breakout", 1, seed=-1).words(0) for _ in range(2))
    assert (first != second).any()


def test_a_frame_may_stop_at_every_instruction() -> None:
    """A frame that is run in pieces of any number of instructions ends like a whole one."""
    whole, cut = BatchAtari("seaquest", 1), BatchAtari("seaquest", 1)
    for frame, sizes in enumerate([(1,), (1,), (7, 3, 1000), (5000,), (2,)]):
        whole.step([frame % 5], draw=True)
        stops = 0
        while not cut.step_instructions([frame % 5], sizes[stops % len(sizes)])[0]:
            stops += 1
        assert stops >= 3 or sizes == (5000,)
        assert (cut.ram == whole.ram).all() and (cut.screens() == whole.screens()).all()
    hardware = [word for word in range(state_words.CONSOLE) if word != state_words.PAINT]
    assert (cut.words(0)[hardware] == whole.words(0)[hardware]).all()


def test_a_saved_state_goes_on_as_the_game_did() -> None:
    """A restored state plays on exactly as before; a state that does not fit is refused."""
    atari = BatchAtari("ms_pacman", 2, seed=3, repeat_action_probability=0.5)
    play(atari, 30)
    saved = atari.get_state()
    first = play(atari, 30, seed=1)
    atari.set_state(saved)
    assert (np.array(play(atari, 30, seed=1)) == np.array(first)).all()
    with pytest.raises(UsageError, match="a state of 2 environments does not fit this batch of 1"):
        BatchAtari("ms_pacman", 1).set_state(saved)
    with pytest.raises(UsageError, match="a state of ms_pacman does not fit this batch of alien"):
        BatchAtari("alien", 2).set_state(saved)
    saved.words[1, state_words.CARTRIDGE] = 2**30
    with pytest.raises(UsageError, match="this state is damaged, or of another version"):
        atari.set_state(saved)


def test_environments_that_do_not_exist() -> None:
    """Environments that do not exist, and masks that are not boolean, are refused."""
    atari = BatchAtari("pong", 2)
    for call in (lambda: atari.screen(-1), lambda: atari.screen(2), lambda: atari.load_ale_state(-1, b"")):
        with pytest.raises(UsageError, match=r"env=-?[12]: the environments of this batch are 0 to 1"):
            call()
    for mask in ([0, 1], ["a", "b"], [True], True):
        with pytest.raises(UsageError, match=r"mask must be bool \[2\], not"):
            atari.reset(mask)  # type: ignore[arg-type]


def test_sticky_actions_in_steps_of_several_frames() -> None:
    """Sticky actions equal ale-py's in steps of several frames, also after a game that ends within a step."""
    ale = start_ale("boxing", 4, 0.4, frame_skip=4, max_num_frames_per_episode=270)
    options = {"seed": 4, "frame_skip": 4, "max_episode_frames": 270, "repeat_action_probability": 0.4}
    atari = BatchAtari("boxing", 1, full_action_space=True, **options)  # type: ignore[arg-type]
    for action in np.random.default_rng(0).integers(18, size=200).tolist():
        assert ale.act(ale_py.Action(action)) == atari.step([action]).rewards[0]
        assert ale.game_over() == atari.arrays.ends.any()
        assert (ale.getRAM() == atari.ram[0]).all()
        if ale.game_over():
            ale.reset_game()
            atari.reset()


def test_results_are_written_into_given_arrays() -> None:
    """Results are written only into the given arrays; arrays of another form are refused."""
    memory = np.zeros((2, 3, 210, 160), np.uint8)
    arrays = BatchArrays(memory[1], np.zeros(3, np.int32), np.zeros((2, 3), np.bool_), np.zeros(3, np.int32))
    atari = BatchAtari("breakout", 3, arrays=arrays)
    assert atari.step([1, 1, 1]) is arrays and memory[1].all(axis=0).any() and arrays.lives.tolist() == [5, 5, 5]
    assert not memory[0].any()
    for name, wrong in (
        ("frames", np.zeros((2, 210, 160), np.uint8)),
        ("frames", np.zeros((3, 210, 320), np.uint8)[:, :, ::2]),
        ("rewards", np.zeros(3, np.int64)),
        ("ends", np.zeros((3, 2), np.bool_)),
    ):
        with pytest.raises(UsageError, match=f"arrays.{name} must be writable C-contiguous"):
            BatchAtari("breakout", 3, arrays=replace(arrays, **{name: wrong}))


def test_states_that_are_none_of_this_game() -> None:
    """Bytes that are not a state of ale-py, and states of another cartridge, are refused."""
    atari = BatchAtari("breakout", 1)
    with pytest.raises(UsageError, match="no saved state of ale-py's"):
        atari.load_ale_state(0, b"nothing")
    with pytest.raises(UsageError, match=r"a state of a FE cartridge does not fit breakout's \(2K\)"):
        atari.load_ale_state(0, bytes(save_state(start_ale("robotank"))))


def test_games_are_truncated() -> None:
    """A game is truncated at its limit and stands still until its reset."""
    atari = BatchAtari("boxing", 2, max_episode_frames=100)
    atari.reset()
    count = 0
    while not atari.arrays.truncated.all():
        atari.step([0, 0])
        count += 1
        assert count <= 100
    before = atari.ram
    assert atari.step([1, 1]).rewards.tolist() == [0, 0] and (atari.ram == before).all()
    assert not atari.arrays.terminated.any()
    atari.reset(np.array([True, False]))
    assert atari.arrays.truncated.tolist() == [False, True]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0, 4, 9], "environment 1: there is no action 4; breakout has actions 0 to 3"),
        ([0, 0, -1], "environment 2: there is no action -1"),
        ([0, 0], "actions must be 3 integers"),
        ([0.0, 0.0, 0.0], "actions must be 3 integers, not float64"),
    ],
)
def test_actions_that_do_not_exist(actions: list[float], message: str) -> None:
    """Actions that do not exist are refused with their environment."""
    with pytest.raises(UsageError, match=message):
        BatchAtari("breakout", 3).step(actions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs=0 must be an integer from 1 to 2147483647"),
        ({"frame_skip": 0}, "frame_skip=0 must be an integer from 1"),
        ({"frame_skip": 1.5}, "frame_skip=1.5 must be an integer from 1"),
        ({"max_episode_frames": -1}, "max_episode_frames=-1"),
        ({"max_episode_frames": 2**31}, "max_episode_frames=2147483648 must be an integer from 0 to 2147483647"),
        ({"repeat_action_probability": 1.5}, "repeat_action_probability=1.5 must be from 0 to 1"),
        ({"seed": 2**31}, "seed=2147483648 must be an integer from -2147483648 to 2147483647"),
        ({"seed": [1, 2]}, "or one for each environment"),
        ({"mode": 3}, "pong has no mode 3, but 0, 1"),
        ({"difficulty": 4}, "pong has no difficulty 4, but 0, 1, 2, 3"),
        ({"game": "pnog"}, "unknown game 'pnog'; did you mean pong"),
        ({"game": Path("missing.bin")}, "cannot read the ROM missing.bin"),
    ],
)
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    """Options out of range are refused with the value and the rule."""
    with pytest.raises(UsageError, match=message):
        BatchAtari(**{"game": "pong", "num_envs": 1, **options})  # type: ignore[arg-type]


def test_an_unknown_rom(tmp_path: Path) -> None:
    """A ROM is recognized by its contents, not by its name."""
    path = tmp_path / "pong.bin"
    path.write_bytes(bytes(4096))
    message = "no game with the MD5 [0-9a-f]{32}: use one of the 104 ROMs"
    with pytest.raises(UsageError, match=message):
        BatchAtari(path, 1)
