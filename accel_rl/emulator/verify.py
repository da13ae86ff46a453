"""Compares the emulator with ale-py, frame by frame.

python -m accel_rl.emulator.verify GAME ... [--frames 10000] [--seeds 3] [--mode-frames 500] [--jobs N] [--csv FILE]

GAME is a name as in ale-py (pong), a list of them, or `all`. Both emulators play the same random actions; after each
frame RAM, reward, lives, the end of the game and the screen must be equal. Each game is played

    from the start      --frames frames for each seed from power on; games that end are reset
    from snapshots      --frames frames for each seed; after each tenth of them, and after resets, ours continues from
                        ale-py's saved state (unless these are incomplete)
    in all modes        --mode-frames frames in each mode with each difficulty
    as recorded         --actions FOLDER: FOLDER/GAME.actions, a file for emulator.play

--simulator cuda compares the emulator on the GPU with the CPU's instead: --consoles of each game play --cuda-frames
frames with random and sticky actions; their complete states, rewards and last pictures must be equal. With --device
cpu, the GPU's functions run on the CPU.

With every second seed, frames are not drawn when they are played; every fourth is drawn afterwards and compared. The
table has the numbers of frames, the sources, the version of ale-py, and the first difference. The exit status is 1 if
there is one.
"""

import argparse
import csv
import importlib.metadata
import inspect
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import ale_py
import numpy as np

from accel_rl.emulator.batch import BatchAtari
from accel_rl.emulator.cartridges import identify
from accel_rl.emulator.exactness import Row, read_table, source_hash
from accel_rl.emulator.play import read_actions
from accel_rl.emulator.rules import GameRules, game_of, known_games
from accel_rl.emulator.state import ACTION_GENERATOR, FRAME_GOES_ON, RULES
from accel_rl.errors import RunError, UsageError

SNAPSHOTS = 10  # snapshots for each seed
LOOK_EVERY = 4  # frames between comparisons of screens, for seeds whose frames are drawn afterwards
MAX_HOLD = 16  # frames: random actions are held for at most this many
INCOMPLETE_STATES = frozenset({"qbert", "tetris", "tic_tac_toe_3d"})
"""Games whose ale-py states lack a half-drawn frame: they are compared without snapshots
(https://github.com/Farama-Foundation/Arcade-Learning-Environment/pull/739)"""

SETTLING_FRAMES = 2  # frames after a snapshot whose screens may differ, since ale-py saves no pictures


@dataclass(frozen=True)
class Plan:
    """The options of a comparison. frames: per seed. actions: the folder of recorded actions."""

    frames: int = 10_000
    seeds: int = 3
    mode_frames: int = 500
    actions: Path | None = None


class DifferenceError(Exception):
    """A difference between the two emulators."""


class Pair:
    """One game in both emulators, played with the same actions."""

    def __init__(self, game: str, seed: int, follows_states: bool = False):
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setInt("random_seed", seed)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(Path(str(ale_py.roms.get_rom_path(game))))
        self.ours = BatchAtari(game, 1, seed=seed, full_action_space=True)
        self._follows_states = follows_states
        self._settling = 0  # frames whose screens may differ
        self._ram, self._screen = np.zeros(128, np.uint8), np.zeros(self.ale.getScreenDims(), np.uint8)

    def reset(self) -> None:
        """Starts a new game in both. Raises DifferenceError."""
        self.ale.reset_game()
        self.ours.reset()
        if self._follows_states:  # saved states do not hold a reset's random values
            self.take_snapshot()
        self.compare()

    def set_mode(self, mode: int, difficulty: int) -> None:
        self.ale.setMode(mode)
        self.ale.setDifficulty(difficulty)
        self.ours.set_mode(mode, difficulty)
        self.reset()

    def act(self, action: int, draw: bool = True, look: bool = True) -> None:
        """Plays one frame in both. draw: ours draws it at once; look: compare screens. Raises DifferenceError."""
        reward = self.ale.act(ale_py.Action(action))
        self.ours.step(np.array([action]), draw=draw)
        _expect("reward", reward, int(self.ours.arrays.rewards[0]))
        _expect("end of the game", self.ale.game_over(), bool(self.ours.arrays.terminated[0]))
        self.compare(look, draw)
        if self.ale.game_over():
            self.reset()

    def compare(self, look: bool = True, drawn: bool = True) -> None:
        """Compares lives, RAM and, with look, the screens. drawn: ours has drawn this frame already."""
        _expect("lives", self.ale.lives(), int(self.ours.arrays.lives[0]))
        self.ale.getRAM(self._ram)
        _expect_array("RAM", self._ram, self.ours.ram[0])
        self._settling -= 1
        if look and self._settling < 0:
            self.ale.getScreen(self._screen)
            frames = self.ours.arrays.frames if drawn else self.ours.screens()
            _expect_array("screen", self._screen, frames[0])

    def take_snapshot(self) -> None:
        """Continues ours from ale-py's saved state; the rules' variables stay, since both have played the same.

        Does nothing in a frame that exceeds ale-py's limit: saved states do not hold the part drawn so far."""
        if self.ours.words(0)[FRAME_GOES_ON]:
            return
        self.ale.getScreen(self._screen)
        rules = self.ours.words(0)[RULES:ACTION_GENERATOR]
        remembered = rules.copy()
        self.ours.load_ale_state(0, bytes(self.ale.cloneState().__getstate__()), self._screen)
        rules[:] = remembered
        self._settling = SETTLING_FRAMES


