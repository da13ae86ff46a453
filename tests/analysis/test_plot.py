"""Learning curves: which runs become one curve, what is drawn, and the errors when nothing can be drawn."""

import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest
import yaml

from accel_rl.analysis.plot import draw_curves, group_runs, make_figure, read_run, save
from accel_rl.errors import UsageError

HEADER = "time/total_timesteps,time/time_elapsed,rollout/ep_rew_mean,eval/mean_reward"
SETTINGS = {"algo": "a2c", "env": "pong", "learning_rate": 7e-4, "envs": 16, "frame_shape": [104, 80]}


def write_run(folder, rows, header=HEADER, **settings):
    """Writes a run's settings and table. rows: CSV cells under the header."""
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({**SETTINGS, **settings}))
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    (folder / "progress.csv").write_text("\r\n".join(lines) + "\r\n")
    return folder


def rows(scores, step=1000, seconds=60):
    return [(step * i, seconds * i, score, "") for i, score in enumerate(scores, start=1)]


def labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def line(axes, label):
    """Returns x and y of the curve with this label."""
    return next(line.get_data() for line in axes.get_lines() if line.get_label() == label)


def test_seeds_become_one_curve_with_the_mean_where_both_have_scores(tmp_path):
    # Scores are averaged by step, only between steps at which both runs have scores.
    first = write_run(tmp_path / "s0", rows(["", 2, 4, 6, 8]), seed=0)
    second = write_run(tmp_path / "s1", [(1500, 45, 10, ""), (3500, 105, 20, "")], seed=1)
    figure = make_figure([first, second])
    over_steps, over_time = figure.axes
    assert labels(figure) == ["a2c (2 runs)"]
    assert figure.get_suptitle() == "pong"
    x, mean = line(over_steps, "a2c (2 runs)")
    np.testing.assert_allclose(x, [2000, 3000, 3500])  # both have scores from 2000 to 3500
    np.testing.assert_allclose(mean, [(2 + 12.5) / 2, (4 + 17.5) / 2, (5 + 20) / 2])
    x, mean = line(over_time, "a2c (2 runs)")
    np.testing.assert_allclose(x, [])  # in time they do not overlap: 2 to 5 minutes, 0.75 to 1.75
    assert over_time.get_xlabel() == "wall time (minutes)"


def test_the_interval_is_that_of_student_t(tmp_path):
    # Three runs with scores 1, 2, 6: mean 3, standard deviation sqrt(7), t(2) = 4.303.
    runs = [write_run(tmp_path / str(score), rows([score, score]), seed=score) for score in (1, 2, 6)]
    over_steps, _ = make_figure(runs).axes
    (band,) = over_steps.collections
    y = band.get_paths()[0].vertices[:, 1]
    half_width = 4.303 * np.sqrt(7 / 3)
    np.testing.assert_allclose([y.min(), y.max()], [3 - half_width, 3 + half_width])


def test_runs_with_different_settings_are_different_curves(tmp_path):
    runs = [
        write_run(tmp_path / "a", rows([1, 2])),
        write_run(tmp_path / "b", rows([3, 5, 7]), learning_rate=1e-3),
        write_run(tmp_path / "c", rows([1]), algo="ppo", horizon=128),
    ]
    lists = [write_run(tmp_path / "-".join(names), rows([1]), auxiliary=names) for names in (["x"], ["x", "y"])]
    assert labels(make_figure(lists)) == ["a2c auxiliary=x", "a2c auxiliary=x,y"]
    figure = make_figure(runs)
    assert labels(figure) == ["a2c learning_rate=0.0007", "a2c learning_rate=0.001", "ppo"]
    x, y = line(figure.axes[0], "a2c learning_rate=0.001")
    np.testing.assert_allclose((x, y), ([1000, 2000, 3000], [3, 5, 7]))  # a single run: in full, as logged


def test_runs_on_other_devices_are_one_curve_with_other_numbers_of_learners_not(tmp_path):
    # The number of learners separates curves; the devices that they ran on do not.
    placements = [
        {},
        {"devices": "cpu,cpu"},
        {"devices": "cuda:0,cuda:1"},
        {"devices": "cuda:3", "learners_per_gpu": 2},
    ]
    runs = [
        write_run(tmp_path / str(seed), rows([1, 2]), seed=seed, **placement)
        for seed, placement in enumerate(placements)
    ]
    assert labels(make_figure(runs)) == ["a2c learners=1", "a2c learners=2 (3 runs)"]
    assert labels(make_figure(runs[1:])) == ["a2c (3 runs)"]


