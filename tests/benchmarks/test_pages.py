"""The programs that train for a page of the documentation: each continues where it was cut, and shows its results."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import commands
import defaults
import environments
import vector_presets
from accel_rl.config.presets import preset_names
from accel_rl.envs import EnvConfig
from accel_rl.errors import RunError
from defaults import ALGOS, SEEDS, TASKS
from environments import CASES, Case

ROOT = Path(__file__).parents[2]
Trained = list[str]


@pytest.fixture
def cut_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, int], Trained]:
    """Replaces a program's trainings, of which Ctrl-C ends one after so many others; returns the list of what was made,
    with "cut" for that one."""

    def replace_trainings(program: Any, name: str, number: int) -> Trained:
        made: Trained = []

        def train(what: Any) -> dict[str, Any]:
            if len(made) == number:
                made.append("cut")
                raise KeyboardInterrupt
            command = what if isinstance(what, str) else what.command
            made.append(command)
            score = {"mean_reward": 440.0 + len(made)}
            case = {"package": "a 1", "refused": "accel-rl: no"}
            return {"command": command, "score": score, "curve": {"steps": [200_192.0]}, **case}

        monkeypatch.setattr(program, name, train)
        return made

    return replace_trainings


# ---- settings for vectors on five environments ----


def test_the_page_shows_results_on_five_environments() -> None:
    """Would catch a table that is not of the committed results, and results of other commands than the program's."""
    known = json.loads((ROOT / defaults.RESULTS).read_text())["runs"]
    commands = [run["command"] for tasks in known.values() for runs in tasks.values() for run in runs.values()]
    assert commands == [defaults.command(algo, task, seed) for algo in ALGOS for task in TASKS for seed in SEEDS]
    assert defaults.table(known) in (ROOT / "docs/benchmarks.md").read_text()


def test_runs_that_are_known_are_not_made_again(
    cut_after: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a program that begins anew after it was cut, loses what it had, or keeps other commands' results."""
    file, made, run = tmp_path / "defaults.json", cut_after(defaults, "train_and_evaluate", 3), defaults.run
    with pytest.raises(KeyboardInterrupt):
        run(["a2c"], [1], file)
    assert [*run(["a2c"], [1], file)["a2c"]] == [*TASKS] and len(made) == len(TASKS) + 1
    assert [*run(["dqn"], [1], file)] == ["dqn", "a2c"] and len(made) == 2 * len(TASKS) + 1
    monkeypatch.setitem(TASKS, "CartPole-v1", ("--env CartPole-v1", 1000, 2000))
    assert run(["a2c"], [1], file)["a2c"]["CartPole-v1"]["1"]["command"] == made[-1]
    assert made[-1] == "accel-rl train --algo a2c --env CartPole-v1 --steps 2000 --seed 1"
    assert len(made) == 2 * len(TASKS) + 2
    assert run([], [], file) == json.loads(file.read_text())["runs"]


def test_the_figure_has_a_panel_for_each_task() -> None:
    """Would catch curves of other runs than the panel's."""

    def runs(scale: int) -> dict[str, Any]:
        scores = {seed: [0.0, 10.0 * seed * scale] for seed in (4, 6)}
        return {str(seed): {"curve": {"steps": [1000.0, 2000.0], "score": scores[seed]}} for seed in scores}

    scales = {"dqn": 1, "a2c": 3}
    known = {a: {task: runs(k * (i + 1)) for i, task in enumerate(TASKS)} for a, k in scales.items()}
    panels = defaults.make_figure(known).axes
    assert [axes.get_title() for axes in panels] == [*TASKS, ""]
    for index, axes in enumerate(panels[:-1]):
        means = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines}
        assert means["dqn"].tolist() == [0, 50 * (index + 1)] and means["a2c"].tolist() == [0, 150 * (index + 1)]


# ---- environments of many packages ----


class Lives(gymnasium.Env[Any, Any]):
    """Games of two lives, of three steps each, with rewards that are clipped to 1 of a score of 5."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, **_: Any) -> Any:
        return 0, {}

    def step(self, _: Any) -> Any:
        self._steps += 1
        info = {"score": 5.0, "game_over": self._steps % 6 == 0}
        return 0, 1.0, self._steps % 3 == 0, False, info


def test_the_page_shows_the_tried_environments() -> None:
    """Would catch a table that is not of the committed results, and results of other commands than the program's."""
    cases = json.loads((ROOT / environments.RESULTS).read_text())["cases"]
    assert {name: case["command"] for name, case in cases.items()} == {name: c.command for name, c in CASES.items()}
    assert [*cases] == [*CASES]
    assert environments.table(cases.values()) in (ROOT / "docs/environments.md").read_text()


