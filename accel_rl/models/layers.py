"""Defines convolutions and linear layers that are fast on CPUs, and on GPUs in bfloat16. In float64 they are PyTorch's.

They have the parameters, names and results of `nn.Conv2d` and `nn.Linear`. Policies act in inference mode. In this mode
on a CPU, they prepare weights once after each change (cast, in oneDNN's own layout) and fuse the ReLU that follows.
Learning in bfloat16 also casts weights once per change (on a GPU see bf16_weights.py); gradients of parameters are
float32. Learning in float32 uses PyTorch, which is as fast except for large matrix products on AMD processors.

bfloat16 is switched on as usual, by `torch.autocast`.
"""

from collections import Counter
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from accel_rl.models import onednn
from accel_rl.models.onednn import Pair
from accel_rl.models.prepared import Operands, PreparedTensors
from accel_rl.stacks import interleaved, is_exporting

MIN_WEIGHTS = 2**14  # smaller linear layers gain nothing
MIN_FLOATS = 2**17  # nor do smaller ones in float32: a call of oneDNN takes 24 microseconds, one of MKL takes 5


def accelerate(network: nn.Module) -> None:
    """Replaces a network's convolutions and large linear layers with those of this module, in place.

    In an nn.Sequential, ReLUs that follow them are fused. Parameters, their names and all results stay the same. Layers
    that are shared, have hooks or belong to a class derived from PyTorch's stay unchanged."""
    uses = Counter(module for _, module in network.named_modules(remove_duplicate=False))
    for layer, count in uses.items():
        if type(layer) is nn.Sequential:
            layer.__class__ = Sequential
        elif count == 1 and not has_hooks(layer):
            if type(layer) is nn.Conv2d and _is_plain(layer):
                layer.__class__ = Conv2d
                vars(layer)["prepared"] = PreparedTensors()
            elif type(layer) is nn.Linear and layer.weight.numel() >= MIN_WEIGHTS:
                layer.__class__ = Linear
                vars(layer)["prepared"] = PreparedTensors()


def expect_changes(network: nn.Module) -> None:
    """Tells a network's layers that their parameters change after almost every act.

    Large weights are then not packed, since packing takes the time that several acts on packed weights save."""
    for layer in network.modules():
        if isinstance(layer, Linear):
            layer.packs = False


def unaccelerated(network: nn.Module) -> dict[str, str]:
    """Returns the layers with weights that `accelerate` did not replace, except small linear ones: name -> class.

    They compute like PyTorch, and in bfloat16 cast their weights in every call."""
    return {
        name: type(layer).__name__
        for name, layer in network.named_modules()
        if any(parameter.dim() > 1 for parameter in layer.parameters(recurse=False))
        and not isinstance(layer, Conv2d | Linear)
        and not (type(layer) is nn.Linear and layer.weight.numel() < MIN_WEIGHTS)
    }


class Sequential(nn.Sequential):
    """A sequence of layers, in which the layers of this module compute the ReLUs that follow them."""

    def forward(self, x: Tensor) -> Tensor:
        layers = pairwise((*self, None))
        for layer, next_layer in layers:
            is_pair = isinstance(layer, (Conv2d, Linear)) and type(next_layer) is nn.ReLU
            if is_pair and not has_hooks(layer) and not has_hooks(next_layer):
                x = layer(x, relu=True)
                next(layers)
            else:
                x = layer(x)
        return x


def has_hooks(module: nn.Module) -> bool:
    """Returns whether a call of the module does more than its `forward`."""
    before = module._forward_pre_hooks or module._backward_pre_hooks
    return bool(before or module._forward_hooks or module._backward_hooks)


