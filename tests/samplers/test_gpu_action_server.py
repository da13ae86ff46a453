"""Tests of the action server of a GPU against the one on the CPU."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.envs import EnvConfig
from accel_rl.hardware import devices
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.rollout import PolicyStep, RecurrentInputs
from accel_rl.samplers import AlternatingSampler, SerialSampler, gpu_action_server
from accel_rl.samplers.base import SamplerConfig, StepHook
from tests.fake_cuda import counting
from tests.helpers.samplers import (
    COUNTING,
    PONG,
    Echo,
    SameNoise,
    assert_equal,
    closing,
    copy,
    make,
    spec_of,
    to_cpu,
    use_gpu_server,
)

CONFIG = SamplerConfig(4, 5, 2, terminal_frames=True)
pytestmark = [pytest.mark.multiprocess, pytest.mark.gpu]
GPU = torch.device("cuda:0")


class Remembers(Echo):
    """Acts by the observation, the noise, its version and all recurrent inputs, in whole numbers, so two devices
    compute the same bits. The learner may change the version at any time."""

    state_size = 2

    def __init__(self, num_actions: int, device: torch.device):
        super().__init__(num_actions)
        self.version = torch.zeros((), dtype=torch.float64, device=device)
        self.noise = torch.rand(32, 8, 8, generator=torch.Generator().manual_seed(0)).to(device)
        self.drawn = 0

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """Draws without waiting for the device, like every policy."""
        self.drawn += 1
        return self.noise[self.drawn, :num_steps, :num_envs]

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        assert recurrent_inputs is not None
        digest = observation.flatten(1)[:, :2].double().sum(1) + self.version
        state, action, reward, is_first = recurrent_inputs
        before = state[:, 0] + 3 * state[:, 1] + 5 * action + 7 * reward
        memory = before.where(~is_first, 0.0).remainder(64)
        noise = torch.zeros(len(observation), device=observation.device) if noise is None else noise
        chosen = (digest + memory + (1000 * noise).floor()).long() % self.num_actions
        state = torch.stack([memory, digest.remainder(16)], 1).float()
        return chosen, {"memory": memory, "digest": digest}, state


def on_gpu(
    env: EnvConfig, policy: Any = None, config: SamplerConfig = CONFIG, graphs: bool = True, **batch: Any
) -> Any:
    return use_gpu_server(make(AlternatingSampler, env, config, policy, **batch), GPU, graphs)


@pytest.mark.parametrize(
    ("env", "reset_mode"),
    [
        pytest.param(COUNTING, "immediate", id="counting-immediate"),
        pytest.param(COUNTING, "wait", id="counting-wait"),
    ],
)
def test_rollouts_are_those_of_the_cpu(env: EnvConfig, reset_mode: str) -> None:
    """Rollouts of the GPU's action server equal the CPU's, even after a state was set."""
    batch = {"reset_mode": reset_mode, "decorrelation_steps": 10}
    num_actions, num_terminated = 4 if env is COUNTING else 6, 0
    cpu = make(AlternatingSampler, env, CONFIG, SameNoise(num_actions), **batch)
    gpu = on_gpu(env, SameNoise(num_actions), **batch)
    with closing(cpu, gpu):
        for index in range(5):  # the third captures a graph
            first, second = cpu.collect(), gpu.collect()
            assert {each.device for each in second.terminal_frames} == {GPU}
            assert_equal(first, to_cpu(second), f"rollout {index}")
            num_terminated += len(first.terminal_frames.step)
        assert (num_terminated > 0) == (env is COUNTING)
        state = gpu.get_state()
        cpu.set_state(cpu.get_state())
        gpu.set_state(state)
        for index in range(2):
            assert_equal(cpu.collect(), to_cpu(gpu.collect()), f"rollout {index} after a state was set")


def test_a_network_that_can_not_be_captured() -> None:
    """A network that cannot be captured runs without graphs."""

    class Looks(SameNoise):
        def act(
            self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
        ) -> PolicyStep:
            assert float(observation.float().mean()) >= 0
            return super().act(observation, noise)

    sampler = on_gpu(COUNTING, Looks(4))
    with closing(sampler):
        for _ in range(4):
            sampler.collect()
        assert not sampler._server._use_graphs


WINDOW = SamplerConfig(8, 5, 2, window=4)


def remembering(device: torch.device) -> Any:
    """Returns an AlternatingSampler with a GPU's server, or a SerialSampler on the CPU."""
    batch = {"reset_mode": "wait", "decorrelation_steps": 5}
    if device.type == "cpu":
        return make(SerialSampler, COUNTING, WINDOW, Remembers(4, device), **batch)
    return on_gpu(COUNTING, Remembers(4, device), WINDOW, **batch)


def collect_and_learn(sampler: Any) -> list[Any]:
    """Returns the rollout and what its hooks have seen; the hooks change the policy by it, some of them before a group
    acts."""
    seen = []

    def held(t: int) -> slice | None:
        return [slice(0, 4), None, slice(2, 7), slice(5, 8)][t % 4]

    def on_step(t: int) -> None:
        recent = sampler.recent(t, 4, held(t) or slice(0, 8))
        recent = to_cpu(recent) if t % 2 else copy(recent)  # Only to_cpu waits for the device.
        with torch.no_grad():
            sampler.policy.version.add_((recent.reward * recent.valid).sum().to(sampler.policy.version.device))
        seen.append(recent)

    rollout = sampler.collect(StepHook(on_step, envs_to_update=held))
    return [to_cpu(each) for each in (rollout, *seen)]


