"""Defines the heads of auxiliary tasks: pixel control and reward prediction (Jaderberg et al. 2017, UNREAL).

They share the layers below with policy and value, so they train these, too. Value replay needs no additional head. Like
the heads of policy and value, they compute in float32.
"""

import math

from torch import Tensor, nn

from accel_rl.models.layers import Linear
from accel_rl.models.trunks import initialize, linear

NUM_MAPS = 32
KERNEL, STRIDE = 4, 2  # deconvolutions


class PixelControlHead(nn.Module):
    """A head that maps features [N, F] to Q [N, A, h, w]: how much each action will change each cell of the picture.

    A hidden layer makes 32 maps of (h / 2 - 1) x (w / 2 - 1). Deconvolutions of 4x4 with stride 2 turn them into h x w
    values V and advantages A, as in a dueling network:  Q_a = V + A_a - mean_a A.  No ReLU follows the deconvolutions,
    since V and A may be negative.
    cells: (h, w), even numbers of at least 4.
    Source: Jaderberg et al. 2017, appendix; Shirahata et al. 2018 (GUNREAL), section 3 and figure 6.
    """

    def __init__(self, num_features: int, num_actions: int, cells: tuple[int, int]):
        super().__init__()
        h, w = cells
        self.maps_shape = (h // STRIDE - 1, w // STRIDE - 1, NUM_MAPS)  # channels-last, as convolutions prefer
        self.hidden = Linear(num_features, math.prod(self.maps_shape))
        initialize(self.hidden)
        # One deconvolution makes value and advantages, the value first.
        self.deconvolution = nn.ConvTranspose2d(NUM_MAPS, 1 + num_actions, KERNEL, STRIDE)
        nn.init.xavier_uniform_(self.deconvolution.weight[:, :1])
        nn.init.xavier_uniform_(self.deconvolution.weight[:, 1:])
        assert self.deconvolution.bias is not None
        nn.init.zeros_(self.deconvolution.bias)

    def forward(self, features: Tensor) -> Tensor:
        maps = self.hidden(features, relu=True).view(-1, *self.maps_shape).permute(0, 3, 1, 2)
        weight, bias = self.deconvolution.weight, self.deconvolution.bias
        assert bias is not None
        # Deconvolutions are linear, so it is cheaper to combine the few weights than the many values.
        return nn.functional.conv_transpose2d(maps, _dueling(weight, 1), _dueling(bias, 0), STRIDE)


def _dueling(parameter: Tensor, axis: int) -> Tensor:
    """Combines V, a parameter's first entry along an axis, and A, the other entries, into  V + A - mean A."""
    value, advantage = parameter.tensor_split((1,), axis)
    return value + advantage - advantage.mean(axis, keepdim=True)


class RewardPredictionHead(nn.Module):
    """A head that maps the convolutions' outputs for three consecutive states [N, 3 F] to logits [N, 3] of the next
    reward's sign: zero, positive, negative.

    Source: Shirahata et al. 2018 (GUNREAL), section 3: two fully connected layers; num_units is 128 in UNREAL."""

    def __init__(self, num_features: int, num_units: int):
        super().__init__()
        self.hidden = Linear(3 * num_features, num_units)
        initialize(self.hidden)
        self.logits = linear(num_units, 3)

    def forward(self, states: Tensor) -> Tensor:
        return self.logits(self.hidden(states, relu=True))  # type: ignore[no-any-return]
