"""The action server of a GPU: against the one on the CPU. Where there is no GPU, it runs on the CPU, without graphs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.envs import EnvConfig
from accel_rl.hardware.timers import DeviceTimer
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.rollout import PolicyStep, RecurrentInputs
from accel_rl.samplers import AlternatingSampler
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.gpu_action_server import GpuActionServer
from tests.helpers.samplers import TOYS, Echo, assert_equal, copy, make

COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4, 2, -1, 7], "seeded": True})
PONG = EnvConfig("pong", options={"max_episode_steps": 9, "noop_max": 3})
CONFIG = SamplerConfig(4, 5, 2)
pytestmark = pytest.mark.multiprocess
DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda:0"), marks=pytest.mark.gpu)]


class SameNoise(Echo):
    """Noise is drawn on the CPU wherever it is used, so that two devices act alike."""

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        self.drawn = getattr(self, "drawn", 0) + 1
        return torch.rand(num_steps, num_envs, generator=torch.Generator().manual_seed(self.drawn))


class Network(SameNoise):
    """A3C-Net, with the noise of SameNoise."""

    def __init__(self, spec: Any, device: torch.device):
        super().__init__(6)
        torch.manual_seed(0)
        self.network = ActorCritic(spec).to(device)

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        return self.network.act(observation, noise)


def on_device(
    env: EnvConfig,
    device: torch.device,
    policy: Any = None,
    config: SamplerConfig = CONFIG,
    graphs: bool = True,
    **b: Any,
) -> Any:
    """An AlternatingSampler that is served by a GpuActionServer."""
    sampler = make(AlternatingSampler, env, config, policy, **b)
    server = sampler._server
    sampler._server = GpuActionServer(
        sampler.spec,
        sampler.pool._train.arrays,
        server.generator,
        device,
        config.window,
        sampler.pool._train.memory,
        graphs,
    )
    return sampler


def to_cpu(rollout: Any) -> Any:
    rollout = copy(rollout)
    for name, value in vars(rollout).items():
        if isinstance(value, Tensor):
            setattr(rollout, name, value.cpu())
    rollout.policy_outputs = {name: value.cpu() for name, value in rollout.policy_outputs.items()}
    return rollout


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize(
    ("env", "reset_mode"),
    [
        (COUNTING, "immediate"),
        (COUNTING, "wait"),
        (PONG, "reserve"),
        pytest.param(PONG, "immediate", marks=pytest.mark.slow),
        pytest.param(PONG, "wait", marks=pytest.mark.slow),
    ],
    ids=["counting-immediate", "counting-wait", "pong-reserve", "pong-immediate", "pong-wait"],
)
def test_rollouts_are_those_of_the_cpu(env: EnvConfig, reset_mode: str, device: torch.device) -> None:
    """Would catch a frame, age, noise or action in the wrong row, and anything that a graph has frozen at capture."""
    batch = {"reset_mode": reset_mode, "decorrelation_steps": 10}
    num_actions = 4 if env is COUNTING else 6
    cpu = make(AlternatingSampler, env, CONFIG, SameNoise(num_actions), **batch)
    gpu = on_device(env, device, SameNoise(num_actions), **batch)
    try:
        for index in range(8):
            assert_equal(cpu.collect(), to_cpu(gpu.collect()), f"rollout {index}")
        state = gpu.get_state()
        cpu.set_state(cpu.get_state())
        gpu.set_state(state)
        for index in range(3):
            assert_equal(cpu.collect(), to_cpu(gpu.collect()), f"rollout {index} after a state was set")
    finally:
        cpu.close()
        gpu.close()


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_frames_go_up_once(device: torch.device) -> None:
    """Would catch a frame that is transferred again for learning, or for the next rollout."""
    sampler = on_device(PONG, device, SameNoise(6), reset_mode="reserve")
    try:
        T, B, frame = 5, 4, 104 * 80
        before = 0
        for index in range(4):
            sampler.collect()
            moved, before = sampler.bytes_moved - before, sampler.bytes_moved
            frames = T * B * frame + (B * frame if index == 0 else 0)  # the very first row has not been there before
            ages, actions, flags = (T + 1) * B * 8, T * B * 8, T * B * (4 + 3) + (T + 1) * B
            assert moved == frames + ages + actions + flags
    finally:
        sampler.close()


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_the_networks_actions_are_those_of_the_cpu(device: torch.device) -> None:
    """Would catch two paths that do not compute the same thing; distributions may differ by rounding."""
    env = EnvConfig("pong")
    cpu = make(AlternatingSampler, env, CONFIG, Echo(6))
    spec = cpu.spec
    cpu.policy = Network(spec, torch.device("cpu"))
    gpu = on_device(env, device, Network(spec, device))
    try:
        for _ in range(4):
            first, second = cpu.collect(), to_cpu(gpu.collect())
            assert torch.allclose(
                first.policy_outputs["distribution"], second.policy_outputs["distribution"], atol=1e-4
            )
            assert torch.equal(first.action, second.action)
    finally:
        cpu.close()
        gpu.close()


@pytest.mark.gpu
def test_graphs_act_like_single_operations() -> None:
    """Would catch a graph that has captured less than what is done without."""
    device = torch.device("cuda:0")
    env = EnvConfig("pong")
    spec = make(AlternatingSampler, env, CONFIG, Echo(6))
    samplers = [on_device(env, device, Network(spec.spec, device), graphs=graphs) for graphs in (True, False)]
    try:
        for _ in range(6):
            first, second = (to_cpu(sampler.collect()) for sampler in samplers)
            assert_equal(first, second)
        assert samplers[0]._server._on_device[0].graph and not samplers[1]._server._on_device[0].graph
    finally:
        for sampler in [spec, *samplers]:
            sampler.close()


@pytest.mark.gpu
def test_a_network_that_can_not_be_captured() -> None:
    """Would catch a run that ends because of a network that looks at its values."""

    class Looks(SameNoise):
        def act(
            self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
        ) -> PolicyStep:
            assert float(observation.float().mean()) >= 0
            return super().act(observation, noise)

    sampler = on_device(PONG, torch.device("cuda:0"), Looks(6))
    try:
        for _ in range(4):
            sampler.collect()
        assert not sampler._server._use_graphs
    finally:
        sampler.close()


def test_the_clock_adds_up() -> None:
    """Would catch time that is counted twice, or lost between two readings."""
    clock = DeviceTimer(torch.device("cpu"))
    clock._mark = iter([1.0, 2.5, 4.0, 4.25]).__next__  # type: ignore[method-assign]
    with clock:
        pass
    with clock:
        pass
    assert clock.read() == 1.75
    assert clock.read() == 0.0
