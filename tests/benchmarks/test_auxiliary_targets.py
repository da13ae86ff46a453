"""The picture of the auxiliary tasks' targets: from made-up targets, and from a real play."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from accel_rl.analysis.plot import save
from auxiliary_targets import Sequence, Window, draw

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "auxiliary_targets.py"


@pytest.mark.parametrize("channels", [(), (3,)], ids=["grey", "colour"])
def test_the_figure_shows_targets_where_they_belong(tmp_path: Path, channels: tuple[int, ...]) -> None:
    """Would catch cells drawn beside their pixels, another step's targets, and colours that are taken for rows."""
    change, control = torch.rand(20, 20, 20), torch.rand(20, 20, 20)
    frames = torch.randint(256, (21, *channels, 84, 84), dtype=torch.uint8)
    sequence = Sequence(frames, change, control, torch.eye(20)[7], torch.rand(20))
    figure = draw(sequence, Window(frames[:3], -1.0), cell=4)
    first, following, changed, target = figure.subfigs[0].axes[:4]
    for axes, frame in ((first, frames[0]), (following, frames[1])):
        assert (axes.images[0].get_array() == (frame.movedim(0, -1) if channels else frame).numpy()).all()
    for axes, cells in ((changed, change), (target, control)):
        background, overlay = axes.images
        assert background.get_extent() == [-0.5, 83.5, 83.5, -0.5]
        assert overlay.get_extent() == [1.5, 81.5, 81.5, 1.5]
        assert (overlay.get_array() == cells[0].numpy()).all()
    values, states = figure.subfigs[1].subfigs
    assert [bar.get_height() for bar in values.axes[0].patches] == sequence.reward.tolist()
    assert values.axes[0].lines[0].get_ydata().tolist() == pytest.approx(sequence.value_target.tolist())
    assert "reward is -1, class negative" in states.axes[1].get_xlabel()
    save(figure, tmp_path / "figure.png")


@pytest.mark.slow
def test_a_real_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a program that no longer runs."""
    out = tmp_path / "targets.png"
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), "--out", str(out)])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert out.read_bytes().startswith(b"\x89PNG")
