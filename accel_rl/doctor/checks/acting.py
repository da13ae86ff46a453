"""Acting: what the networks compute, and the actions that are chosen."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from accel_rl.doctor.playback import A2C, CARTPOLE, GRU, LSTM, PONG, REPLAY, Settings, make_config
from accel_rl.doctor.probe import ACTION_TOLERANCE, OUTPUT_TOLERANCE, Probe, check
from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import RecurrentInputs
from accel_rl.training.build import build_algo

NUM_ENVS = 128
BF16_TOLERANCE = 0.05  # of outputs: products are rounded to 8 bits of mantissa

CASES: dict[str, Settings] = {
    "convolutions": {**PONG, **A2C},
    "LSTM": {**CARTPOLE, **A2C, **LSTM},
    "GRU": {**PONG, **A2C, **GRU},
    "dueling Q-network": {**PONG, "algo": "dqn", **REPLAY, "dueling": True},
    "distributional Q-network": {**CARTPOLE, "algo": "categorical_dqn", **REPLAY},
}


class Inputs:
    """What a policy acts on: observations, noise and, for a recurrent one, its state and the step before."""

    def __init__(self, spec: EnvSpec, policy: Any):
        generator = torch.Generator().manual_seed(1)
        shape = (NUM_ENVS, *spec.observation_shape)
        if spec.frame_stack:
            self.observation = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        else:
            self.observation = torch.randn(shape, generator=generator)
        self.noise = policy.draw_noise(1, NUM_ENVS, generator)[0]
        self.recurrent_inputs: RecurrentInputs | None = None
        if policy.state_size:
            self.recurrent_inputs = RecurrentInputs(
                state=torch.randn(NUM_ENVS, policy.state_size, generator=generator).tanh(),
                previous_action=torch.randint(policy.distribution.num_outputs, (NUM_ENVS,), generator=generator),
                previous_reward=torch.randn(NUM_ENVS, generator=generator),
                is_first=torch.rand(NUM_ENVS, generator=generator) < 0.2,
            )

    def on(self, device: torch.device) -> tuple[Tensor, Tensor, RecurrentInputs | None]:
        inputs = self.recurrent_inputs and RecurrentInputs(*(each.to(device) for each in self.recurrent_inputs))
        return self.observation.to(device), self.noise.to(device), inputs


def act(settings: Settings, device: str | torch.device) -> tuple[Tensor, Tensor]:
    """Returns a policy's outputs, side by side, and its actions."""
    config = make_config(settings, device)
    policy = build_algo(config).policy
    if not policy.state_size and hasattr(policy, "epsilon"):
        policy.epsilon = 0.25
    observation, noise, inputs = Inputs(config.spec, policy).on(torch.device(device))
    action, outputs, state = policy.act(observation, noise, inputs)
    with torch.no_grad():
        found = [*outputs.values()] or [policy(observation)]
    found += [] if state is None else [state]
    return torch.cat([each.flatten(1) if each.dim() > 1 else each.unsqueeze(1) for each in found], 1), action


def _compare(probe: Probe, settings: Settings) -> None:
    (found, action), (expected, expected_action) = act(settings, probe.device), act(settings, "cpu")
    probe.close("outputs", found, expected, OUTPUT_TOLERANCE)
    probe.equal("actions", action, expected_action, ACTION_TOLERANCE)


for _name, _settings in CASES.items():
    check(f"act: {_name}", "a network's outputs and actions with the CPU's")(partial(_compare, settings=_settings))


@check("act: bf16", "outputs in bfloat16 with those of the CPU in float32")
def _bf16(probe: Probe) -> None:
    settings = CASES["convolutions"]
    found, expected = act({**settings, "bf16": True}, probe.device)[0], act(settings, "cpu")[0]
    probe.close("outputs", found, expected, BF16_TOLERANCE)
    probe.true("they are rounded to bfloat16", float((found.cpu() - expected).norm() / expected.norm()) > 1e-5)