def test_hooks_see_and_change_what_they_do_on_the_cpu() -> None:
    """Hooks read the same steps and change the policy at the same step as on the CPU, even after a state was set."""
    cpu, gpu = remembering(torch.device("cpu")), remembering(GPU)
    with closing(cpu, gpu):
        for index in range(4):
            for first, second in zip(collect_and_learn(cpu), collect_and_learn(gpu), strict=True):
                assert_equal(first, second, f"rollout {index}")
        state = cpu.get_state()
        for _ in range(2):
            collect_and_learn(gpu)  # goes its own way for a while
        gpu.policy.version.copy_(cpu.policy.version)
        gpu.policy.drawn = cpu.policy.drawn
        for sampler in (cpu, gpu):
            assert sampler.set_state(state) == []
        for index in range(3):
            for first, second in zip(collect_and_learn(cpu), collect_and_learn(gpu), strict=True):
                assert_equal(first, second, f"rollout {index} after a state was set")


def test_graphs_follow_the_policy() -> None:
    """A replaced policy and greedy actions get a new graph, and the rollouts equal the CPU's."""
    samplers = [remembering(torch.device("cpu")), remembering(GPU)]
    with closing(*samplers):
        for index in range(9):
            if index == 4:
                for sampler in samplers:
                    sampler.policy = Remembers(4, sampler.policy.version.device)
                    sampler.policy.version.add_(1)
            for sampler in samplers:
                begin = partial(type(sampler._server).begin, sampler._server)
                sampler._server.begin = lambda policy, _, begin=begin, index=index: begin(policy, greedy=index >= 6)
            assert_equal(*(to_cpu(sampler.collect()) for sampler in samplers), f"rollout {index}")
            assert (samplers[1]._server._on_device[0].graph is None) == (index in (0, 4, 6))


def test_memory_stays_pinned_while_the_gpu_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory is unpinned only after all streams have ended their work."""
    sampler, idle = remembering(GPU), []
    streams = [group.stream for group in sampler._server._on_device]

    def unpin(address: int) -> None:
        idle.append([stream.query() for stream in streams])
        devices.unpin(address)

    monkeypatch.setattr(gpu_action_server, "unpin", unpin)
    with closing(sampler):
        sampler.collect()
    assert idle == [[True, True]]


@pytest.mark.parametrize("slow", [0, 1])
def test_no_group_waits_for_what_the_gpu_does_for_the_other(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server serves one group while the GPU computes the other's actions. Here one group's actions are ready only
    once the other's are requested, so a server that waits would wait forever."""
    T, asked = 5, [0, 0]
    sampler = on_gpu(COUNTING, SameNoise(4), SamplerConfig(4, T, 2, env_timeout_s=20))
    server = sampler._server
    act, has_acted = server.act, server.has_acted

    def counted(group: int, t: int) -> None:
        asked[group] += 1
        act(group, t)

    with closing(sampler):
        sampler.collect()
        monkeypatch.setattr(server, "act", counted)
        monkeypatch.setattr(
            server, "has_acted", lambda group: has_acted(group) and (group != slow or asked[1 - slow] >= asked[slow])
        )
        for _ in range(3):
            sampler.collect()
        assert asked == [3 * T, 3 * T]


def test_captured_actions_spread_as_the_policy_says() -> None:
    """A captured policy uses new noise in each step and rollout, so in one state its actions spread like its
    distribution. (Graphs that repeat the noise of their capture: pytorch/rl, issue 3002.)."""
    env = EnvConfig("Pendulum-v1")
    policy = ActorCritic(spec_of(env), None).to(GPU)
    with torch.no_grad():
        for parameter in policy.parameters():  # whatever it sees, the mean is 0 and the std 1
            parameter.zero_()
    sampler = on_gpu(env, policy, SamplerConfig(64, 16, 2))
    with closing(sampler):
        for _ in range(3):
            sampler.collect()
        rollouts = [to_cpu(sampler.collect()).action.flatten() for _ in range(2)]
        assert all(group.graph for group in sampler._server._on_device)
    for action in rollouts:
        assert len(action) == 1024 and len(action.unique()) > 1000
        assert abs(float(action.mean())) < 0.2 and 0.9 < float(action.std()) < 1.1
    assert sum(value in rollouts[0] for value in rollouts[1]) < 5  # One may occur by chance.


@pytest.mark.gpu(fake=True)
def test_a_step_is_two_uploads_a_graph_and_a_download() -> None:
    """A step of a group takes two uploads, a graph and a download. Each frame goes up once."""
    T, G, B, frame = 20, 2, 8, 16 * 16
    sampler = on_gpu(PONG, SameNoise(6), SamplerConfig(B, T, 2), reset_mode="reserve")
    with closing(sampler):
        for _ in range(3):
            sampler.collect()
        with counting() as counts:
            num_finals = len(sampler.collect().final_step)
    assert counts.graphs == counts.down.total() == T * G > counts.launches
    assert counts.up["pinned"] == 2 * (T + 1) * G + 1, "and the noise"
    packed, noise = (T + 1) * B * 16, T * B * 4
    assert counts.up_bytes == T * B * frame + packed + noise + num_finals * (8 + 8 + frame)
    assert counts.syncs.total() <= T * G + 1, "the host waits for actions, and once for final observations"