def test_the_environment_is_in_the_label_where_it_is_not_the_title(tmp_path):
    runs = [write_run(tmp_path / env, rows([1, 2]), env=env) for env in ("pong", "qbert")]
    figure = make_figure([*runs, runs[0]])  # a folder named twice is one run
    assert labels(figure) == ["a2c pong", "a2c qbert"]
    assert figure.get_suptitle() == ""


def test_evaluations_are_dots(tmp_path):
    run = write_run(tmp_path / "run", [(1000, 3600, "", ""), (2000, 7200, 1, 5), (3000, 10800, 2, "")])
    figure = make_figure([run])
    assert labels(figure) == ["a2c", "evaluation"]
    dots = [line.get_data() for line in figure.axes[1].get_lines() if line.get_marker() == "o"]
    np.testing.assert_allclose(dots, [([2], [5])])
    assert figure.axes[1].get_xlabel() == "wall time (hours)"


def test_other_columns_and_a_half_written_last_line_are_ignored(tmp_path):
    # The run is in progress: its last line ends in the middle of a number.
    header = "train/loss,rollout/ep_rew_mean,time/time_elapsed,time/total_timesteps"
    run = write_run(tmp_path / "run", [(0.1, 1, 60, 1000), (0.1, 2, 120, 2000)], header)
    with (run / "progress.csv").open("a") as file:
        file.write("0.1,3,180,30")
    figure = make_figure([run])
    x, y = line(figure.axes[0], "a2c")
    np.testing.assert_allclose((x, y), ([1000, 2000], [1, 2]))


def test_the_picture_has_its_size_and_short_numbers(tmp_path):
    run = write_run(tmp_path / "run", rows([0, 50_000, 120_000], step=500_000))
    out = tmp_path / "new" / "curves.png"
    save(make_figure([run]), out)
    picture = cv2.imread(str(out))
    assert picture.shape == (500, 1200, 3)
    assert picture.std() > 10  # something is drawn
    assert [path.name for path in out.parent.iterdir()] == ["curves.png"]
    figure = make_figure([run])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert "1M" in [text.get_text() for text in axes.get_xticklabels()]
    assert "100k" in [text.get_text() for text in axes.get_yticklabels()]


def test_many_long_labels_stay_inside_the_picture(tmp_path):
    settings = {"algo": "my_package.my_module:MyAlgorithm", "a_setting_with_a_name_that_is_very_long": 1}
    runs = [write_run(tmp_path / str(i), rows([i, i + 1]), horizon=i, **settings) for i in range(9)]
    runs += [write_run(tmp_path / "short", rows([1]), algo=settings["algo"])]
    figure = make_figure(runs)
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert (box.x0, box.y0) >= (0, 0)
    assert box.x1 <= 1200
    assert len(set(labels(figure))) == 10
    (curve,) = group_runs([read_run(runs[0])])
    draw_curves(*figure.axes, [replace(curve, label="x" * 200)])  # wider than the picture


def test_errors_name_what_is_wrong(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", rows([1]))
    new = write_run(tmp_path / "new", rows(["", ""]))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match=r"empty is not a run's folder: it has no config\.yaml"):
        save(make_figure([run, empty]), tmp_path / "out.png")
    with pytest.raises(UsageError, match=r"no game has finished yet in .*new"):
        save(make_figure([run, new]), tmp_path / "out.png")
    with pytest.raises(UsageError, match="no run folder"):
        save(make_figure([]), tmp_path / "out.png")
    with pytest.raises(UsageError, match=r"\.png"):
        save(make_figure([run]), tmp_path / "out.doc")
    with pytest.raises(UsageError, match="cannot write"):
        save(make_figure([run]), run / "progress.csv" / "out.png")
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r"pip install 'accel-rl\[plot\]'"):
        save(make_figure([run]), tmp_path / "out.png")
    assert not list(tmp_path.glob("*out*"))
