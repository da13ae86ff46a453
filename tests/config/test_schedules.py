"""Schedules: values at and around every point, their text, and runs resumed beyond their end."""

import csv
from dataclasses import dataclass
from pathlib import Path

import pytest

import accel_rl
from accel_rl.algos import AlgoSettings
from accel_rl.algos.a2c import A2CSettings
from accel_rl.config.fields import build
from accel_rl.config.schedules import ends, schedule, schedule_setting
from accel_rl.errors import UsageError
from tests.helpers.runs import TINY_SERIAL_RUN

PIECEWISE = "1e6:1 2e6:0.5 5e6:0.1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant", {0: 2.0, 1: 2.0, 10**9: 2.0}),
        ("linear", {0: 2.0, 1: 1.98, 50: 1.0, 99: 0.02, 100: 0.0, 101: 0.0, 10**9: 0.0}),
        ("linear:0.1", {0: 2.0, 50: 1.1, 99: 0.218, 100: 0.2, 101: 0.2, 10**9: 0.2}),
        ("linear:2", {0: 2.0, 50: 3.0, 100: 4.0, 101: 4.0}),
        (PIECEWISE, {0: 2.0, 999_999: 2.0, 1_000_000: 2.0, 1_000_001: 1.999999, 1_500_000: 1.5, 1_999_999: 1.000001}),
        (
            PIECEWISE,
            {2_000_000: 1.0, 3_500_000: 0.6, 4_999_999: 0.20000027, 5_000_000: 0.2, 5_000_001: 0.2, 10**9: 0.2},
        ),
        ("0:0 10:1 11:0.25 20:0.25", {0: 0.0, 5: 1.0, 10: 2.0, 11: 0.5, 15: 0.5, 20: 0.5, 21: 0.5}),
    ],
)
def test_values_at_and_around_every_point(text: str, expected: dict[int, float]) -> None:
    """A schedule counts from step 0, is continuous at its points and constant beyond its end."""
    for step, value in expected.items():
        assert schedule(text, 2.0, step, schedule_steps=100) == pytest.approx(value, rel=1e-7, abs=1e-12), step
    assert schedule("0:1 7:0.5 9:0.1", 0.7, 9, 3) == 0.7 * 0.1, "exact at its points"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "at least two points"),
        ("cosine", "must be constant, linear, linear:FRACTION, or points STEP:FACTOR"),
        ("Linear", "must be constant"),
        ("linear:", "must give a fraction of at least 0, as in linear:0.1"),
        ("linear:-0.1", "at least 0"),
        ("linear:nan", "at least 0"),
        ("0:1", "at least two points"),
        ("0:1 5:", "must be constant"),
        ("0:1 5:1:2", "must be constant"),
        ("0:1 5:-1", "no negative numbers"),
        ("-5:1 5:1", "no negative numbers"),
        ("0:1 inf:0", "must be constant"),
        ("0:1 5:nan", "must be constant"),
        ("5:1 0:0.5", "increasing agent steps"),
        ("0:1 5:0.5 5:0.1", "increasing agent steps"),
    ],
)
def test_invalid_texts_are_refused(text: str, rule: str) -> None:
    """An invalid text is refused with its value, the rule and the way out."""
    with pytest.raises(UsageError, match=rule) as caught:
        build(A2CSettings, {"learning_rate_schedule": text})
    assert f"learning_rate_schedule={text!r} must" in str(caught.value)


@dataclass(frozen=True)
class Clipped(AlgoSettings):
    clip_schedule: str = schedule_setting("linear", "course of the clip")
    plain: str = "linear"


def test_ends_include_an_algorithms_own_schedules() -> None:
    """`ends` includes an algorithm's own schedules and omits constant ones."""
    settings = build(Clipped, {})
    assert ends(settings, 100) == {"clip_schedule": (100, 0)}
    settings = build(Clipped, {"learning_rate_schedule": PIECEWISE, "clip_schedule": "linear:0.5"})
    assert ends(settings, 100) == {"learning_rate_schedule": (5e6, 0.1), "clip_schedule": (100, 0.5)}
    with pytest.raises(UsageError, match="clip_schedule='x' must be"):
        build(Clipped, {"clip_schedule": "x"})


RUN = {**TINY_SERIAL_RUN, "log_interval_steps": 20}


def test_a_run_resumed_beyond_the_end_warns(tmp_path: Path) -> None:
    """A resumed run keeps its schedule's points, and warns only when it goes beyond their end, as a new run does."""
    run = accel_rl.train(**RUN, steps=80, learning_rate_schedule="0:1 100:0.5 200:0", out=tmp_path / "run")
    accel_rl.train(resume=run, steps=200)
    assert "WARNING" not in (run / "log.txt").read_text()
    accel_rl.train(resume=run, steps=300)
    warning = "learning_rate_schedule ends at step 200: after that it stays at 0 of its base value"
    assert warning in (run / "log.txt").read_text()
    with (run / "progress.csv").open() as file:
        assert [int(row["time/total_timesteps"]) for row in csv.DictReader(file)] == list(range(20, 301, 20))
    longer = accel_rl.train(**RUN, steps=40, schedule_steps=20, learning_rate_schedule="linear", out=tmp_path / "new")
    assert "ends at step 20: after that it stays at 0 of" in (longer / "log.txt").read_text()
