"""Chooses the environments' actions, and stores the data of each step for the learner.

Here the policy acts on the CPU; gpu_action_server.py has what differs on a GPU.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.envs.batches.env_batch import select_envs
from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.hardware.devices import restore_generator
from accel_rl.rollout import Game, Policy, RecurrentInputs, Rollout, TerminalFrames
from accel_rl.samplers.base import SamplerConfig
from accel_rl.stacks import blank

# Every rollout shows all of these arrays; final_observation is read only where an episode ended.
PER_STEP = ("observation", "age", "reset", "action", "reward", "terminated", "truncated", "valid")


class ActionServer:
    """A server that chooses actions for T steps of B environments in two groups, and writes them into arrays shared
    with the environments. With an odd B, group 0 has one more; with B = 1, or if num_groups is 1, there is one group.

    Noise is drawn for all environments of a rollout at once, so it does not matter which group is served first. The
    rollout is the shared memory itself. The first config.window rows of `arrays` keep the last steps of earlier
    rollouts for `recent`; self.arrays omits them. Steps are counted over all config.num_learners learners, each with B
    environments. Rollouts of `recent` never hold terminal frames.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        spec: EnvSpec,
        arrays: dict[str, Array],
        generator: torch.Generator,
        config: SamplerConfig,
        num_groups: int = 2,
    ):
        self.spec, self.generator, self.window = spec, generator, config.window
        self._keeps_terminal_frames = config.terminal_frames
        self.arrays = select_envs(arrays, slice(None), config.window)
        self.horizon, self.num_envs = self.arrays["reward"].shape
        self._steps_per_row = self.num_envs * config.num_learners  # agent steps of the whole run
        half = (self.num_envs + 1) // 2
        halves = [slice(0, half), slice(half, self.num_envs)][: self.num_envs]
        self.groups = halves if num_groups == 2 else [slice(0, self.num_envs)]
        self.history = spec.history
        self.shared = {name: torch.as_tensor(array) for name, array in self.arrays.items()}
        # The window's rows come first.
        self._rows = {name: torch.as_tensor(arrays[name]) for name in (*PER_STEP, "final_observation")}
        self._policy_outputs: dict[str, Tensor] = {}
        self._output_places: dict[str, list[list[Tensor]]] = {}
        self._recurrent_inputs: RecurrentInputs | None = None
        self._restarts = self.arrays["restarts"].copy()  # when the last rollout began
        # Views of each group's observations and actions at each step. Making one costs as much as using it.
        self._chosen = [list(self.arrays["action"][:, columns]) for columns in self.groups]
        self._ages = [list(self.arrays["age"][:, columns]) for columns in self.groups]
        self._seen = [[self._view(t, columns) for t in range(self.horizon)] for columns in self.groups]
        self._blanked = [torch.zeros_like(seen[0], memory_format=torch.contiguous_format) for seen in self._seen]
        self.steps_done = 0  # agent steps of the run before this rollout; `collect` may be told another number
        self.bytes_moved = 0  # between host and device so far
        self.gpu_s = 0.0  # seconds that a GPU has worked on actions so far

    # ---- one rollout: begin; for each group T times receive, act and record, then receive; finish ----

    def begin(self, policy: Policy, greedy: bool = False) -> None:
        """Starts a rollout with the last rows of the previous one. Environments must not write before this returns."""
        self._begin_rows(policy, greedy)
        if not greedy:
            noise = policy.draw_noise(self.horizon, self.num_envs, self.generator)
            self._noise = [noise[:, columns].unbind() for columns in self.groups]

    def _begin_rows(self, policy: Policy, greedy: bool) -> None:
        """Starts the rows with the last ones of the previous rollout, for this policy."""
        if policy.state_size and self._recurrent_inputs is None:
            self._recurrent_inputs = self._make_recurrent_inputs(policy.state_size)
        before, self._restarts = self._restarts, self.arrays["restarts"].copy()
        self._restarted: Array = self._restarts != before  # bool [B]: replaced by new ones since the last rollout began
        self.truncate_restarted(self._restarted)
        self._carry_over()
        self._policy, self._greedy = policy, greedy

    def receive(self, group: int, t: int) -> None:
        """Accepts row t, which the group's environments have written: `act` and `recent` see it from now on."""
        if t > 0 and self._recurrent_inputs is not None:
            columns = self.groups[group]
            self._recurrent_inputs.previous_reward[self.window + t, columns] = self.shared["reward"][t - 1, columns]

    def act(self, group: int, t: int) -> None:
        """Chooses the group's actions of step t. The environments may take them once `has_acted` says so."""
        noise, columns = None if self._greedy else self._noise[group][t], self.groups[group]
        recurrent_inputs = self._recurrent_inputs and RecurrentInputs(
            *(rows[self.window + t, columns] for rows in self._recurrent_inputs)
        )
        action, policy_outputs, state = self._policy.act(self._observe(group, t), noise, recurrent_inputs)
        self._chosen[group][t][...] = action.numpy()
        self._newest = (group, t, action, policy_outputs, state)

    def has_acted(self, group: int) -> bool:
        """Returns whether the actions that `act` chose for the group have arrived; on a GPU they come later."""
        return True

    def wait_until_acted(self, group: int) -> None:
        """Waits until `has_acted`."""

    def record(self) -> None:
        """Stores the newest results of `act`. It is a separate call, so that environments can step meanwhile."""
        group, t, action, policy_outputs, state = self._newest
        for name, value in policy_outputs.items():
            self._places_of_output(name, value)[group][t].copy_(value)
        if self._recurrent_inputs is not None and state is not None:
            columns = self.groups[group]
            self._recurrent_inputs.state[self.window + t + 1, columns] = state
            self._recurrent_inputs.previous_action[self.window + t + 1, columns] = action

    def learner_has_worked(self) -> None:
        """Makes `act` use the parameters that a hook has changed; samplers call it after each hook."""

    def finish(self) -> Rollout:
        """Returns the whole rollout on the learner's device, once both groups' last rows have been received."""
        self._truncate_before_lost_steps(self.horizon)
        terminal_frames = self._terminal_frames() if self._keeps_terminal_frames else None
        rollout = self._rollout(self.window, self.horizon, slice(None), self._finished_games(), terminal_frames)
        self.steps_done += self.horizon * self._steps_per_row
        return rollout

    def recent(self, t: int, num_steps: int, envs: slice) -> Rollout:
        """Returns the num_steps <= window + t steps before step t, of environments whose row t has been received."""
        self._truncate_before_lost_steps(t)
        return self._rollout(self.window + t - num_steps, num_steps, envs, [])

    # ---- what differs on a GPU ----

    def _carry_over(self) -> None:
        """Copies the last rows of all arrays to the front."""
        if self.window:
            final, ended = self._rows["final_observation"], self._rows["truncated"][self.horizon :]  # in the window
            final[: self.window][ended] = final[self.horizon :][ended]
        for rows in self._all_rows():
            carry(rows, self.horizon)

    def _all_rows(self) -> list[Tensor]:
        inputs = self._recurrent_inputs[:-1] if self._recurrent_inputs else ()  # the last one, `is_first`, is `reset`
        return [*(self._rows[name] for name in PER_STEP), *self._policy_outputs.values(), *inputs]

    def _make_recurrent_inputs(self, state_size: int) -> RecurrentInputs:
        """Returns rows [window + T + 1, B, ...] of zeros; is_first is the shared memory's `reset`."""
        num_rows, B, action = self.window + self.horizon + 1, self.num_envs, self._rows["action"]
        state = action.new_zeros(num_rows, B, state_size, dtype=torch.float32)
        reward = action.new_zeros(num_rows, B, dtype=torch.float32)
        return RecurrentInputs(state, action.new_zeros(num_rows, *action.shape[1:]), reward, self._rows["reset"])

    def _rows_here(self, name: str, rows: slice, envs: slice) -> Tensor:
        """Returns rows of an array on the learner's device."""
        return self._rows[name][rows, envs]

    def _send(self, tensor: Tensor) -> Tensor:
        """Sends a new tensor from the host to the learner's device."""
        return tensor

    # ---- parts ----

    def _rollout(
        self, first: int, num_steps: int, envs: slice, games: list[Game], terminal_frames: TerminalFrames | None = None
    ) -> Rollout:
        """Returns num_steps steps from row `first` on, where row 0 is the window's first."""
        steps, here = slice(first, first + num_steps), dict[str, Any]()
        for name in PER_STEP:
            more = len(self._rows[name]) - self.window - self.horizon  # rows beyond the steps
            here[name] = self._rows_here(name, slice(first, first + num_steps + more), envs)
        cut_off = self._rows["truncated"][steps, envs] & ~self._rows["terminated"][steps, envs]
        at = cut_off.nonzero(as_tuple=True)
        final_step, final_env = map(self._send, at)
        newest = self._send(self._rows["final_observation"][steps, envs][at])
        recurrent_inputs = self._recurrent_inputs and RecurrentInputs(
            *(rows[first : first + num_steps + 1, envs] for rows in self._recurrent_inputs)
        )
        return Rollout(
            frame_stack=self.spec.frame_stack,
            policy_outputs={name: rows[steps, envs] for name, rows in self._policy_outputs.items()},
            final_step=final_step,
            final_env=final_env,
            final_observation=self._final_observations(here, final_step, final_env, newest),
            observation_rows=here.pop("observation"),
            games=games,
            first_step=self.steps_done + (first - self.window) * self._steps_per_row,
            recurrent_inputs=recurrent_inputs,
            terminal_frames=terminal_frames,
            **here,
        )

    def _rows_of_output(self, name: str, value: Tensor) -> Tensor:
        """Returns the storage of a policy output [window + T, B, ...], allocated at the first call."""
        if name not in self._policy_outputs:
            shape = (self.window + self.horizon, self.num_envs, *value.shape[1:])
            self._policy_outputs[name] = torch.zeros(shape, dtype=value.dtype, device=self.device)
        return self._policy_outputs[name]

    def _places_of_output(self, name: str, value: Tensor) -> list[list[Tensor]]:
        """Returns views of a policy output's storage [b, ...], for each group and step."""
        if name not in self._output_places:
            rows = self._rows_of_output(name, value)[self.window :]
            self._output_places[name] = [list(rows[:, columns].unbind()) for columns in self.groups]
        return self._output_places[name]

    def _view(self, t: int, columns: slice) -> Tensor:
        """Returns a view of what the network sees at row t [b, ...], frames of earlier episodes included."""
        rows = self.shared["observation"][t : t + self.history + 1, columns]
        return rows.transpose(0, 1) if self.spec.frame_stack else rows[0]

    def _observe(self, group: int, t: int) -> Tensor:
        """Returns what the network sees at row t [b, ...]."""
        age, seen = self._ages[group][t], self._seen[group][t]
        if not self.history or age.min() >= self.history:
            return seen
        blanked = self._blanked[group].copy_(seen)  # faster than `blank`: the environments wait
        for env in np.flatnonzero(age < self.history):
            blanked[env, : self.history - age[env]] = 0
        return blanked

    def _final_observations(self, here: dict[str, Tensor], steps: Tensor, envs: Tensor, newest: Tensor) -> Tensor:
        """Returns the complete final observations [K, ...]: the newest frames, after the rows before them."""
        if not len(steps):
            return newest.new_empty((0, *self.spec.input_shape))
        if not self.spec.frame_stack:
            return newest
        before = [here["observation"][steps + 1 + k, envs] for k in range(self.history)]
        return blank(torch.stack([*before, newest], 1), here["age"][steps, envs] + 1)

    def _terminal_frames(self) -> TerminalFrames:
        """Returns the true last frames of the episodes that were terminated in this rollout."""
        step, env = self.shared["terminated"].nonzero(as_tuple=True)
        frame = self.shared["final_observation"][step, env]
        return TerminalFrames(self._send(step), self._send(env), self._send(frame))

    def _finished_games(self) -> list[Game]:
        steps, envs = np.nonzero(self.arrays["game_length"])
        score, length = self.arrays["game_score"][steps, envs], self.arrays["game_length"][steps, envs]
        return [Game(int(e), float(s), int(n)) for e, s, n in zip(envs, score, length, strict=True)]

    def get_state(self) -> dict[str, Any]:
        """Returns, between rollouts, the state from which the next one continues."""
        T = self.horizon
        return {
            "rows": {name: self._rows_here(name, slice(T, None), slice(None)).cpu().clone() for name in PER_STEP},
            "final_observation": self._rows["final_observation"][T:][self._rows["truncated"][T:]].cpu(),
            "policy_outputs": {
                name: rows[T:].cpu().clone() for name, rows in self._policy_outputs.items() if self.window
            },
            "recurrent_inputs": self._recurrent_inputs and [rows[T:].cpu().clone() for rows in self._recurrent_inputs],
            "restarts": self.arrays["restarts"].copy(),
            "generator": self.generator.get_state(),
            "steps_done": self.steps_done,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from get_state's result; random actions restart from their seed on another kind of device."""
        T = self.horizon
        for name, rows in state["rows"].items():
            self._rows[name][T:] = rows
        final = self._rows["final_observation"][T:]
        final[state["rows"]["truncated"]] = state["final_observation"].to(final.device)
        for name, rows in state["policy_outputs"].items():
            self._rows_of_output(name, rows[0])[T:] = rows
        if state["recurrent_inputs"] is not None:
            if self._recurrent_inputs is None:
                self._recurrent_inputs = self._make_recurrent_inputs(state["recurrent_inputs"][0].shape[-1])
            for kept, rows in zip(self._recurrent_inputs, state["recurrent_inputs"], strict=True):
                kept[T:] = rows
        self.arrays["restarts"][:] = state["restarts"]
        self._restarts = self.arrays["restarts"].copy()
        restore_generator(self.generator, state["generator"], "the policy's random actions")
        self.steps_done = state["steps_done"]

    def _truncate_before_lost_steps(self, num_steps: int) -> tuple[Tensor, Tensor]:
        """Truncates each episode whose next step, among the rollout's first num_steps, was lost. Returns the rows and
        environments [K] of the truncated steps.

        A lost step is not valid, although the step before it did not end an episode. That earlier step is truncated,
        and the observation after it becomes its final observation. So the learner computes r + discount V, as at the
        end of a rollout. The window's last step precedes the rollout's first."""
        first = max(self.window - 1, 0)
        steps = slice(first, self.window + num_steps)
        valid, terminated, truncated = (self._rows[name][steps] for name in ("valid", "terminated", "truncated"))
        lost = ~valid[1:]
        if lost.any():
            lost &= valid[:-1] & ~terminated[:-1] & ~truncated[:-1]
        step, env = lost.nonzero(as_tuple=True)
        if len(step):
            truncated[step, env] = True
            seen_after = self._rows["observation"][self.history + first + step + 1, env]
            self._rows["final_observation"][first + step, env] = seen_after
        return first + step, env

    def truncate_restarted(self, restarted: Array | list[int]) -> bool:
        """Truncates the last step of environments (by mask or index) that were restarted between two rollouts, since
        the window still shows that step. Returns whether any step was truncated."""
        if not self.window:
            return False
        rows = self._rows
        chosen = torch.zeros_like(rows["valid"][-1])
        chosen[restarted] = True
        chosen &= rows["valid"][-1] & ~rows["terminated"][-1] & ~rows["truncated"][-1]
        rows["truncated"][-1, chosen] = True
        rows["final_observation"][-1, chosen] = rows["observation"][-1, chosen]
        return bool(chosen.any())

    def close(self) -> None:
        """Releases the server's resources other than memory."""


def carry(rows: Tensor, horizon: int) -> None:
    """Copies the rows beyond the horizon to the front."""
    kept = len(rows) - horizon
    if kept:
        rows[:kept] = rows[horizon:].clone() if horizon < kept else rows[horizon:]
