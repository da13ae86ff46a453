"""One environment as an agent of the queued sampler plays it, its replay, and a slot to draw into."""

from dataclasses import replace
from typing import Any

import numpy as np

from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.samplers.queued.agent_replay import AgentReplay, AgentReplayConfig, auxiliary_layout
from tests.helpers.eventful import EventfulEnv


class AgentEnv(EventfulEnv):
    """An agent's environment, which always steps and is replaced by another one when it fails."""

    def play(self, num_steps: int) -> None:
        if not self.rows:
            self.start()
        while len(self.steps) < num_steps:
            self.step()
            self.steps[-1]["valid"] = True
            if self.is_still:  # it has failed: this step was never taken
                for entries in (self.steps, self.rows, self.ages, self.resets):
                    entries.pop()
                self.pause()

    def without_last_step(self) -> "AgentEnv":
        """Returns the history without the newest step, as the agent's replay can draw from it."""
        rows, ages, resets, steps = self.rows[:-1], self.ages[:-1], self.resets[:-1], self.steps[:-1]
        return replace(self, rows=rows, ages=ages, resets=resets, steps=steps)

    def frame(self) -> Any:
        return super().frame() if self.spec.row_dtype != np.uint8 else self.rng.integers(256, size=self.spec.row_shape)


def append(replay: AgentReplay, env: AgentEnv, start: int, stop: int) -> None:
    """Appends steps from arrays that the next step overwrites, as an agent does."""
    row, last_row = (np.zeros(env.spec.row_shape, env.spec.row_dtype) for _ in range(2))
    for t in range(start, stop):
        step = env.steps[t]
        row[...], last_row[...] = env.rows[t], step["final"]
        ends = step["terminated"], step["truncated"], env.resets[t]
        replay.append(row, env.ages[t], step["action"], step["reward"], *ends, last_row if any(ends[:2]) else None)
        row[...] = last_row[...] = 1


def make_slots(spec: EnvSpec, config: AgentReplayConfig, count: int = 1) -> dict[str, Array]:
    """Returns slots that hold leftovers of an earlier use."""
    layout = auxiliary_layout(spec, config)
    return {name: np.full((count, *shape), 2, dtype) for name, (shape, dtype) in layout.items()}
