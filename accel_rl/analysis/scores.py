"""Compares scores over several games and seeds by the methods of Agarwal et al. 2021 ("Deep RL at the edge of the
statistical precipice"): human normalization, interquartile means with stratified bootstrap intervals, performance
profiles."""

import csv
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from accel_rl.analysis.plot import (
    COLORS,
    MAX_LABEL_WIDTH,
    Floats,
    differing_settings,
    legend_columns,
    new_figure,
    read_log,
    read_run,
    tidy,
)
from accel_rl.envs.games.atari import game_name
from accel_rl.errors import UsageError, count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ByGame = Mapping[str, Floats]
"""The scores of runs by game; human-normalized in intervals and profiles."""

NUM_RESAMPLES = 2000
LEVEL = 0.95  # confidence level of the intervals
UNNAMED = {"env": None, "algo": None, "preset": None}  # a run's name: settings are compared under it


@dataclass(frozen=True)
class ScoredRun:
    """The scores of a run.

    game: an Atari game's name, such as pong, or another environment's.
    curve [N, 3]: agent steps, minutes of wall time, mean raw score of the last 100 training games. final: the mean raw
    score of the final policy's evaluation, if there is one."""

    game: str
    setting: str
    seed: int
    curve: Floats
    final: float | None = None

    @property
    def score(self) -> float:
        """The final policy's score if there is one, else the last one of training."""
        return float(self.curve[-1, 2]) if self.final is None else self.final


# ---- statistics ----


class Interval(NamedTuple):
    """A statistic and the limits of its 95 % interval."""

    value: float
    low: float
    high: float


@cache
def human_scores() -> dict[str, tuple[float, float]]:
    """Returns each game's score of random play and of a human player: {"pong": (-20.7, 14.6), ...}, 57 games.

    Source: Wang et al. 2016 (Dueling networks), supplement, copied from DQN Zoo's dqn_zoo/atari_data.py. Games begin
    with 1 to 30 no-ops."""
    with open(Path(__file__).with_name("human_scores.csv")) as file:
        return {row["game"]: (float(row["random"]), float(row["human"])) for row in csv.DictReader(file)}


def human_normalized(game: str, score: npt.ArrayLike) -> Floats:
    """Rescales raw scores [...]: 0 is random play, 1 is a human player.

    Raises UsageError for a game without a human score in the table."""
    if game not in human_scores():
        raise UsageError(
            f"no human score is known for {game}, only for {len(human_scores())} games such as pong; leave it out"
        )
    random, human = human_scores()[game]
    return (np.asarray(score, np.float64) - random) / (human - random)


def pooled(scores: ByGame) -> Floats:
    """Returns the scores of all games in one array."""
    return np.concatenate([np.asarray(values, np.float64) for values in scores.values()])


def interquartile_mean(scores: ByGame) -> float:
    """Computes the mean of all games' runs without the lowest and the highest quarter of them (rounded down)."""
    values = np.sort(pooled(scores))
    cut = len(values) // 4
    return float(values[cut : len(values) - cut].mean())


def median_of_means(scores: ByGame) -> float:
    """Computes the median over games of the mean over their runs."""
    return float(np.median([np.mean(values) for values in scores.values()]))


def mean_of_means(scores: ByGame) -> float:
    """Computes the mean over games of the mean over their runs."""
    return float(np.mean([np.mean(values) for values in scores.values()]))


def performance_profile(scores: ByGame, thresholds: Floats) -> Floats:
    """Computes the fraction of all games' runs that score more than each threshold: [K] -> [K]."""
    return np.asarray((pooled(scores)[:, None] > thresholds).mean(0), np.float64)


def resamples(scores: ByGame) -> Iterable[ByGame]:
    """Yields NUM_RESAMPLES resamples, the same in every call (stratified bootstrap).

    A resample draws as many runs of each game as there are, with replacement."""
    generator = np.random.default_rng(0)
    for _ in range(NUM_RESAMPLES):
        yield {game: generator.choice(values, len(values)) for game, values in scores.items()}


def interval(scores: ByGame, statistic: Callable[[ByGame], float]) -> Interval:
    """Returns a statistic of the scores, and its 2.5 % and 97.5 % quantiles over stratified resamples."""
    drawn = [statistic(resample) for resample in resamples(scores)]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(statistic(scores), float(low), float(high))


# ---- files ----


def read_scores(path: Path) -> list[ScoredRun]:
    """Reads a run's folder, or a file of scores: JSON with game, setting, and runs.

    A run in a file has a seed, a curve and a final score, as in ScoredRun. Raises UsageError for anything else, for a
    run without a score yet, and for a file that holds runs of two games."""
    try:
        if path.is_dir():
            return [_read_folder(path)]
        content = json.loads(path.read_text())
        game, setting, runs = content["game"], content["setting"], content["runs"]
        games = {run.get("game", game) for run in runs}
        scored = [_scored(game, setting, run) for run in runs]
        if not scored:
            raise ValueError("no run")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is neither a run's folder nor a file of scores, or it is damaged") from error
    if others := sorted(games - {game}):
        raise UsageError(f"{path} is a file of {game}'s scores, but holds a run of {', '.join(others)}")
    return scored


def _scored(game: str, setting: str, run: dict[str, Any]) -> ScoredRun:
    """Converts a run of a file of scores. Raises KeyError, TypeError or ValueError if it is not a run with a score."""
    curve = np.array(run["curve"], np.float64).reshape(-1, 3)
    final = None if run["final"] is None else float(run["final"])
    scored = ScoredRun(game, setting, int(run["seed"]), curve, final)
    if not (np.isfinite(curve).all() and (final is not None or len(curve)) and np.isfinite(scored.score)):
        raise ValueError("no score")
    return scored