def test_cases_that_are_known_are_not_run_again(
    cut_after: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Would catch a program that begins anew after it was cut, loses what it had, or keeps other commands' results."""
    file, ran, run = tmp_path / "environments.json", cut_after(environments, "run_case", 2), environments.run
    with pytest.raises(KeyboardInterrupt):
        run(["taxi", "cartpole", "crafter"], file)
    assert [*run(["crafter", "taxi", "cartpole"], file)] == ["cartpole", "taxi", "crafter"]
    assert ran == [CASES["taxi"].command, CASES["cartpole"].command, "cut", CASES["crafter"].command]
    monkeypatch.setitem(CASES, "taxi", replace(CASES["taxi"], flags="--algo ppo --env Taxi-v4"))
    assert run(["taxi", "cartpole"], file)["taxi"]["command"] == ran[-1] == CASES["taxi"].command
    assert len(ran) == 5 and f"| a 1 | `{CASES['taxi'].command}` | refused: no | | |" in capsys.readouterr().out


def test_random_games() -> None:
    """Would catch clipped rewards, games that end with a life, and a number of games other than asked for."""
    assert environments.play_randomly(EnvConfig(f"{__name__}:Lives"), games=3) == [30.0] * 3
    cartpole = EnvConfig("CartPole-v1", options={"sutton_barto_reward": True})
    assert environments.play_randomly(cartpole, games=1) == [-1.0]


@pytest.mark.parametrize(("status", "stderr"), [(0, "done\n"), (1, "it failed\n"), (2, "Traceback\n...\n")])
def test_what_is_no_refusal(status: int, stderr: str) -> None:
    """Would catch a page that calls refused what was trained, or what failed in many lines."""
    with pytest.raises(RunError, match=rf"^accel-rl train should be refused in one line, but ended with:\n{stderr}"):
        environments.refusal(subprocess.CompletedProcess(["accel-rl", "train"], status, "", stderr))


@pytest.mark.slow
def test_crafter() -> None:
    """Would catch an environment whose games do not follow from its seed, or that breaks gymnasium's rules."""
    pytest.importorskip("crafter")
    from benchmarks.crafter_env import Crafter

    env, again = Crafter(), Crafter()
    assert np.array_equal(env.reset(seed=3)[0], again.reset(seed=3)[0])
    for action in (1, 5, 3, 5, 2):
        picture, reward, *ends, _ = env.step(action)
        assert env.observation_space.contains(picture) and ends == [False, False]
        expected = again.step(action)
        assert np.array_equal(picture, expected[0]) and reward == expected[1]
    assert not np.array_equal(env.reset()[0], env.reset(seed=4)[0])


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a training, an evaluation or random games that fail, and figures that are not these games'."""
    monkeypatch.chdir(ROOT)
    result = environments.run_case(Case("gymnasium", "--algo ppo --env FrozenLake-v1 --steps 600 --horizon 16"))
    assert result["steps"] == 768 and result["score"]["episodes"] == 20
    assert 0 <= result["random_score"] <= 0.5 and 0 <= result["score"]["mean_reward"] <= 1


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_refused_case() -> None:
    """Would catch an environment of several agents whose message is longer than a line, or is of another reason."""
    pytest.importorskip("pettingzoo")
    assert "tictactoe_v3:env is a PettingZoo environment" in environments.run_case(CASES["tic_tac_toe"])["refused"]


# ---- every set of settings for vectors ----


def test_the_page_shows_results_of_todays_settings() -> None:
    """Would catch a preset that was changed and not trained again, and a table that is not of the results."""
    known = json.loads((ROOT / vector_presets.RESULTS).read_text())["sets"]
    sets = vector_presets.distinct_sets()
    assert {*preset_names()} - {name for names, _ in sets for name in names} == {"a2c_continuous"}
    for (name, *_), settings in sets:
        for seed, result in known.get(name, {"runs": {}})["runs"].items():
            assert known[name]["settings"] == settings
            assert result["command"] == vector_presets.command(name, settings, seed)
    assert vector_presets.table(known) in (ROOT / "docs/benchmarks.md").read_text()


def test_sets_that_are_known_are_not_trained_again(
    cut_after: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a program that begins anew after it was cut, or keeps results of other settings."""
    file, made = tmp_path / "vector_presets.json", cut_after(vector_presets, "train_and_evaluate", 2)

    def make(*names: str) -> dict[str, Any]:
        return vector_presets.run(names, [1, 2], file)

    sets = [(["ppo", "ppo_16x128"], {"horizon": 128}), (["a3c"], {"update": "central_store"})]
    monkeypatch.setattr(vector_presets, "distinct_sets", lambda: sets)
    with pytest.raises(KeyboardInterrupt):
        make()
    make("ppo_16x128")
    ppo = "accel-rl train --algo ppo --env CartPole-v1 --steps 200000 --sampler serial --seed"
    assert made == [f"{ppo} 1", f"{ppo} 2", "cut"]
    sets[0][1]["horizon"] = 64
    known = make()
    assert made[3].endswith("--seed 1") and made[5].startswith("accel-rl train --algo a3c") and "400000" in made[6]
    assert len(made) == 7 and json.loads(file.read_text())["sets"] == known
    assert vector_presets.table({"a3c": known["a3c"]}).endswith("\n\nNot run yet: `ppo`, `ppo_16x128`.")
    assert vector_presets.table(known).splitlines()[2:] == [
        "| `ppo`, `ppo_16x128` | 200,192 | **444** | 444, 445 |",
        "| `a3c` | 200,192 | **446** | 446, 447 |",
    ]


# ---- commands that do not train ----


def test_the_page_shows_how_long_commands_take() -> None:
    """Would catch a table that is not of the committed results, and results of other commands than the program's."""
    seconds = json.loads((ROOT / commands.RESULTS).read_text())["seconds"]
    assert [*seconds] == [*commands.COMMANDS]
    assert commands.table(seconds) in (ROOT / "docs/benchmarks.md").read_text()


@pytest.mark.slow
def test_commands_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Would catch a program that no longer runs, a first round that counts, and a command that fails in silence."""
    file = tmp_path / "commands.json"
    assert commands.main(["--rounds", "2", "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert {len(values) for values in result["seconds"].values()} == {2} and result["medians"].keys() == result[
        "seconds"
    ].keys()
    assert commands.table(result["seconds"]) in capsys.readouterr().out
    monkeypatch.setitem(commands.COMMANDS, "accel-rl lst", (("-m", "accel_rl", "lst"), 0))
    with pytest.raises(RunError, match="accel-rl lst has ended with status 2: accel-rl: "):
        commands.measure(1)
