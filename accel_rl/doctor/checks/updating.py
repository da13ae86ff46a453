"""Updates: what an algorithm learns from recorded rollouts, on the CPU, on the GPU, and there with CUDA graphs."""

from functools import partial

import torch

from accel_rl.doctor.float32 import CpuRandomNumbers
from accel_rl.doctor.playback import A2C, AUXILIARY, CARTPOLE, GRU, LSTM, PONG, PPO, REPLAY, VTRACE, Settings, learn
from accel_rl.doctor.probe import GRAPH_TOLERANCE, UPDATE_TOLERANCE, Probe, check

# bfloat16 leaves 8 bits of mantissa, and a policy's gradient is a sum of positive and negative parts: two devices, or
# float32 and bfloat16, may differ by several percent.
BF16_TOLERANCE = 0.25

CASES: dict[str, Settings] = {
    "A2C": {**PONG, **A2C},
    "A2C, LSTM": {**CARTPOLE, **A2C, **LSTM},
    "A2C, LSTM, auxiliary tasks": {**PONG, **A2C, **LSTM, **AUXILIARY},
    "PPO": {**PONG, **PPO},
    "PPO, normalized": {**CARTPOLE, **PPO, "normalize_observations": True, "normalize_returns": True},
    "V-trace": {**PONG, **VTRACE},
    "V-trace, GRU": {**CARTPOLE, **VTRACE, **GRU},
    "DQN": {**PONG, "algo": "dqn", **REPLAY},
    "DQN, prioritized": {**PONG, "algo": "dqn", **REPLAY, "prioritized": True, "double": True, "dueling": True},
    "DQN, replay on the CPU": {**CARTPOLE, "algo": "dqn", **REPLAY, "prioritized": True, "replay_device": "cpu"},
    "Categorical DQN": {**CARTPOLE, "algo": "categorical_dqn", **REPLAY},
    "n-step Q": {**PONG, "algo": "n_step_q", "target_interval_steps": 60},
    "one-step Sarsa": {**CARTPOLE, "algo": "one_step_sarsa", "target_interval_steps": 60},
}


def _compare_with_cpu(probe: Probe, settings: Settings) -> None:
    expected = learn(settings, "cpu")
    probe.true("the parameters change", float(expected.norm()) > 0)
    with CpuRandomNumbers():
        found = learn(settings, probe.device, graphs=False)
    probe.close("change of the parameters", found, expected, UPDATE_TOLERANCE)


def _compare_graphs(probe: Probe, settings: Settings) -> None:
    found, expected = (learn(settings, probe.device, graphs=graphs) for graphs in (True, False))
    probe.close("change of the parameters", found, expected, GRAPH_TOLERANCE)


for _name, _settings in CASES.items():
    _function = partial(_compare_with_cpu, settings=_settings)
    check(f"update: {_name}", "what updates change, operation by operation, with the CPU")(_function)
for _name, _settings in CASES.items():
    _function = partial(_compare_graphs, settings=_settings)
    check(f"graphs: {_name}", "what updates change, as CUDA graphs, with operation by operation")(_function)


@check("update: bf16", "what updates in bfloat16 change, with the CPU in float32")
def _bf16(probe: Probe) -> None:
    expected = learn(CASES["A2C"], "cpu")
    for graphs in (False, True):
        found = learn({**CASES["A2C"], "bf16": True}, probe.device, graphs=graphs)
        what = f"change of the parameters{', CUDA graphs' if graphs else ''}"
        probe.close(what, found, expected, BF16_TOLERANCE)
        probe.true(f"{what}: not that of float32", float((found - expected).norm() / expected.norm()) > 1e-5)


@check("update: deterministic", "updates in deterministic mode with the same ones again, exactly")
def _deterministic(probe: Probe) -> None:
    for name in ("A2C", "DQN, prioritized"):
        torch.use_deterministic_algorithms(True)
        first, second = (learn(CASES[name], probe.device) for _ in range(2))
        torch.use_deterministic_algorithms(False)
        probe.equal(name, first, second)
        probe.close(f"{name}, with any algorithms", first, learn(CASES[name], probe.device), UPDATE_TOLERANCE)
