"""Keeps the scores of Atari runs, and makes docs/results.md from them.

python benchmarks/scores.py add RUN_DIR_OR_FILE ... --how alone|half|shared [--setting NAME] [--command TEXT]
python benchmarks/scores.py page

`add` adds runs to benchmarks/results/scores/<setting>-<game>.json, a file for each setting and game. A run replaces the
run of the same seed. Another framework's program on this machine writes a FILE. --how says what the minutes mean: the
run had the machine for itself (alone), or one logical CPU of two while another run had the other (half), or shared the
machine with other programs, so that its minutes mean nothing and are in no table (shared). `page` writes
docs/results.png and the tables between the marks of docs/results.md and, for trials, of
benchmarks/results/scores/README.md.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from accel_rl.analysis.plot import COLORS, new_figure, save, tidy
from accel_rl.analysis.scores import (
    Interval,
    ScoredRun,
    compare,
    format_table,
    human_scores,
    interval,
    mean_of_means,
    read_scores,
)
from accel_rl.config.fields import flag_of
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine
from command_line import make_parser, run_program

FOLDER = Path("benchmarks/results/scores")
PUBLISHED = FOLDER / "published.yaml"
PAGE, FIGURE = Path("docs/results.md"), Path("docs/results.png")
TRIALS = FOLDER / "README.md"
BEGIN, END = "<!-- by benchmarks/scores.py page -->\n", "<!-- end -->\n"
GAMES = ("pong", "breakout", "beam_rider", "seaquest", "space_invaders", "qbert", "enduro")
MOST_POINTS = 300  # of a curve that is kept
STEPS, MINUTES = 0, 1  # columns of a curve
MOST_MISSING = 0.02  # of the last step or minute of a table's column, which rollouts need not divide

Values = dict[str, Any]


# ---- add ----


def add(paths: Sequence[Path], how: str, setting: str | None, command: str | None) -> None:
    """Adds the runs of these folders and files. Raises UsageError like `read_scores`."""
    for path in paths:
        for run in read_scores(path):
            run = ScoredRun(run.game, setting or run.setting, run.seed, _thinned(run.curve), run.final)
            file = FOLDER / f"{run.setting}-{run.game}.json"
            kept: Values = json.loads(file.read_text()) if file.exists() else as_json([run]) | {"runs": []}
            about = {"how": how, "machine": _machine(path), "command": command or _command(path)}
            runs = {each["seed"]: each for each in kept["runs"]} | {run.seed: as_json([run])["runs"][0] | about}
            _write(file, kept | {"runs": [runs[seed] for seed in sorted(runs)]})
            print(f"{file}: seed {run.seed}, {len(run.curve)} points, score {run.score:.1f}")


def as_json(runs: Sequence[ScoredRun]) -> Values:
    """Returns the runs of one setting on one game in the form of a file of scores."""
    rounded = [asdict(run) | {"curve": np.round(run.curve, 3).tolist()} for run in runs]
    return {"game": runs[0].game, "setting": runs[0].setting, "runs": rounded}


def _machine(path: Path) -> str:
    """Returns the CPU of a folder's run, with the instructions that decide a network's speed."""
    file = path / "machine.json"
    machine = json.loads(file.read_text()) if file.is_file() else describe_machine()
    return f"{machine['cpu']} ({machine.get('instructions', 'instructions not noted')})"


def _thinned(curve: Any) -> Any:
    """Returns every n-th point of a curve, and the last point."""
    every = -(-len(curve) // MOST_POINTS)
    return np.concatenate([curve[:-1:every], curve[-1:]]) if len(curve) else curve


def _write(file: Path, content: Values) -> None:
    """Writes a file of scores, one line for each run."""
    runs = ",\n".join(json.dumps(run) for run in content.pop("runs"))
    file.write_text(f'{json.dumps(content)[:-1]}, "runs": [\n{runs}\n]}}\n')


def _command(path: Path) -> str:
    """Returns the command of a run's folder, without --out and with the settings of its --config; for a file, the
    command in it. Raises UsageError if there is none."""
    try:
        if path.is_file():
            return str(json.loads(path.read_text())["command"])
        words = shlex.split((path / "command.txt").read_text().splitlines()[0])
        words = words[words.index("train") :]
        for option in ("--out", "--config"):
            if option in words:
                at = words.index(option)
                value = words[at + 1]
                words[at : at + 2] = [] if option == "--out" else _as_flags(yaml.safe_load(Path(value).read_text()))
    except (KeyError, OSError, ValueError) as error:
        raise UsageError(f"{path} does not say by which command it was made; give it with --command") from error
    return shlex.join(["accel-rl", *(word for word in words if word != "--overwrite")])


def _as_flags(settings: Values) -> list[str]:
    """Returns the arguments of `accel-rl train` for these settings."""
    words = []
    for name, value in settings.items():
        flag = flag_of(name)
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-"))
        elif isinstance(value, dict):
            words += [flag, "{" + ", ".join(f"{key}: {each}" for key, each in value.items()) + "}"]
        else:
            words += [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return words


# ---- page ----


def page() -> None:
    """Writes the tables of both pages, and the figure."""
    published: Values = yaml.safe_load(PUBLISHED.read_text())
    kept, about = {}, {}
    for file in sorted(FOLDER.glob("*.json")):
        content = json.loads(file.read_text())
        key = content["setting"], content["game"]
        kept[key], about[key] = read_scores(file), content["runs"]
        for run, noted in zip(kept[key], about[key], strict=True):
            if noted["how"] == "shared":
                run.curve[:, 1] = np.nan
    chosen = published["chosen"]
    parts = [
        f"## `{chosen}` on seven games\n",
        games_table(chosen, kept, published),
        f"## `{chosen}` on Pong: when it wins\n",
        solved_table(about.get((chosen, "pong"), [])),
        "## Pong, algorithm by algorithm\n",
        settings_table({key: runs for key, runs in kept.items() if key[1] == "pong" and not is_trial(key[0])}),
        "## Against the reference, with equal settings\n",
        reference_table(kept, published["reference"]),
        "## All games together\n",
    ]
    comparisons = compare([FOLDER / f"{chosen}-{game}.json" for game in GAMES if (chosen, game) in kept])
    parts += [format_table(comparisons) + "\n" if comparisons else "No runs yet.\n"]
    parts += [
        "## Every row's command\n",
        commands_table({key: of for key, of in about.items() if not is_trial(key[0])}),
    ]
    write_between(PAGE, parts)
    tried = {key: runs for key, runs in kept.items() if is_trial(key[0])}
    write_between(TRIALS, [settings_table(tried), commands_table({key: about[key] for key in tried})])
    save(figure(chosen, kept, published), FIGURE)


def write_between(page: Path, parts: Sequence[str]) -> None:
    """Writes parts of a page between its marks."""
    before, rest = page.read_text().split(BEGIN)
    page.write_text(before + BEGIN + "\n" + "\n".join(parts) + "\n" + END + rest.split(END)[1])


def _cell(values: Sequence[float | None]) -> str:
    """Returns mean, interval over seeds and number of scores, without missing ones."""
    present = [value for value in values if value is not None]
    if not present:
        return ""
    if len(present) == 1:
        return f"{present[0]:,.1f} (1 seed)"
    mean, low, high = interval({"": np.array(present)}, mean_of_means)
    return f"{mean:,.1f} ({low:,.1f} to {high:,.1f})"


def _at(run: ScoredRun, column: int, value: float) -> float | None:
    """Returns the training score after this many steps or minutes; the last one, if it stopped just before.

    Returns None if the run was shorter, or had no score yet."""
    reached = run.curve[:, column]
    if not len(reached):
        return None
    wanted = min(value, reached[-1]) if reached[-1] > value * (1 - MOST_MISSING) else value
    return float(np.interp(wanted, reached, run.curve[:, 2])) if reached[0] <= wanted <= reached[-1] else None


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Returns the difference of two means, ours minus theirs, with its bootstrap interval."""
    both = {"ours": np.array(ours), "theirs": np.array(theirs)}
    return interval(both, lambda drawn: float(drawn["ours"].mean() - drawn["theirs"].mean()))


