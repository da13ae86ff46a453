"""Tests of FlatParameters, whose views stay views through backward, updates, loading and copying."""

import copy

import pytest
import torch
from torch import nn

from accel_rl.errors import UsageError
from accel_rl.updates.flat import FlatParameters


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, kernel_size=(3, 2)), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 5, 6), nn.Linear(6, 1)
    )


def make_batch():
    return torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def lies_in(tensor, flat):
    """Tells whether every element of tensor lies in the memory of flat."""
    return tensor.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()


def assert_views(module, flat):
    assert all(lies_in(parameter, flat.values) for parameter in module.parameters())
    assert all(lies_in(parameter.grad, flat.gradient) for parameter in module.parameters())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_values_and_outputs_stay(memory_format):
    """The vector holds every parameter once, and the network's values and outputs stay the same."""
    plain, network = make_network(), make_network().to(memory_format=memory_format)
    flat = FlatParameters(network)
    assert_views(network, flat)
    for parameter, expected in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    assert flat.values.shape == flat.gradient.shape == (sum(p.numel() for p in plain.parameters()),)
    expected = torch.cat([parameter.flatten() for parameter in plain.parameters()])
    assert torch.equal(flat.values.sort().values, expected.sort().values)
    torch.testing.assert_close(network(make_batch()), plain(make_batch()))


def test_backward_accumulates_into_the_gradient():
    """Backpropagation adds to the flat gradient, and zeroing it zeroes every parameter's."""
    plain, network = make_network(), make_network()
    flat = FlatParameters(network)
    for _ in range(2):
        plain(make_batch()).square().mean().backward()
        network(make_batch()).square().mean().backward()
    assert_views(network, flat)
    for parameter, expected in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in plain.parameters()])
    torch.testing.assert_close(flat.gradient.norm(), norm)
    flat.zero_gradient()
    assert all(parameter.grad.count_nonzero() == 0 for parameter in network.parameters())


def test_convolutions_are_channels_last():
    """Convolution weights and gradients are channels-last."""
    network = make_network()
    FlatParameters(network)
    network(make_batch()).sum().backward()
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert network[0].weight.grad.is_contiguous(memory_format=torch.channels_last)


def test_loading_a_state_keeps_the_views():
    """Loading a state writes into the vector."""
    network, other = make_network(), make_network()
    nn.init.ones_(other[3].weight)
    flat = FlatParameters(network)
    network.load_state_dict(other.state_dict())
    assert_views(network, flat)
    assert torch.equal(network[3].weight, other[3].weight)


def test_a_copy_is_independent():
    """A copied network has its own vector."""
    network = make_network()
    flat = FlatParameters(network)
    target = copy.deepcopy(network)
    flat_target = FlatParameters(target)
    flat.values.zero_()
    assert not any(lies_in(parameter, flat.values) for parameter in target.parameters())
    assert flat_target.values.count_nonzero() > 0
    flat_target.values.copy_(flat.values)
    assert target[0].weight.count_nonzero() == 0


def test_tied_weights_count_once():
    """Tied weights stay tied and are in the vector once."""
    network = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    network[1].weight = network[0].weight
    flat = FlatParameters(network)
    assert flat.values.numel() == 9
    network(torch.ones(1, 3)).sum().backward()
    assert network[1].weight is network[0].weight
    assert_views(network, flat)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.ReLU(), "ReLU has no parameters"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
            "0.weight is torch.float32, but 1.weight is torch.float64",
        ),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half()), "1.weight is torch.float16"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")), "cpu and meta"),
    ],
)
def test_refuses_what_cannot_be_one_vector(module, message):
    """Parameters of several dtypes or devices are refused."""
    with pytest.raises(UsageError, match=message):
        FlatParameters(module)


def test_a_gradient_in_one_piece():
    """`differentiate` adds what `backward` adds, in the order of the vector."""
    flats = [FlatParameters(make_network()) for _ in range(2)]
    losses = [flat.module(make_batch()).square().sum() for flat in flats]
    losses[0].backward()
    flats[1].differentiate(losses[1])
    assert torch.equal(flats[0].gradient, flats[1].gradient) and flats[0].gradient.abs().max() > 0
