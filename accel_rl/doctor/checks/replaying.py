"""A replay on the GPU: what is stored, assembled and drawn, and its sum tree."""

import torch
from torch import Tensor

from accel_rl.doctor.float32 import CpuRandomNumbers
from accel_rl.doctor.playback import PONG, REPLAY, make_config, record
from accel_rl.doctor.probe import Probe, check
from accel_rl.replay import Replay, SumTree

RETURN_TOLERANCE = 1e-6  # three rewards, summed in float32
NUM_LEAVES = 5000  # three levels


def _fill(device: str | torch.device, alpha: float | None) -> Replay:
    """Returns a replay that has been filled and partly overwritten."""
    settings = {**PONG, "algo": "dqn", **REPLAY}
    spec = make_config(settings).spec
    seeded = torch.Generator(device).manual_seed(3)
    replay = Replay(spec, 4, 80, n_step=3, alpha=alpha, generator=seeded, device=device)
    for rollout, _ in record(settings):
        replay.append(rollout)
    return replay


@check("replay: batches", "every sample's frames, final frames, returns and flags with the CPU's")
def _batches(probe: Probe) -> None:
    here, there = _fill("cpu", None), _fill(probe.device, None)
    first = here.ring.first_row
    index = here.ring.index_of(first, first + here.ring.num_steps).flatten()
    expected = here.batch(index, torch.device("cpu"))
    for target in (probe.device, torch.device("cpu")):
        found = there.batch(index.to(probe.device), target)
        for name, value in expected._asdict().items():
            if name == "return_":
                probe.close(name, found.return_, expected.return_, RETURN_TOLERANCE)
            elif isinstance(value, Tensor):
                probe.equal(name, getattr(found, name), value)
    probe.true("there are final frames among them", bool(((expected.bootstrap > 0) & (expected.bootstrap < 1)).any()))


@check("replay: draws", "samples drawn by the same random numbers, uniformly and by priority, with the CPU's")
def _draws(probe: Probe) -> None:
    for alpha in (None, 0.5):
        draws: list[list[Tensor]] = []
        for replay in (_fill("cpu", alpha), _fill(probe.device, alpha)):
            with CpuRandomNumbers():
                found = []
                for index in range(4):
                    drawn, probability = replay.draw(64)
                    found += [drawn] if probability is None else [drawn, probability]
                    # Eighths have exact sums, if not exact roots.
                    replay.update_priorities(drawn, ((drawn + index) % 8 + 1) / 8)
            draws.append(found)
        for found_here, found_there in zip(*draws, strict=True):
            what = "uniform" if alpha is None else "prioritized"
            if found_here.is_floating_point():
                probe.close(f"{what}, probabilities", found_there, found_here, RETURN_TOLERANCE)
            else:
                probe.equal(f"{what}, samples", found_there, found_here)


@check("replay: sum tree", "sums, and the leaf of every part of the total, with those computed one by one")
def _sum_tree(probe: Probe) -> None:
    generator = torch.Generator().manual_seed(0)
    tree, values = SumTree(NUM_LEAVES, probe.device), torch.zeros(NUM_LEAVES, dtype=torch.float64)
    for _ in range(3):
        index = torch.randperm(NUM_LEAVES, generator=generator)[: NUM_LEAVES // 2]
        values[index] = torch.randint(4, index.shape, generator=generator).double()  # whole numbers: sums are exact
        tree.update(index.to(probe.device), values[index].to(probe.device))
    probe.equal("values", tree[:], values)
    probe.equal("total", tree.total, values.sum())
    # The middle of each leaf's own part of the total.
    leaves = values.nonzero().squeeze(1)
    middles = (values.cumsum(0) - values / 2)[leaves]
    probe.equal("leaves", tree.find(middles.to(probe.device)), leaves)
    drawn, probability = tree.sample(1000, torch.Generator(probe.device).manual_seed(0))
    probe.close("probabilities", probability, values[drawn.cpu()] / values.sum(), RETURN_TOLERANCE)
    probe.true("leaves of value 0 are not drawn", bool((values[drawn.cpu()] > 0).all()))
