"""A fixture for the tests of networks."""

import pytest

from accel_rl.models import layers


@pytest.fixture
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes oneDNN compute even the small float32 products of tests, as it does large ones."""
    monkeypatch.setattr(layers, "MIN_FLOATS", 0)
