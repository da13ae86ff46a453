"""Sampling: rollouts of a policy whose every action depends on all that it was given, exactly those of the CPU."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from accel_rl.doctor.playback import CARTPOLE, PONG, Settings, make_config, to_device
from accel_rl.doctor.probe import Probe, check
from accel_rl.rollout import PolicyStep, RecurrentInputs, Rollout
from accel_rl.training.build import build_sampler

NUM_ROLLOUTS = 4  # graphs are captured at the second one
WINDOW = 7  # steps of `recent`, more than a rollout has


class Digest:
    """Chooses actions by a number that it computes, in whole numbers and so exactly, from all that it is given.

    A frame, a state or noise of another row changes all actions that follow."""

    state_size = 3

    def __init__(self, num_actions: int):
        self.num_actions, self._num_drawn = num_actions, 0

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """Draws the same numbers on every device."""
        self._num_drawn += 1
        own = torch.Generator("cpu").manual_seed(self._num_drawn)
        return torch.randint(1000, (num_steps, num_envs), generator=own).to(generator.device)

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        assert noise is not None and recurrent_inputs is not None
        values = (observation.flatten(1).double() * 2**10).round()
        digest = (values * torch.arange(1, values.shape[1] + 1, device=values.device)).sum(1)
        inputs = recurrent_inputs
        memory = (inputs.state.double().sum(1) + inputs.previous_action + inputs.previous_reward) * ~inputs.is_first
        digest = (digest + 7 * memory + noise).remainder(9973)
        action = digest.long() % self.num_actions
        return action, {"digest": digest}, digest.float().unsqueeze(1).expand(-1, self.state_size).contiguous()


def sample(settings: Settings, device: str | torch.device, graphs: bool = True) -> list[Rollout]:
    """Returns rollouts, copied, and after each what `recent` showed in it; the sampler is saved and restored midway."""
    config = make_config(settings, device, graphs=graphs)
    found: list[Rollout] = []
    policy = Digest(int(config.spec.action_space.n))  # type: ignore[attr-defined]
    sampler: Any = build_sampler(config, policy, window=WINDOW)

    def on_step(t: int) -> None:
        if t == 3:
            found.append(to_device(sampler.recent(t, WINDOW, slice(0, config.run.envs)), "cpu"))

    try:
        for index in range(NUM_ROLLOUTS + 2):
            if index == NUM_ROLLOUTS:
                sampler.set_state(sampler.get_state())
            rollout = sampler.collect(on_step, 1, None, lambda t: slice(0, config.run.envs) if t == 3 else None)
            found.append(to_device(rollout, "cpu"))
    finally:
        sampler.close()
    return found


def _compare(probe: Probe, sampler: str, graphs: bool) -> None:
    for settings in (PONG, CARTPOLE):
        own = {**settings, "algo": "a2c", "sampler": sampler} | ({"workers": 2} if sampler == "alternating" else {})
        found = sample(own, probe.device, graphs)
        for index, (one, other) in enumerate(zip(found, sample({**settings, "algo": "a2c"}, "cpu"), strict=True)):
            _compare_rollouts(probe, f"{settings['env']}, {index}", one, other)


def _compare_rollouts(probe: Probe, where: str, found: Rollout, expected: Rollout) -> None:
    assert found.recurrent_inputs and expected.recurrent_inputs
    for name, value in vars(expected).items():
        if isinstance(value, Tensor):
            probe.equal(f"{where}: {name}", getattr(found, name), value)
    for name, value in expected.policy_outputs.items():
        probe.equal(f"{where}: {name}", found.policy_outputs[name], value)
    for name, one, other in zip(
        RecurrentInputs._fields, found.recurrent_inputs, expected.recurrent_inputs, strict=True
    ):
        probe.equal(f"{where}: {name}", one, other)
    probe.true(f"{where}: games", found.games == expected.games)


for _sampler in ("serial", "alternating"):
    for _graphs in (False, True):
        _function = partial(_compare, sampler=_sampler, graphs=_graphs)
        _name = f"sample: {_sampler}{', CUDA graphs' if _graphs else ''}"
        check(_name, "frames, actions and all else of rollouts with the CPU's, exactly")(_function)
