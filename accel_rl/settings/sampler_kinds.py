"""The list of sampler kinds: everything else asks `SAMPLER_KINDS[run.sampler]`. Importing it does not import torch."""

from accel_rl.samplers.kinds import Alternating, Device, SamplerKind, Serial
from accel_rl.samplers.queued.kind import Queued

SAMPLER_KINDS: dict[str, SamplerKind] = {
    "alternating": Alternating(),
    "serial": Serial(),
    "queued": Queued(),
    "device": Device(),
}
