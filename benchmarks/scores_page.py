"""Makes the tables of docs/results.md from files of scores (benchmarks/scores.py)."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import accel_rl
from accel_rl.analysis.plot import Floats
from accel_rl.analysis.scores import (
    Interval,
    ScoredRun,
    compare_runs,
    format_table,
    human_scores,
    interval,
    mean_of_means,
    read_scores,
)

STEPS, MINUTES, SCORE = 0, 1, 2  # columns of a curve
MAX_MISSING = 0.02  # share of a column's steps that a run may lack, since rollouts need not divide them
WIN = 18  # score at which Pong counts as won
# Options that commands for readers omit, since they change neither what is learned nor how fast.
MINOR = re.compile(
    r" --(no-tensorboard|no-report|(sampler|eval-interval-steps|eval-episodes|\w+-threads|final-games|seed) \S+)"
)
PRESET_FILES = {file.stem for file in (Path(accel_rl.__file__).parent / "presets").glob("*.yaml")}

Values = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """A file of scores: runs of one setting on one game, and the notes on each run.

    A run's minutes are nan if they mean nothing: it shared the machine, and the setting's pace was not measured.
    machines: those on which the minutes were measured. paces: steps per minute, by machine."""

    setting: str
    game: str
    runs: list[ScoredRun]
    noted: list[Values]
    machines: set[str]
    paces: dict[str, float]

    @property
    def command(self) -> str:
        """The command, with SEED in place of the seed."""
        first = self.noted[0]
        return str(first["command"]).replace(f"--seed {first['seed']}", "--seed SEED")

    @property
    def method(self) -> str:
        """The algorithm's name without its variant: ppo of ppo_small. Other programs' begin with "SB3's"."""
        match = re.search(r"--algo (\S+)", self.command)
        words = (match[1] if match else self.setting).split("_")
        names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
        name = next((name for name in names if name in PRESET_FILES), names[-1])
        return name if self.command.startswith("accel-rl") else f"SB3's {name}"

    def column(self, column: int) -> list[Floats]:
        """Returns a column of each run's curve."""
        return [run.curve[:, column] for run in self.runs if len(run.curve)]

    def time(self, minutes: float) -> str:
        """Returns a duration with the maker of the CPU, if it is known; "" for nan."""
        makers = [maker for maker in ("AMD", "Intel") if any(maker in machine for machine in self.machines)]
        spent = duration(minutes)
        return f"{spent} ({' or '.join(makers)})" if spent and makers else spent

    def last(self, column: int) -> float:
        """Returns the mean of the runs' last values in a column; nan if one has none."""
        return float(np.mean([values[-1] for values in self.column(column)] or [np.nan]))


def read_kept(folder: Path, by_pace: bool = False) -> list[Kept]:
    """Reads a folder's files of scores.

    The minutes of runs on a shared machine, and of all runs in the same file, follow from the setting's first pace.
    by_pace: so do those of every run whose setting has a pace, which makes settings comparable."""
    kept = []
    for file in sorted(folder.glob("*.json")):
        content, runs = json.loads(file.read_text()), read_scores(file)
        shared = [noted["how"] == "shared" for noted in content["runs"]]
        paces = {machine: each["steps_per_minute"] for machine, each in content.get("paces", {}).items()}
        machine, rate = next(iter(paces.items()), ("", np.nan))
        is_paced = bool(paces) and (by_pace or any(shared))
        machines = {machine} if is_paced else {noted["machine"] for noted in content["runs"]}
        for run, is_shared in zip(runs, shared, strict=True):
            if is_shared or is_paced:
                run.curve[:, MINUTES] = run.curve[:, STEPS] / rate
        kept.append(Kept(content["setting"], content["game"], runs, content["runs"], machines, paces))
    return kept


def find(kept: Iterable[Kept], setting: str, game: str) -> Kept | None:
    return next((each for each in kept if (each.setting, each.game) == (setting, game)), None)


def games_of(kept: Iterable[Kept], setting: str, games: Sequence[str], steps: float = 0) -> list[str]:
    """Returns those of the games on which a setting has a run of at least this many steps."""
    reached = {each.game: max(run.curve[-1, STEPS] for run in each.runs) for each in kept if each.setting == setting}
    return [game for game in games if reached.get(game, -1) >= steps * (1 - MAX_MISSING)]


def is_trial(setting: str) -> bool:
    """Returns whether a setting, by its name, was only a trial."""
    return setting.startswith("trial_")


def best_by_method(kept: Sequence[Kept], game: str, chosen: str) -> list[Kept]:
    """Returns each method's setting with the highest last training score on a game, highest first.

    The chosen setting always represents its method, since trials on single seeds are often better by luck."""
    best: dict[str, Kept] = {}
    for each in kept:
        if each.game == game and each.column(SCORE):
            best[each.method] = max(
                best.get(each.method, each), each, key=lambda it: (it.setting == chosen, it.last(SCORE))
            )
    return sorted(best.values(), key=lambda it: -it.last(SCORE))


# ---- cells ----