def _is_plain(layer: nn.Conv2d) -> bool:
    """Returns whether this convolution has no dilation, no groups, and zeros for padding."""
    is_dense = layer.groups == 1 and layer.dilation == (1, 1)
    return is_dense and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _dtype_of(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """Returns the precision in which one of these layers computes; None: PyTorch's own layer computes."""
    device = x.device.type
    if weight.dtype != torch.float32 or is_exporting():
        return None
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        return dtype if dtype == torch.bfloat16 else None
    return torch.float32 if device == "cpu" and x.dtype in (torch.float32, torch.uint8) else None


def _cast(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, scale: float = 1.0) -> Operands:
    """Returns a layer's scaled weight and its bias in this precision; on a GPU, the network's copies if it has them."""
    if weight.is_cuda and hasattr(weight, "bf16"):
        return weight.bf16, getattr(bias, "bf16", None)
    weight = weight.detach()
    weight = weight if scale == 1 else weight * scale
    return weight.to(dtype), None if bias is None else bias.detach().to(dtype)


# ---- linear layers ----


class Linear(nn.Linear):
    """A layer that computes x weight^T + bias [N, M] of x [N, K], and optionally a ReLU."""

    packs = True  # packs the weight for acting

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs)
        self.prepared = PreparedTensors()

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        dtype = _dtype_of(x, self.weight) if x.dim() == 2 else None
        if dtype is None or (dtype == torch.float32 and self.is_small) or not (x.is_cuda or onednn.multiplies(dtype)):
            return self._plain(x, relu)
        if torch.is_inference_mode_enabled():
            return _multiply(x.to(dtype), *self.operands(dtype, len(x) if self.packs else 0), relu=relu)
        if dtype == torch.float32 and not onednn.prefers_products():
            return self._plain(x, relu)
        if torch.is_grad_enabled():
            return _Product.apply(x.to(dtype), self.weight, self.bias, self, relu)  # type: ignore[no-any-return,no-untyped-call]
        return _multiply(x.to(dtype), *self.operands(dtype), relu=relu)

    @property
    def is_small(self) -> bool:
        """True if PyTorch's own product is faster in float32, since a call of oneDNN takes longer than it saves."""
        return self.in_features * self.out_features < MIN_FLOATS

    def _plain(self, x: Tensor, relu: bool) -> Tensor:
        y = super().forward(x)
        return torch.relu(y) if relu else y

    def operands(self, dtype: torch.dtype, packed_for: int = 0) -> Operands:
        """Returns weight and bias in this precision; on a CPU, packs the weight for packed_for samples unless 0."""
        if self.weight.is_cuda:
            return _cast(self.weight, self.bias, dtype)

        def make() -> Operands:
            if packed_for:
                weight, bias = self.operands(dtype)
                return onednn.pack_product(weight, packed_for), bias
            return _cast(self.weight, self.bias, dtype)

        return self.prepared.get((dtype, packed_for), make, self.weight, self.bias)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """Returns x weight^T + bias [N, M] of x [N, K], weight [M, K] and bias [M]."""
    if not x.is_cuda:
        return onednn.multiply(x, weight, bias, relu=relu)
    y = F.linear(x, weight, bias)
    return y.relu_() if relu else y


