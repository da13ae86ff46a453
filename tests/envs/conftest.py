"""Fixtures for several files of this folder."""

from collections.abc import Iterator

import pytest

from accel_rl.envs.games import atari, native


@pytest.fixture
def few_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Prepares few starts of a game, as each costs a reset."""
    for module in (atari, native):
        monkeypatch.setattr(module, "NUM_STARTS", 6)
        module.start_states.cache_clear()
    yield
    for module in (atari, native):
        module.start_states.cache_clear()
