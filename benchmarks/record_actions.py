"""Records what a trained policy presses in an Atari game, frame by frame, for `python -m accel_rl.emulator.verify`.

python benchmarks/record_actions.py RUN_DIR --out pong.actions [--frames 20000]
"""

import sys
from pathlib import Path
from typing import Any

from accel_rl import load
from accel_rl.emulator.play import format_actions
from accel_rl.envs import make_env
from command_line import make_parser, run_program


class RecordedEmulator:
    """Hands everything to ale-py, and remembers the actions."""

    def __init__(self, ale: Any):
        self._ale = ale
        self.actions: list[int] = []

    def act(self, action: Any) -> Any:
        self.actions.append(int(action.value))
        return self._ale.act(action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ale, name)


def record(run_dir: Path, out: Path, frames: int) -> None:
    """Plays whole games, one after the other, until so many frames are recorded."""
    agent = load(run_dir)
    env = make_env(agent.config.env.env_id, simulator="ale")
    simulator = env._simulator  # type: ignore[attr-defined]
    recorded = simulator.ale = RecordedEmulator(simulator.ale)
    observation, _ = env.reset()
    act = agent.player()
    reward: Any = 0.0
    scores, score = [], 0.0
    while len(recorded.actions) < frames:
        observation, reward, terminated, truncated, info = env.step(act(observation, reward))
        score += float(info.get("score", reward))
        if terminated or truncated:
            if info.get("game_over", True):
                scores.append(score)
                act, reward = agent.player(), 0.0
                score = 0.0
            observation, _ = env.reset()
    out.write_text(f"# {agent.config.env.env_id}: games of {scores}\n{format_actions(recorded.actions[:frames])}")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--frames", type=int, default=20_000, metavar="N", help="frames (20000)")
    return run_program(lambda: record(**vars(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
