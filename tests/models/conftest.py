"""What tests of several networks share."""

import pytest

from accel_rl.models import layers


@pytest.fixture
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has oneDNN compute the small products of tests in float32, as it does large ones."""
    monkeypatch.setattr(layers, "LEAST_FLOATS", 0)