def cell(values: Sequence[float | None]) -> str:
    """Returns mean, interval over seeds and number of scores, without missing ones."""
    present = [value for value in values if value is not None]
    if not present:
        return ""
    if len(present) == 1:
        return f"{present[0]:,.1f} (1 seed)"
    mean, low, high = interval({"": np.array(present)}, mean_of_means)
    return f"{mean:,.1f} ({low:,.1f} to {high:,.1f})"


def score_at(run: ScoredRun, steps: float) -> float | None:
    """Returns the training score after this many steps; the last one, if the run stopped just before.

    Returns None if the run was shorter, or had no score yet."""
    reached = run.curve[:, STEPS]
    if not len(reached):
        return None
    wanted = min(steps, reached[-1]) if reached[-1] > steps * (1 - MAX_MISSING) else steps
    return float(np.interp(wanted, reached, run.curve[:, SCORE])) if reached[0] <= wanted <= reached[-1] else None


def duration(minutes: float) -> str:
    """Returns a duration in few words; "" for nan."""
    if np.isnan(minutes):
        return ""
    return f"{60 * minutes:.0f} seconds" if minutes < 1 else f"{minutes:.{0 if minutes >= 10 else 1}f} minutes"


def millions(steps: float) -> str:
    return f"{steps / 1e6:.2g} M"


def when(kept: Kept, score: float) -> str:
    """Returns the mean steps and minutes after which a setting's runs first reached a training score."""
    won = [run.curve[run.curve[:, SCORE] >= score] for run in kept.runs]
    reached = [rows[0] for rows in won if len(rows)]
    if not reached:
        return "not reached"
    steps, minutes, _ = np.mean(reached, axis=0)
    seeds = "" if len(reached) == len(kept.runs) else f" ({len(reached)} of {len(kept.runs)} seeds)"
    return ", ".join(filter(None, [millions(steps), duration(minutes)])) + seeds


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# ---- tables ----


def advice_table(kept: Sequence[Kept], advice: Sequence[Values]) -> str:
    """Returns the settings to choose in several situations, and the scores to expect, from completed runs.

    advice: rows with a reader's situation, a setting, a game, and the range of its scores."""
    rows = []
    for each in advice:
        found = find(kept, each["setting"], each["game"])
        if not found:
            rows.append([each["have"], "not run yet", "", "", each["range"]])
            continue
        runs = [run for run in found.runs if run.final is not None] or found.runs
        steps, minutes, _ = np.mean([run.curve[-1] for run in runs], axis=0)
        spent = f"{steps / 1000:,.0f},000 steps" if steps < 1e6 else f"{millions(steps)} steps"
        spent = ", ".join([spent, found.time(minutes) or "time not measured"])
        rows.append(
            [each["have"], f"`{MINOR.sub('', found.command)}`", cell([run.score for run in runs]), spent, each["range"]]
        )
    return table(["you have", "take", "expect a score of", "after", "range of scores"], rows)


def methods_table(methods: Sequence[Kept]) -> str:
    """Returns each method's results on Pong: when it first scores 0 and 18, its last score, and its command."""
    rows = [
        [
            f"{each.method}",
            f"`{each.setting}`",
            str(len(each.runs)),
            when(each, 0),
            when(each, WIN),
            cell([run.curve[-1, SCORE] for run in each.runs]),
            ", ".join(filter(None, [millions(each.last(STEPS)), each.time(each.last(MINUTES))])),
            f"`{each.command}`",
        ]
        for each in methods
    ]
    return table(
        ["method", "setting", "seeds", "first at 0", f"first at {WIN}", "last score", "after", "command"], rows
    )


def games_table(
    setting: str, games: Sequence[str], kept: Sequence[Kept], published: Values, steps: Sequence[float]
) -> str:
    """Returns a setting's scores on each game after some steps, beside the published ones and, on Atari, a human's."""
    names = list(published["scores"])
    columns = ["seeds", *(f"{each / 1e6:g} M steps" for each in steps), "time", "final policy"]
    with_humans = bool(games) and all(game in human_scores() for game in games)
    rows = []
    for game in games:
        found = find(kept, setting, game)
        theirs = [str(published["scores"][name].get(game, "")) for name in names]
        theirs = [f"{float(each):,g}" if re.fullmatch(r"-?[\d.]+", each) else each for each in theirs]
        cells = ["not run", *[""] * (len(columns) - 1)]
        if found:
            scores = [cell([score_at(run, each) for run in found.runs]) for each in steps]
            cells = [str(len(found.runs)), *scores, found.time(found.last(MINUTES))]
            cells.append(cell([run.final for run in found.runs]))
        humans = ["{:,}; {:,}".format(*human_scores()[game])] if with_humans else []
        rows.append([game, *cells, *humans, *theirs])
    links = [f"[{name}]({published['sources'][name]})" for name in names]
    first, humans = ("game", ["random; human"]) if with_humans else ("task", [])
    return table([first, *columns, *humans, *links], rows)


