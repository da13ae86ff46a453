"""Scores over games and seeds: statistics against cases computed by hand, and the files that scores come from."""

import itertools
import json

import numpy as np
import pytest
import yaml

from accel_rl import cli
from accel_rl.analysis.scores import (
    compare,
    human_normalized,
    human_scores,
    interquartile_mean,
    interval,
    make_figure,
    mean_of_means,
    median_of_means,
    performance_profile,
    read_scores,
    resamples,
)
from accel_rl.envs.games.atari import games
from accel_rl.errors import UsageError

SCORES = {"pong": np.array([0.0, 1.0, 5.0]), "qbert": np.array([2.0, 3.0]), "breakout": np.array([4.0, 100.0, -7.0])}


def write_run(folder, scores, final=None, **settings):
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"algo": "a2c", "env": "pong", "seed": 1, **settings}))
    rows = [
        f"{1000 * i},{60 * i},{score},{final if i == len(scores) and final else ''}"
        for i, score in enumerate(scores, 1)
    ]
    header = "time/total_timesteps,time/time_elapsed,rollout/ep_rew_mean,eval/mean_reward"
    (folder / "progress.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def test_human_scores_are_those_of_games_that_exist():
    assert len(human_scores()) == 57 and human_scores().keys() <= games().keys()
    assert all(human > random for random, human in human_scores().values())
    np.testing.assert_allclose(human_normalized("pong", [-20.7, 14.6, 21]), [0, 1, 41.7 / 35.3])
    with pytest.raises(UsageError, match="no human score is known for adventure"):
        human_normalized("adventure", 1)


def test_statistics_by_hand():
    # Sorted: -7 0 1 2 3 4 5 100; a quarter of eight is two.
    assert interquartile_mean(SCORES) == (1 + 2 + 3 + 4) / 4
    assert interquartile_mean({"pong": np.array([1.0, 2.0, 6.0])}) == 3  # a quarter of three is none
    assert median_of_means(SCORES) == 2.5 and mean_of_means(SCORES) == pytest.approx((2 + 2.5 + 97 / 3) / 3)
    np.testing.assert_allclose(performance_profile(SCORES, np.array([-10, 2.0, 4.5, 100])), [1, 4 / 8, 2 / 8, 0])


def test_resamples_are_stratified():
    """A resample draws each game's scores from that game, as many as it has."""
    for drawn in itertools.islice(resamples(SCORES), 20):
        assert all(len(drawn[game]) == len(SCORES[game]) and set(drawn[game]) <= set(SCORES[game]) for game in SCORES)
    value, low, high = interval({"pong": np.array([0.0, 1.0])}, mean_of_means)
    assert (value, low, high) == (0.5, 0, 1)  # each of 0, 0.5 and 1 is drawn more often than 2.5 %
    assert interval({"pong": np.full(3, 2.0)}, interquartile_mean) == (2, 2, 2)


def test_folders_and_files(tmp_path):
    """A run's score is its last evaluation or the end of its curve, and a file of scores keeps both."""
    (found,) = read_scores(write_run(tmp_path / "a", [-20, -10], final=3.0))
    assert (found.game, found.setting, found.seed, found.score) == ("pong", "a2c", 1, 3)
    np.testing.assert_allclose(found.curve, [(1000, 1, -20), (2000, 2, -10)])
    (variant,) = read_scores(write_run(tmp_path / "b", [-20, -10], env="ALE/Pong-v5", preset="a2c_64"))
    assert (variant.setting, variant.score) == ("a2c_64", -10)
    file = tmp_path / "scores.json"
    runs = [{"seed": 1, "curve": [[1000, 1, -20]], "final": 3.0}, {"seed": 2, "curve": [[9, 1, -10]], "final": None}]
    file.write_text(json.dumps({"game": "pong", "setting": "a2c", "runs": runs}))
    again = read_scores(file)
    assert [(each.seed, each.score) for each in again] == [(1, 3), (2, -10)]
    np.testing.assert_allclose(again[0].curve, [(1000, 1, -20)])


def a_run(score):
    return f'{{"game": "pong", "setting": "a2c", "runs": [{{"seed": 1, {score}}}]}}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "neither a run's folder nor a file of scores"),
        ('{"game": "pong", "runs": []}', "neither a run's folder nor a file of scores"),
        ('{"game": "pong", "setting": "a2c", "runs": []}', "neither a run's folder nor a file of scores"),
        (a_run('"curve": [], "final": null'), "neither a run's folder nor a file of scores"),
        (a_run('"curve": [], "final": NaN'), "neither a run's folder nor a file of scores"),
        (a_run('"curve": [], "final": "much"'), "neither a run's folder nor a file of scores"),
        (a_run('"curve": [[1, 2, NaN]], "final": 1'), "neither a run's folder nor a file of scores"),
        (
            '{"game": "pong", "setting": "a2c", "runs": [{"game": "qbert", "seed": 1, "curve": [], "final": 1}]}',
            "pong's scores, but holds a run of qbert",
        ),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    file = tmp_path / "scores.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_scores(file)


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    assert read_scores(write_run(tmp_path / "a", [1], env="CartPole-v1"))[0].game == "CartPole-v1"
    with pytest.raises(UsageError, match="no human score is known for CartPole-v1"):
        compare([tmp_path / "a"])
    (write_run(tmp_path / "damaged", [1]) / "final.json").write_text("{")
    with pytest.raises(UsageError, match=r"damaged is neither a run's folder nor .* or it is damaged"):
        read_scores(tmp_path / "damaged")
    with pytest.raises(UsageError, match="no human score is known for adventure"):
        compare([write_run(tmp_path / "b", [1], env="adventure")])


def test_the_figure_and_the_table_hold_every_setting(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("accel_rl.analysis.scores.NUM_RESAMPLES", 200)
    folders = [
        write_run(tmp_path / f"{algo}{seed}", [-20, 10 * seed], algo=algo, seed=seed)
        for algo in ("a2c", "ppo")
        for seed in (0, 1)
    ]
    settings = {"algo": "ppo_64", "preset": "ppo", "seed": 0, "env": "breakout", "workers": 2}  # the same
    folders += [write_run(tmp_path / "c", [-20], **settings)]
    folders += [write_run(tmp_path / "d", [-20], algo="ppo", learning_rate=0.1)]  # another one
    figure = make_figure(compare([*folders, folders[0]]))  # named twice, counts once
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "a2c (1 game, 2 runs)",
        "ppo (2 games, 3 runs)",
        "ppo learning_rate=0.1 (1 game, 1 run)",
    ]
    cli.main(["plot", "--scores", *map(str, folders), "--out", str(tmp_path / "scores.png")])
    printed = capsys.readouterr().out
    expected = human_normalized("pong", 5)  # the mean of 0 and 10
    assert (
        f"| a2c | 1 | 2 | {expected:.2f} ({human_normalized('pong', 0):.2f} to {human_normalized('pong', 10):.2f})"
        in printed
    )
    assert (tmp_path / "scores.png").stat().st_size > 10_000
