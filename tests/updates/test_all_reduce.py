"""Tests that several ranks, each with a part of the samples, update like one rank with all samples."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.updates.reduce_process import CASES, NUM_UPDATES, Network, alone, run, together, too_many_terms

# Each rank is a process that imports torch. `make test` runs synchronous learners in tests/distributed.
pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

PER_SAMPLE = "errors"  # a term that has an entry for each sample


@pytest.fixture(scope="module")
def ranks() -> list[Any]:
    """Returns the results of all cases from two ranks."""
    return run(together, 2)


def assert_close(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    assert len(found) == len(expected) == NUM_UPDATES + 1
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert list(one) == list(other)
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-8, atol=1e-10, msg=f"{name}, update {index}")


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", CASES)
def test_two_halves_are_the_whole(ranks: list[Any], name: str) -> None:
    """Two ranks with half of the samples each update like one rank with all of them."""
    first, second = (rank[name] for rank in ranks)
    whole = [
        one | {PER_SAMPLE: torch.cat([one[PER_SAMPLE], other[PER_SAMPLE]])} if PER_SAMPLE in one else one
        for one, other in zip(first, second, strict=True)
    ]
    assert_close(whole, alone(name))
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(one[term], other[term]) for term in one if term != PER_SAMPLE)
    start = torch.cat([parameter.detach().flatten() for parameter in Network(0).parameters()])
    moved = whole[-1]["parameters"] - start
    assert (moved != 0).all() and moved.norm() > 0.01


def test_clipping_cuts_what_it_should() -> None:
    """The clipped test cases have gradients well above their limit."""
    for name in ("clipped", "by step", "sum", "all of it, adam"):
        clip = CASES[name].clip
        norms = [float(each["grad_norm"]) for each in alone(name)[:-1]]
        assert clip is not None and max(norms) > 2 * clip


@pytest.mark.multiprocess
def test_more_terms_than_there_is_room_for() -> None:
    """Logging more terms than fit into the gradient's vector is an error."""
    assert run(too_many_terms, 1) == ["65 numbers do not fit after the gradient: there is room for 64; log fewer terms"]


@pytest.mark.gpu
def test_nccl() -> None:
    """Updates through NCCL equal those of one process without it."""
    (found,) = run(together, 1, "cuda:0")
    for name in CASES:
        assert_close(found[name], alone(name))