def _expect(what: str, expected: Any, value: Any) -> None:
    if value != expected:
        raise DifferenceError(f"{what} {value} instead of {expected}")


def _expect_array(what: str, expected: Any, value: Any) -> None:
    if not np.array_equal(expected, value):
        where = np.argwhere(expected != value)
        index = tuple(map(int, where[0]))
        at = index[0] if len(index) == 1 else index
        raise DifferenceError(f"{what} at {at}: {value[index]} instead of {expected[index]} ({len(where)} in all)")


def random_actions(seed: int, num_actions: int) -> Iterator[int]:
    """Yields random actions, each held for a random number of frames."""
    rng = np.random.default_rng(seed)
    while True:
        action, hold = int(rng.integers(num_actions)), int(rng.integers(1, MAX_HOLD + 1))
        for _ in range(hold):
            yield action


def verify(game: str, plan: Plan) -> Row:
    """Compares one game; stops at the first difference."""
    rules = game_of(game)
    row = Row(game, rules.md5, identify(Path(str(ale_py.roms.get_rom_path(game))).read_bytes()))
    row.sources, row.ale_py = source_hash(), importlib.metadata.version("ale-py")
    try:
        for seed in range(1, plan.seeds + 1):
            _verify_from_start(row, game, seed, plan)
            if game not in INCOMPLETE_STATES:
                _verify_from_snapshots(row, game, seed, plan)
        _verify_modes(row, game, rules, plan)
        _verify_recorded(row, game, plan)
    except (DifferenceError, RunError) as difference:
        row.difference = str(difference)
    return row


def _play(
    row: Row, count: str, pair: Pair, actions: Iterator[int], frames: int, where: str, drawn: bool = True
) -> None:
    """Plays and compares frames. count: the row's field for their number. drawn: draw each at once, else some later."""
    for frame in range(frames):
        try:
            pair.act(next(actions), drawn, look=drawn or frame % LOOK_EVERY == 0)
        except (DifferenceError, RunError) as difference:
            raise DifferenceError(f"{where}, frame {frame}: {difference}") from None
        setattr(row, count, getattr(row, count) + 1)


def _verify_from_start(row: Row, game: str, seed: int, plan: Plan) -> None:
    pair = Pair(game, seed)
    try:
        pair.reset()
    except DifferenceError as difference:
        raise DifferenceError(f"seed {seed}, first reset: {difference}") from None
    minimal = pair.ours.rules.actions
    chosen = minimal if seed % 2 else range(18)
    actions = (chosen[index] for index in random_actions(seed, len(chosen)))
    _play(row, "from_start", pair, actions, plan.frames, f"seed {seed}", drawn=seed % 2 == 1)


