"""Keeps the scores of runs, and makes docs/results.md from them.

python benchmarks/scores.py add RUN_DIR_OR_FILE ... --how alone|half|shared [--setting NAME] [--command TEXT]
python benchmarks/scores.py pace RUN_DIR ... [--setting NAME]
python benchmarks/scores.py page

`add` adds runs to benchmarks/results/scores/<setting>-<game>.json, a file for each setting and game. A run replaces the
run of the same seed. A FILE comes from another framework's program on this machine. --how says what the minutes mean:
the run had the machine to itself (alone), or one logical CPU of two while another run had the other (half), or shared
the machine with other programs, so its own minutes mean nothing (shared). `pace` records a setting's steps per minute
on a machine, from the last half of a short run that had it to itself. Shared runs get their minutes from the first pace
in the file. `page` writes the figures and tables of docs/results.md and, for trials, of
benchmarks/results/scores/README.md. New settings appear there automatically.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import scores_figures as figures
import scores_page as tables
from accel_rl.analysis.plot import read_log, save
from accel_rl.analysis.scores import ScoredRun, read_scores
from accel_rl.config.fields import flag_of
from accel_rl.envs.games.atari import game_name
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine
from command_line import make_parser, run_program
from scores_page import Values, is_trial

FOLDER = Path("benchmarks/results/scores")
PUBLISHED = FOLDER / "published.yaml"
PAGE, FIGURES = Path("docs/results.md"), Path("docs")
TRIALS = FOLDER / "README.md"
GAMES = ("pong", "breakout", "beam_rider", "seaquest", "space_invaders", "qbert", "enduro")
MAX_POINTS = 300  # points to keep of a curve


# ---- add ----


def add(paths: Sequence[Path], how: str, setting: str | None, command: str | None) -> None:
    """Adds the runs of these folders and files. Raises UsageError like `read_scores`."""
    for path in paths:
        for run in read_scores(path):
            run = ScoredRun(run.game, setting or run.setting, run.seed, _thinned(run.curve), run.final)
            file = _file(run.setting, run.game)
            kept: Values = json.loads(file.read_text()) if file.exists() else as_json([run]) | {"runs": []}
            about = {"how": how, "machine": _machine(path), "command": command or _command(path)}
            runs = {each["seed"]: each for each in kept["runs"]} | {run.seed: as_json([run])["runs"][0] | about}
            _write(file, kept | {"runs": [runs[seed] for seed in sorted(runs)]})
            print(f"{file}: seed {run.seed}, {len(run.curve)} points, score {run.score:.1f}")


def pace(paths: Sequence[Path], setting: str | None) -> None:
    """Records the steps per minute of these runs' folders. Raises UsageError for other folders, and without a file."""
    for path in paths:
        log = read_log(path)
        env = str(log.config["env"])
        rows = log.columns["time/total_timesteps"]
        steps, minutes = (values[len(values) // 2 :][[0, -1]] for values in (rows.steps, rows.time_s / 60))
        if not minutes[1] > minutes[0]:
            raise UsageError(f"{path} has too few rows for a pace; lower its --log-interval-steps")
        file = _file(setting or str(log.config.get("preset") or log.config["algo"]), game_name(env) or env)
        if not file.exists():
            raise UsageError(f"{file} is not there; add a run of this setting first")
        rate = round(float(np.diff(steps)[0] / np.diff(minutes)[0]))
        kept: Values = json.loads(file.read_text())
        kept["paces"] = kept.get("paces", {}) | {_machine(path): {"steps_per_minute": rate, "command": _command(path)}}
        _write(file, kept)
        print(f"{file}: {rate:,} steps per minute")


def _file(setting: str, game: str) -> Path:
    return FOLDER / f"{setting}-{game}.json"


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
    every = -(-len(curve) // MAX_POINTS)
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
    except (LookupError, OSError, ValueError) as error:
        raise UsageError(f"{path} does not say by which command it was made; give it with --command") from error
    return shlex.join(["accel-rl", *(word for word in words if word != "--overwrite")])


def _as_flags(settings: Values) -> list[str]:
    """Returns the arguments of `accel-rl train` for these settings."""
    words = []
    for name, value in settings.items():
        flag = flag_of(name)
        if value is None:
            words += [flag, "null"]
        elif isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-"))
        elif isinstance(value, dict):
            words += [flag, "{" + ", ".join(f"{key}: {each}" for key, each in value.items()) + "}"]
        else:
            words += [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return words


# ---- page ----


def page() -> None:
    """Writes the tables of both pages, and the figures."""
    published: Values = yaml.safe_load(PUBLISHED.read_text())
    kept = tables.read_kept(FOLDER)
    chosen, per_step, control = published["chosen"], published["per_step"], published["control"]
    played = tables.games_of(kept, per_step, GAMES)
    finished = tables.games_of(kept, per_step, GAMES, steps=1e6)
    tuned = tables.games_of(kept, control["tuned"], control["games"])
    limit = published["timed"]["minutes"]
    reached = tables.timed_steps(kept, (chosen, per_step), **published["timed"])
    all_games = [
        ("1 M steps", chosen, 1e6, GAMES),
        ("2 M steps", chosen, 2e6, GAMES),
        ("1 M steps", per_step, 1e6, finished),
    ]
    if len(finished) < len(GAMES):
        all_games.insert(2, (f"1 M steps, {', '.join(finished)} only", chosen, 1e6, finished))
    all_games += [(f"{limit} minutes", setting, steps, GAMES) for setting, steps in reached.items()]
    shown = [each for each in kept if not is_trial(each.setting)]
    trials = [each for each in kept if is_trial(each.setting)]
    paced = tables.read_kept(FOLDER, by_pace=True)
    methods = tables.best_by_method(paced, "pong", chosen)
    timed = tables.best_by_method([each for each in paced if each.last(tables.MINUTES) > 0], "pong", chosen)
    winner = tables.find(kept, chosen, "pong")
    blocks = {
        "advice": tables.advice_table(kept, published["advice"]),
        "methods": tables.methods_table(methods),
        "seeds": tables.seeds_table(winner) if winner else "No runs yet.\n",
        "games": tables.games_table(chosen, GAMES, kept, published, (1e6, 2e6)),
        "per step": tables.games_table(per_step, played, kept, published, (5e5, 1e6)),
        "timed": tables.timed_table(reached, limit, GAMES, kept),
        "all games": tables.all_games_table(kept, all_games),
        "control": tables.games_table(control["setting"], control["games"], kept, control, (5e5, 1e6)),
        "tuned control": tables.games_table(control["tuned"], tuned, kept, control, (5e5, 1e6)),
        "reference": tables.reference_table(kept, published["reference"]),
        "settings": tables.settings_table([each for each in shown if each.game == "pong"]),
        "commands": tables.commands_table(shown),
    }
    write_blocks(PAGE, blocks)
    write_blocks(TRIALS, {"trials": tables.settings_table(trials) + "\n" + tables.commands_table(trials)})
    save(figures.methods_figure(methods, timed), FIGURES / "results.png")
    save(figures.games_figure([chosen, per_step], GAMES, kept, published), FIGURES / "results_games.png")
    both = [control["setting"], control["tuned"]]
    save(figures.games_figure(both, control["games"], kept, control), FIGURES / "results_control.png")


def write_blocks(page: Path, blocks: Mapping[str, str]) -> None:
    """Writes the parts of a page between `<!-- scores.py: NAME -->` and `<!-- end -->`.

    Raises UsageError unless the page and the blocks have the same names."""
    text = page.read_text()
    names = re.findall(r"<!-- scores\.py: (.*?) -->\n", text)
    if sorted(names) != sorted(blocks):
        raise UsageError(f"{page} has marks for {', '.join(names)}; there are {', '.join(blocks)}")
    for name, block in blocks.items():
        begin = f"<!-- scores.py: {name} -->\n"
        before, rest = text.split(begin)
        text = before + begin + "\n" + block + "\n<!-- end -->" + rest.split("<!-- end -->", 1)[1]
    page.write_text(text)


def main() -> None:
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command_name", required=True, metavar="add|pace|page")
    adding = commands.add_parser("add", help="keep the scores of runs")
    adding.add_argument("paths", type=Path, nargs="+", metavar="RUN", help="a run's folder, or a driver's file")
    adding.add_argument("--how", choices=("alone", "half", "shared"), required=True, help="what its minutes mean")
    adding.add_argument("--setting", help="the setting's name (the algorithm's)")
    adding.add_argument("--command", help="the command that made it (read from its folder)")
    pacing = commands.add_parser("pace", help="record a setting's steps per minute")
    pacing.add_argument("paths", type=Path, nargs="+", metavar="RUN_DIR", help="a short run on an idle machine")
    pacing.add_argument("--setting", help="the setting's name (the algorithm's)")
    commands.add_parser("page", help="rebuild docs/results.md")
    options = parser.parse_args()
    if options.command_name == "page":
        page()
    elif options.command_name == "pace":
        pace(options.paths, options.setting)
    else:
        add(options.paths, options.how, options.setting, options.command)


if __name__ == "__main__":
    raise SystemExit(run_program(main))