def timed_steps(
    kept: Sequence[Kept], settings: Iterable[str], minutes: float, machine: str, game: str
) -> dict[str, float]:
    """Returns the steps that each setting makes in some minutes on a machine, if its pace there is known for a game."""
    found = {setting: find(kept, setting, game) for setting in settings}
    return {setting: minutes * each.paces[machine] for setting, each in found.items() if each and machine in each.paces}


def timed_table(reached: dict[str, float], minutes: float, games: Sequence[str], kept: Sequence[Kept]) -> str:
    """Returns the scores of settings on each game after the same time. reached: the steps that each makes in it."""
    rows = []
    for game in games:
        found = {setting: find(kept, setting, game) for setting in reached}
        scores = [[score_at(run, reached[name]) for run in each.runs] if each else [] for name, each in found.items()]
        rows.append([game, *map(cell, scores), "{:,}; {:,}".format(*human_scores()[game])])
    columns = [f"`{setting}`, {minutes} minutes: {millions(steps)} steps" for setting, steps in reached.items()]
    return table(["game", *columns, "random; human"], rows)


def settings_table(kept: Sequence[Kept]) -> str:
    """Returns the scores of settings and games, and the last score of each run."""
    rows = []
    for each in kept:
        ends = [
            f"{run.curve[-1, SCORE]:.1f} at {run.curve[-1, STEPS] / 1e6:.2f} M" for run in each.runs if len(run.curve)
        ]
        scores = [cell([score_at(run, steps) for run in each.runs]) for steps in (8e5, 1e6, 2e6)]
        final = cell([run.final for run in each.runs])
        rows.append([f"`{each.setting}`", each.game, str(len(each.runs)), *scores, final, ", ".join(ends)])
    header = ["setting", "game", "seeds", "0.8 M steps", "1 M steps", "2 M steps", "final policy", "end of each run"]
    return table(header, rows)


def seeds_table(kept: Kept) -> str:
    """Returns when each seed's training score on Pong reached 18: agent steps, minutes, and the machine."""
    rows = []
    for run, noted in zip(kept.runs, kept.noted, strict=True):
        won = run.curve[:, SCORE] >= WIN
        steps, minutes, _ = run.curve[np.argmax(won)]
        reached = [f"{steps:,.0f}", f"{minutes:.1f}"] if won.any() else ["not reached", ""]
        end = run.curve[-1]
        machine = f"{noted['machine']}, {noted['how']}"
        rows.append([str(run.seed), *reached, f"{end[SCORE]:.1f}", f"{end[MINUTES]:.1f}", machine])
    return table(
        ["seed", f"agent steps to {WIN}", f"minutes to {WIN}", "last score", "minutes in all", "machine"], rows
    )


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Returns the difference of two means, ours minus theirs, with its bootstrap interval."""
    both = {"ours": np.array(ours), "theirs": np.array(theirs)}
    return interval(both, lambda drawn: float(drawn["ours"].mean() - drawn["theirs"].mean()))


def reference_table(kept: Sequence[Kept], pairs: Sequence[Values]) -> str:
    """Returns the difference between our scores and the reference's after some steps, for pairs that were run."""
    rows = []
    for pair in pairs:
        sides = [find(kept, pair[side], pair["game"]) for side in ("ours", "theirs")]
        both = [
            [score for run in (side.runs if side else []) if (score := score_at(run, pair["steps"])) is not None]
            for side in sides
        ]
        if all(both):
            mean, low, high = (round(value, 1) + 0.0 for value in difference(*both))  # no -0.0
            scores = [", ".join(f"{score:.1f}" for score in side) for side in both]
            seeds = f"{low:.1f} to {high:.1f}" if min(map(len, both)) > 1 else "a seed alone has no interval"
            rows.append([pair["name"], pair["game"], f"{pair['steps']:,}", *scores, f"{mean:.1f} ({seeds})"])
    if not rows:
        return "No pair has been run yet.\n"
    return table(["algorithm", "game", "agent steps", "ours, by seed", "the reference, by seed", "difference"], rows)


def commands_table(kept: Sequence[Kept]) -> str:
    """Returns one command for each setting and game, with SEED in place of the seed."""
    rows = []
    for each in kept:
        seeds = ", ".join(str(run.seed) for run in each.runs)
        machines = "; ".join(sorted({f"{noted['machine']}, {noted['how']}" for noted in each.noted}))
        rows.append([f"`{each.setting}`", each.game, seeds, f"`{each.command}`", machines])
    return table(["setting", "task", "seeds", "command", "machine"], rows)


def all_games_table(kept: Sequence[Kept], rows: Sequence[tuple[str, str, float, Sequence[str]]]) -> str:
    """Returns statistics of human-normalized training scores, for rows of a name, a setting, steps, and games."""
    runs = []
    for name, setting, steps, games in rows:
        for run in (run for game in games if (found := find(kept, setting, game)) for run in found.runs):
            if (score := score_at(run, steps)) is not None:
                runs.append(ScoredRun(run.game, f"`{setting}`, {name}", run.seed, run.curve, score))
    return format_table(compare_runs(runs)) + "\n" if runs else "No runs yet.\n"
