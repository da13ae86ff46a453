"""Epsilon over agent steps and environments."""

from typing import Any

import pytest
import torch

from accel_rl.algos.exploration import Exploration, ExplorationSettings


@pytest.mark.parametrize(("step", "epsilon"), [(0, 1.0), (1, 0.991), (50, 0.55), (99, 0.109), (100, 0.1), (10**9, 0.1)])
def test_epsilon_falls_linearly_and_stays(step: int, epsilon: float) -> None:
    """Epsilon falls linearly from 1 at step 0 to its final value, and stays there."""
    exploration = Exploration(ExplorationSettings(epsilon_final=(0.1,), epsilon_steps=100), 3)
    assert exploration.at(step).tolist() == pytest.approx([epsilon] * 3, rel=1e-6)


@pytest.mark.parametrize(
    ("odds", "shares"), [((0.4, 0.3, 0.3), (0.4, 0.3, 0.3)), ((1, 0, 1), (0.5, 0, 0.5)), (None, (1 / 3,) * 3)]
)
def test_environments_draw_their_final_epsilon(odds: Any, shares: tuple[float, ...]) -> None:
    """Each environment draws its own final epsilon with the given odds, which need not add up to 1."""
    settings = ExplorationSettings(epsilon_final=(0.1, 0.01, 0.5), epsilon_odds=odds, epsilon_steps=10)
    exploration = Exploration(settings, 30_000)
    final = exploration.at(10)
    for value, share in zip((0.1, 0.01, 0.5), shares, strict=True):
        frequency = float(torch.isclose(final, torch.tensor(value)).float().mean())
        assert abs(frequency - share) < 0.012  # more than four stds
    torch.testing.assert_close(exploration.at(5), (1 + final) / 2)  # each falls towards its own final value


def test_draws_depend_on_the_seed_only_and_are_restored() -> None:
    """The final epsilons depend on the seed alone, and a state restores them."""
    settings = ExplorationSettings(epsilon_final=(0.1, 0.01, 0.5))

    def make(seed: int) -> Exploration:
        return Exploration(settings, 50, seed=seed)

    first, same, other = make(1), make(1), make(2)
    assert torch.equal(first.final, same.final) and not torch.equal(first.final, other.final)
    other.load_state_dict(first.state_dict())
    assert torch.equal(other.at(10**9), first.at(10**9))