def _row(runs: Sequence[ScoredRun]) -> list[str]:
    """Returns the cells of a setting on a game: seeds, at 1 and 2 million steps, after 30 minutes, the final policy."""
    return [
        str(len(runs)),
        _cell([_at(run, STEPS, 1e6) for run in runs]),
        _cell([_at(run, STEPS, 2e6) for run in runs]),
        _cell([_at(run, MINUTES, 30) for run in runs]),
        _cell([run.final for run in runs]),
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


COLUMNS = ("seeds", "1 M steps", "2 M steps", "30 minutes", "final policy")


def games_table(setting: str, kept: dict[tuple[str, str], list[ScoredRun]], published: Values) -> str:
    """Returns a setting's scores on each game, beside a human's, random play's and the published ones."""
    names = list(published["scores"])
    rows = []
    for game in GAMES:
        random, human = human_scores()[game]
        theirs = [f"{published['scores'][name][game]:,}" if game in published["scores"][name] else "" for name in names]
        cells = _row(kept[setting, game]) if (setting, game) in kept else ["not run", *[""] * (len(COLUMNS) - 1)]
        rows.append([game, *cells, f"{random:,}; {human:,}", *theirs])
    links = [f"[{name}]({published['sources'][name]})" for name in names]
    return _table(["game", *COLUMNS, "random; human", *links], rows)


def is_trial(setting: str) -> bool:
    """Returns whether a setting, by its name, was only a trial for the small machine's settings."""
    return setting.startswith("trial_")


def settings_table(kept: dict[tuple[str, str], list[ScoredRun]]) -> str:
    """Returns the scores of settings and games, and the final score of each run."""
    rows = []
    for (setting, game), runs in kept.items():
        ends = [f"{run.curve[-1, 2]:.1f} at {run.curve[-1, 0] / 1e6:.2f} M" for run in runs if len(run.curve)]
        early = _cell([_at(run, STEPS, 8e5) for run in runs])
        rows.append([f"`{setting}`", game, str(len(runs)), early, *_row(runs)[1:], ", ".join(ends)])
    return _table(["setting", "game", COLUMNS[0], "0.8 M steps", *COLUMNS[1:], "end of each run"], rows)


def solved_table(runs: Sequence[Values]) -> str:
    """Returns when each seed's training score on Pong reached 18: agent steps, minutes, and the machine."""
    rows = []
    for run in runs:
        reached = next(
            ([f"{steps:,.0f}", f"{minutes:.1f}"] for steps, minutes, score in run["curve"] if score >= 18), None
        )
        end = run["curve"][-1]
        when, machine = reached or ["not reached", ""], f"{run['machine']}, {run['how']}"
        rows.append([str(run["seed"]), *when, f"{end[2]:.1f}", f"{end[1]:.1f}", machine])
    return _table(["seed", "agent steps to 18", "minutes to 18", "last score", "minutes in all", "machine"], rows)


def reference_table(kept: dict[tuple[str, str], list[ScoredRun]], pairs: Sequence[Values]) -> str:
    """Returns the difference of our and the reference's scores at some step, for pairs of settings that were run."""
    rows = []
    for pair in pairs:
        game, steps = pair["game"], pair["steps"]
        both = [
            [score for run in kept.get((pair[side], game), []) if (score := _at(run, STEPS, steps)) is not None]
            for side in ("ours", "theirs")
        ]
        if all(both):
            mean, low, high = (round(value, 1) + 0.0 for value in difference(*both))  # no -0.0
            scores = [", ".join(f"{score:.1f}" for score in side) for side in both]
            seeds = f"{low:.1f} to {high:.1f}" if min(map(len, both)) > 1 else "a seed alone has no interval"
            rows.append([pair["name"], game, f"{steps:,}", *scores, f"{mean:.1f} ({seeds})"])
    if not rows:
        return "No pair has been run yet.\n"
    return _table(["algorithm", "game", "agent steps", "ours, by seed", "the reference, by seed", "difference"], rows)


def commands_table(about: dict[tuple[str, str], list[Values]]) -> str:
    """Returns one command for each setting and game, with SEED in place of the seed."""
    rows = []
    for (setting, game), runs in about.items():
        seeds = ", ".join(str(run["seed"]) for run in runs)
        command = runs[0]["command"].replace(f"--seed {runs[0]['seed']}", "--seed SEED")
        machines = "; ".join(sorted({f"{run['machine']}, {run['how']}" for run in runs}))
        rows.append([f"`{setting}`", game, seeds, f"`{command}`", machines])
    return _table(["setting", "game", "seeds", "command", "machine"], rows)


def figure(setting: str, kept: dict[tuple[str, str], list[ScoredRun]], published: Values) -> Any:
    """Draws each game's training scores over agent steps: a line for each seed, dashed lines for published scores."""
    drawn = new_figure(width=13, height=6)
    axes = drawn.subplots(2, 4).flatten()
    for game, each in zip(GAMES, axes, strict=False):
        for index, run in enumerate(kept.get((setting, game), [])):
            label = setting if not index else None
            each.plot(run.curve[:, 0], run.curve[:, 2], color=COLORS[0], alpha=0.8, label=label)
        for index, (name, scores) in enumerate(published["scores"].items()):
            if game in scores:
                each.axhline(scores[game], color=COLORS[index + 1], linestyle="--", linewidth=1, label=name)
        each.set_title(game, fontsize=11)
        tidy(each)
        each.set_xlim(left=0)
    axes[0].set(ylabel="score of the last 100 games", xlabel="agent steps")
    axes[-1].axis("off")
    axes[-1].legend(*axes[0].get_legend_handles_labels(), loc="center", frameon=False)
    return drawn


def main() -> None:
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command_name", required=True, metavar="add|page")
    adding = commands.add_parser("add", help="keep the scores of runs")
    adding.add_argument("paths", type=Path, nargs="+", metavar="RUN", help="a run's folder, or a driver's file")
    adding.add_argument("--how", choices=("alone", "half", "shared"), required=True, help="what its minutes mean")
    adding.add_argument("--setting", help="its name (the algorithm's)")
    adding.add_argument("--command", help="how it was made (from its folder)")
    commands.add_parser("page", help="rebuild docs/results.md")
    options = parser.parse_args()
    if options.command_name == "page":
        page()
    else:
        add(options.paths, options.how, options.setting, options.command)


if __name__ == "__main__":
    raise SystemExit(run_program(main))
