"""Queued sampling: predictors act with the parameters that were published, while the GPU learns."""

import torch

from accel_rl.doctor.playback import CARTPOLE, PONG, Settings, build_parts, make_config, to_device
from accel_rl.doctor.probe import OUTPUT_TOLERANCE, Probe, check
from accel_rl.training.build import build_training_sampler
from accel_rl.training.iteration import Iteration

NUM_BATCHES = 8
# Large steps, so that parameters of another version show. In rounds, by this thread alone: its stream for predictions
# is another one than that for learning.
QUEUED: Settings = {"algo": "ga3c", "sampler": "queued", "learning_rate": 0.05, "min_training_batch": 11}
QUEUED |= {"deterministic": True, "decorrelation_steps": 0}


@check("sample: queued", "outputs of each step, while learning, with the CPU's by the parameters of its version")
def _queued(probe: Probe) -> None:
    for settings in (PONG, CARTPOLE):
        _compare(probe, {**settings, **QUEUED})


def _compare(probe: Probe, settings: Settings) -> None:
    config = make_config(settings, probe.device)
    algo, update = build_parts(config)
    policy = build_parts(make_config(settings))[0].policy
    sampler = build_training_sampler(config, algo)
    iteration, steps = Iteration(sampler, algo, update, config.plan), 0
    states, found, expected = [], [], []
    try:
        for _ in range(NUM_BATCHES):
            states.append({name: value.to("cpu", copy=True) for name, value in algo.policy.state_dict().items()})
            rollout = to_device(iteration.collect_and_learn(steps).rollout, "cpu")
            steps += rollout.num_steps
            version = rollout.policy_outputs["version"]
            for number in sorted({*version[rollout.valid].tolist()}):
                chosen = rollout.valid & (version == number)
                policy.load_state_dict(states[number])
                with torch.no_grad():
                    outputs = policy(rollout.observations(0, rollout.horizon)[chosen])
                expected += [outputs[0], outputs[1].unsqueeze(1)]
                found.append(rollout.policy_outputs["distribution"][chosen])
                found.append(rollout.policy_outputs["value"][chosen].unsqueeze(1))
    finally:
        sampler.close()
        update.close()
    where = settings["env"]
    for index, what in enumerate(("distributions", "values")):
        probe.close(f"{where}: {what}", torch.cat(found[index::2]), torch.cat(expected[index::2]), OUTPUT_TOLERANCE)
    moved = max(float((states[0][name] - value).abs().max()) for name, value in states[-1].items())
    probe.true(f"{where}: parameters change", moved > 1e-3)