class _Product(torch.autograd.Function):
    """A product of x [N, K] and a layer's weight, with its bias and ReLU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Linear, relu: bool) -> Tensor:
        used, used_bias = layer.operands(x.dtype)
        y = _multiply(x, used, used_bias, relu=relu)
        ctx.save_for_backward(x, used, y if relu else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        x, weight, y = ctx.saved_tensors
        if y is not None:
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        x_gradient = _multiply(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        weight_gradient = _multiply(gradient.t(), x.t()).to(torch.float32)
        bias_gradient = gradient.sum(0, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        return x_gradient, weight_gradient, bias_gradient, None, None


# ---- convolutions ----


class Conv2d(nn.Conv2d):
    """A convolution of images float [N, C, H, W], with an optional ReLU.

    A subclass may join groups of g neighboring pixels of a row into one pixel with g times the channels.
    """

    scale = 1.0  # factor of the weights
    num_products = 0  # multiplications by weights for one image; 0: unknown

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.prepared = PreparedTensors()

    def forward(self, image: Tensor, relu: bool = False) -> Tensor:
        dtype = _dtype_of(image, self.weight) if image.dim() == 4 else None
        # PyTorch's own layer is as fast there.
        learns_in_float32 = dtype == torch.float32 and not torch.is_inference_mode_enabled()
        if dtype is None or learns_in_float32 or not (image.is_cuda or onednn.convolves(dtype)):
            y = self._plain(image)
            return torch.relu(y) if relu else y
        x, group = self._grouped(image, dtype)
        if torch.is_grad_enabled():
            return _Convolution.apply(x, self.weight, self.bias, self, group, relu)  # type: ignore[no-any-return,no-untyped-call]
        operands = self.operands(dtype, group, x.shape if torch.is_inference_mode_enabled() else None)
        return _convolve(x, *operands, *self.geometry(group), relu=relu)

    def _plain(self, image: Tensor) -> Tensor:
        return super().forward(image)

    def _grouped(self, image: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
        """Returns the image [N, C g, H, W / g] in channels-last memory, and g."""
        return image.to(dtype, memory_format=torch.channels_last), 1

    def geometry(self, group: int) -> tuple[Pair, Pair]:
        """Returns stride and padding, in groups."""
        return (self.stride[0], self.stride[1] // group), self.padding  # type: ignore[return-value]

    def operands(self, dtype: torch.dtype, group: int, packed_for: torch.Size | None = None) -> Operands:
        """Returns the weight for grouped images [M, C g, h, w / g], and the bias, in this precision; on a CPU, packs
        the weight for grouped images of shape packed_for unless None."""
        if self.weight.is_cuda:
            weight, bias = _cast(self.weight, self.bias, dtype, self.scale)
            return self._regrouped(weight, group), bias

        def make() -> Operands:
            if packed_for:
                weight, bias = self.operands(dtype, group)
                return onednn.pack_convolution(weight, *self.geometry(group), packed_for), bias
            weight, bias = _cast(self.weight, self.bias, dtype, self.scale)
            return self._regrouped(weight, group), bias

        return self.prepared.get((dtype, group, packed_for), make, self.weight, self.bias)

    def gradient_of(self, gradient: Tensor) -> Tensor:
        """Converts the gradient of the weight from `operands` to that of the layer's weight, float32."""
        gradient = self._regrouped(gradient.to(torch.float32), 1)
        return gradient if self.scale == 1 else gradient * self.scale

    def _regrouped(self, weight: Tensor, group: int) -> Tensor:
        """Returns a weight of any grouping for groups of this many pixels, in channels-last memory."""
        M, C, h, w = self.weight.shape
        return weight.permute(0, 2, 3, 1).reshape(M, h, w // group, C * group).permute(0, 3, 1, 2)


class ByteConv(Conv2d):
    """A convolution of (pixels - background) / 255, for pixels uint8 [N, C, H, W].

    background: its `value` is a whole number, see `PixelNorm`; None: 0.

    Weights are divided instead of pixels. They are fewer, and bfloat16 holds bytes exactly, but not their 255ths.
    If kernel and width are multiples of the stride, a group has as many pixels as the stride. With four frames it has
    16 channels, for which oneDNN computes gradients faster (an update in bfloat16 takes 2 to 4 % less time).
    """

    scale = 1 / 255
    background: Any = None

    def _plain(self, image: Tensor) -> Tensor:
        x = self._pixels(image, self.weight.dtype)
        return self._conv_forward(x, self.weight * self.scale, self.bias)  # type: ignore[no-any-return]

    def _pixels(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns pixels - background in channels-last memory, exact even in bfloat16."""
        x = interleaved(image).to(dtype, memory_format=torch.channels_last)
        return x if self.background is None else x.sub_(self.background.value)

    def _grouped(self, image: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
        x = self._pixels(image, dtype)
        N, C, H, W = x.shape
        group = self.stride[1]
        if self.kernel_size[1] % group or W % group or self.padding[1]:
            return x, 1
        return x.permute(0, 2, 3, 1).reshape(N, H, W // group, C * group).permute(0, 3, 1, 2), group


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, *, relu: bool) -> Tensor:
    """Returns the result of onednn.convolve, also on a GPU."""
    if not x.is_cuda:
        return onednn.convolve(x, weight, bias, stride, padding, relu=relu)
    y = F.conv2d(x, weight, bias, stride, padding)
    return y.relu_() if relu else y


class _Convolution(torch.autograd.Function):
    """A convolution of a grouped image with a layer's weight, bias and ReLU."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Conv2d, group: int, relu: bool
    ) -> Tensor:
        (used, used_bias), geometry = layer.operands(x.dtype, group), layer.geometry(group)
        y = _convolve(x, used, used_bias, *geometry, relu=relu)
        ctx.layer, ctx.geometry = layer, geometry
        ctx.save_for_backward(x, used, y if relu else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None, None]:
        x, weight, y = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        if y is not None:
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        needs_x, _, needs_bias = ctx.needs_input_grad[:3]
        if x.dtype == torch.bfloat16 and not x.is_cuda and torch.get_num_threads() > 1:
            # With weights in bfloat16, oneDNN's threads wait for each other at every image of the batch without
            # sleeping. If another process needs one of their CPUs, this takes a hundred times as long.
            x_gradient = _gradients(gradient, x, weight, ctx.geometry, (True, False, False))[0] if needs_x else None
            gradient, x, weight = (tensor.to(torch.float32) for tensor in (gradient, x, weight))
            _, weight_gradient, bias_gradient = _gradients(gradient, x, weight, ctx.geometry, (False, True, needs_bias))
        else:
            wanted = (needs_x, True, needs_bias)
            x_gradient, weight_gradient, bias_gradient = _gradients(gradient, x, weight, ctx.geometry, wanted)
        bias_gradient = bias_gradient.to(torch.float32) if needs_bias else None
        return x_gradient, ctx.layer.gradient_of(weight_gradient), bias_gradient, None, None, None


def _gradients(gradient: Tensor, x: Tensor, weight: Tensor, geometry: tuple[Pair, Pair], wanted: Any) -> Any:
    """Returns the wanted gradients of x, weight and bias, each in x's precision."""
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, [len(weight)], *geometry, (1, 1), False, (0, 0), 1, wanted
    )