def _verify_from_snapshots(row: Row, game: str, seed: int, plan: Plan) -> None:
    pair = Pair(game, seed + 1000, follows_states=True)
    actions = random_actions(seed + 1000, 18)
    for index in range(SNAPSHOTS):
        pair.take_snapshot()
        where = f"seed {seed}, snapshot {index + 1}"
        _play(row, "from_snapshots", pair, actions, plan.frames // SNAPSHOTS, where, drawn=seed % 2 == 1)


def _verify_modes(row: Row, game: str, rules: GameRules, plan: Plan) -> None:
    if not plan.mode_frames:
        return
    for mode in rules.modes:
        for difficulty in rules.difficulties:
            where = f"mode {mode}, difficulty {difficulty}"
            pair = Pair(game, 1)
            try:
                pair.set_mode(mode, difficulty)
            except DifferenceError as difference:
                raise DifferenceError(f"{where}, reset: {difference}") from None
            _play(row, "in_modes", pair, random_actions(1, 18), plan.mode_frames, where)
            row.modes += 1


def _verify_recorded(row: Row, game: str, plan: Plan) -> None:
    path = plan.actions / f"{game}.actions" if plan.actions else None
    if path and path.exists():
        pair = Pair(game, 1)
        pair.reset()
        recorded = read_actions(path)
        _play(row, "recorded", pair, iter(recorded), len(recorded), "recorded")


def verify_cuda(games: Sequence[str], consoles: int, frames: int, device: str) -> int:
    """Compares games on a GPU with the CPU; prints a line for each. Returns how many are equal. Raises UsageError if
    there is no GPU."""
    import torch

    from accel_rl.emulator.cuda.consoles import compare

    if device != "cpu" and not torch.cuda.is_available():
        raise UsageError("there is no GPU that PyTorch can use: --device cpu runs the GPU's functions on the CPU")
    exact = 0
    for game in games:
        try:
            distinct = compare(game, consoles, frames, device)
            print(f"{game:22} {consoles * frames:9,} frames  equal; {distinct} different RAMs at the end", flush=True)
            exact += 1
        except RunError as difference:
            print(f"{game:22} {difference}", flush=True)
    return exact


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Writes the rows as CSV; rows of other games in the file stay."""
    table = {row["game"]: row for row in read_table(path)} if path.exists() else {}
    table.update({row.game: asdict(row) for row in rows})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table[game] for game in sorted(table))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m accel_rl.emulator.verify",
        description=inspect.cleandoc(__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("games", nargs="+", metavar="GAME")
    parser.add_argument("--frames", type=int, default=10_000, metavar="N", help="frames of each seed (10000)")
    parser.add_argument("--seeds", type=int, default=3, metavar="K", help="seeds 1 to K (3)")
    parser.add_argument("--mode-frames", type=int, default=500, metavar="N", help="frames of each mode (500; 0: none)")
    parser.add_argument("--actions", type=Path, metavar="FOLDER", help="recorded actions")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table; its rows of other games stay")
    parser.add_argument("--simulator", choices=["native", "cuda"], default="native", help="what to compare (native)")
    parser.add_argument("--consoles", type=int, default=512, metavar="N", help="consoles on the GPU (512)")
    parser.add_argument("--cuda-frames", type=int, default=200, metavar="N", help="frames of each on the GPU (200)")
    parser.add_argument("--device", default="cuda", help="the GPU; cpu: run its functions on the CPU (cuda)")
    options = parser.parse_args(arguments)
    games = known_games() if options.games == ["all"] else options.games
    plan = Plan(options.frames, options.seeds, options.mode_frames, options.actions)
    try:
        if options.frames % SNAPSHOTS:
            raise UsageError(f"--frames {options.frames} must be a multiple of {SNAPSHOTS}")
        for name in ("jobs", "consoles", "cuda_frames", "seeds"):
            if (number := getattr(options, name)) < 1:
                raise UsageError(f"--{name.replace('_', '-')} {number} must be at least 1")
        if options.actions and not options.actions.is_dir():
            raise UsageError(f"--actions {options.actions} is no folder")
        for game in games:
            game_of(game)
        if options.simulator == "cuda":
            exact = verify_cuda(games, options.consoles, options.cuda_frames, options.device)
            print(f"{exact} of {len(games)} games are equal")
            return 0 if exact == len(games) else 1
        rows = []
        with ProcessPoolExecutor(options.jobs) as pool:
            for row in pool.map(verify, games, [plan] * len(games)):
                rows.append(row)
                compared = row.from_start + row.from_snapshots + row.in_modes + row.recorded
                print(f"{row.game:22} {compared:9,} frames  {row.difference or 'equal'}", flush=True)
                if options.csv:
                    write_table(rows, options.csv)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    exact = sum(not row.difference for row in rows)
    print(f"{exact} of {len(rows)} games are equal")
    return 0 if exact == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