def _read_folder(folder: Path) -> ScoredRun:
    run = read_run(folder)
    env = str(run.config.get("env"))
    series, final = run.score, None
    curve = np.stack([series.steps, series.time_s / 60, series.value], 1)
    if (folder / "final.json").is_file():  # the last games of `accel-rl train`
        final = float(json.loads((folder / "final.json").read_text())["mean_reward"])
    elif run.evaluation.value.size and run.evaluation.steps[-1] >= series.steps[-1]:
        final = float(run.evaluation.value[-1])
    setting = str(run.config.get("preset") or run.config["algo"])
    return ScoredRun(game_name(env) or env, setting, int(run.config["seed"]), curve, final)


# ---- table and figure ----


class Comparison(NamedTuple):
    """One setting's human-normalized scores and their statistics."""

    setting: str
    scores: ByGame
    iqm: Interval
    median: Interval
    mean: Interval

    @property
    def has_intervals(self) -> bool:
        """True if any game has several runs; intervals of single runs would have no width."""
        return any(len(values) > 1 for values in self.scores.values())

    @property
    def label(self) -> str:
        return f"{self.setting} ({count(len(self.scores), 'game')}, {count(len(pooled(self.scores)), 'run')})"


def compare(paths: Sequence[Path]) -> list[Comparison]:
    """Returns each setting's scores in these folders and files; a path that is given twice counts once.

    Folders of one algorithm or preset whose settings differ are different settings. Raises UsageError as `read_scores`
    does, and for a game without a human score."""
    configs: dict[str, list[dict[str, Any]]] = {}
    scored = []
    for path in {path.resolve(): path for path in paths}.values():
        config = {**read_log(path).config, **UNNAMED} if path.is_dir() else {}
        for run in read_scores(path):
            scored.append((run, config))
            configs.setdefault(run.setting, []).extend([config] if config else [])
    return compare_runs(
        replace(run, setting=" ".join([run.setting, *differing_settings(config, configs[run.setting])]))
        for run, config in scored
    )


def compare_runs(runs: Iterable[ScoredRun]) -> list[Comparison]:
    """Returns each setting's scores. Raises UsageError for a game without a human score."""
    grouped: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        score = float(human_normalized(run.game, run.score))
        grouped.setdefault(run.setting, {}).setdefault(run.game, []).append(score)
    by_setting = {setting: {game: np.array(v) for game, v in games.items()} for setting, games in grouped.items()}
    statistics = (interquartile_mean, median_of_means, mean_of_means)
    return [
        Comparison(setting, scores, *(interval(scores, statistic) for statistic in statistics))
        for setting, scores in by_setting.items()
    ]


def format_table(comparisons: Sequence[Comparison]) -> str:
    """Returns a table in Markdown, a row for each setting. Only settings with several runs of a game have intervals."""
    lines = ["| setting | games | runs | interquartile mean | median | mean |", "|---|---|---|---|---|---|"]
    for each in comparisons:
        cells = [f"{value:.2f}" + f" ({low:.2f} to {high:.2f})" * each.has_intervals for value, low, high in each[2:]]
        lines.append(f"| {each.setting} | {len(each.scores)} | {len(pooled(each.scores))} | {' | '.join(cells)} |")
    return "\n".join(lines)


class Profile(NamedTuple):
    """The fraction of runs that score more than each threshold, and its pointwise 95 % interval's limits; all [K]."""

    threshold: Floats
    part: Floats
    low: Floats
    high: Floats


def profiles(comparisons: Sequence[Comparison]) -> list[Profile]:
    """Returns each setting's performance profile over the same thresholds, from 0 to the highest score of all."""
    thresholds = np.linspace(0, max(1.0, *(float(pooled(each.scores).max()) for each in comparisons)), 201)
    curves = []
    for each in comparisons:
        drawn = np.stack([performance_profile(resample, thresholds) for resample in resamples(each.scores)])
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        curves.append(Profile(thresholds, performance_profile(each.scores, thresholds), low, high))
    return curves


def make_figure(comparisons: Sequence[Comparison]) -> "Figure":
    """Draws statistics on the left and performance profiles on the right, both with their intervals."""
    figure = new_figure(width=12)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
    names = ("interquartile mean", "median", "mean")
    for index, (each, profile) in enumerate(zip(comparisons, profiles(comparisons), strict=True)):
        color, shift = COLORS[index % len(COLORS)], (index + 1) / (len(comparisons) + 1) - 0.5
        for row, (value, low, high) in enumerate(each[2:]):
            left.plot([low, high], [row + 0.8 * shift] * 2, color=color, linewidth=5, alpha=0.35, solid_capstyle="butt")
            left.plot([value], [row + 0.8 * shift], "|", color=color, markersize=14, markeredgewidth=2.5)
        right.fill_between(profile.threshold, profile.low, profile.high, color=color, alpha=0.15, linewidth=0)
        label = textwrap.fill(each.label, MAX_LABEL_WIDTH)
        right.plot(profile.threshold, profile.part, color=color, linewidth=2, label=label)
    for axes in (left, right):
        tidy(axes)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.5, -0.5)
    left.set(xlabel="human-normalized score")
    right.set(xlabel="human-normalized score x", ylabel="fraction of runs that score more than x", ylim=(0, 1.02))
    right.set_xlim(left=0)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=legend_columns(labels), frameon=False)
    return figure
