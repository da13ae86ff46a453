"""Tests of the command line and the package's functions: what they promise, and how they refuse bad input."""

import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

import accel_rl
from accel_rl import cli
from accel_rl.algos.a2c import A2CSettings
from accel_rl.analysis import summary
from accel_rl.analysis.trained_policy import TrainedPolicy
from accel_rl.cli import main
from accel_rl.config.atari_options import AtariOptions
from accel_rl.config.learners import LearnerSettings
from accel_rl.config.presets import load_preset, preset_names
from accel_rl.config.run_settings import RunSettings
from accel_rl.errors import UsageError
from accel_rl.samplers.queued.kind import QueueSettings
from accel_rl.settings.names import ABSENT, ELSEWHERE, NAME, built_in_setting_names, run_setting_names, unknown_setting
from accel_rl.settings.resolve import find_algo
from tests.helpers.processes import TINY, Result, run
from tests.helpers.runs import TINY_RUN, TINY_SERIAL_RUN, assert_same, assert_same_policy, assert_same_run, rows
from tests.helpers.samplers import TOYS

ROOT = Path(__file__).parents[1]


SERIAL = [*TINY, "--sampler", "serial"]


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: Any) -> Path:
    """A run with evaluations and TensorBoard."""
    out = tmp_path_factory.mktemp("cli") / "run"
    flags = [*TINY, "--eval-interval-steps", 320, "--eval-episodes", 4, "--log-interval-steps", 320, "--tensorboard"]
    flags += ["--report"]
    words = ["train", "--env", "CartPole-v1", "--steps", 960, "--seed", 7, "--out", out, "--final-games", 2, *flags]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as rows:
        assert main([str(word) for word in words]) == 0
    final = json.loads((out / "final.json").read_text())
    assert final["episodes"] == 2
    assert f"run folder      {out}" in said.getvalue() and f"video           {out}/video.mp4: " in said.getvalue()
    assert f"final policy    {final['mean_reward']:.1f} (std {final['std_reward']:.1f}) in 2 games" in said.getvalue()
    lines = [line for line in rows.getvalue().splitlines() if "steps/s" in line]
    assert [" left" in line for line in lines] == [True, True, False]
    evaluated = json.loads((out / "summary.json").read_text())["eval_mean_reward"]
    assert f"  evaluation score {evaluated:.1f}" in lines[-1]
    assert f"evaluation      score {evaluated:.1f}\n" in said.getvalue()
    assert said.getvalue().endswith(f"report          {out}/report.html\n")
    return out


@pytest.fixture(scope="module")
def pong(tmp_path_factory: Any) -> Path:
    out = tmp_path_factory.mktemp("cli") / "pong"
    settings = {**TINY_RUN, "env": "pong", "decorrelation_steps": 0, "max_episode_steps": 9, "noop_max": 3}
    settings["learning_rate"] = 1e-6
    return accel_rl.train(**settings, steps=80, out=out)


def call(capfd: Any, *words: Any) -> Result:
    """Runs a command in this process."""
    capfd.readouterr()
    try:
        status = main([str(word) for word in words])
    except SystemExit as end:
        status = int(end.code or 0)
    return Result(status, *capfd.readouterr())


# ---- a run's folder ----


def test_a_run_leaves_its_files(cartpole: Path) -> None:
    """A run leaves all its documented files, columns, keys and settings."""
    names = {path.name for path in cartpole.iterdir() if "tfevents" not in path.name}
    files = "config.yaml command.txt progress.csv log.txt checkpoint.pt policy.json policy.safetensors best.safetensors"
    assert names == set(
        f"{files} summary.json machine.json learning_curve.png report.html final.json video.mp4 lock".split()
    )
    assert len(list(cartpole.glob("events.out.tfevents.*"))) == 1
    page = (cartpole / "report.html").read_text()
    assert "data:video/mp4;base64," in page and json.loads((cartpole / "machine.json").read_text())["cpu"] in page
    table = rows(cartpole)
    assert [int(row["time/total_timesteps"]) for row in table] == [320, 640, 960]
    times = "total_timesteps time_elapsed fps sample_share learn_share env_wait_share inference_share network_bits"
    columns = {f"time/{name}" for name in f"{times} compiled_share sampling_threads learning_threads".split()}
    assert table[0].keys() >= columns | {"rollout/ep_rew_mean", "rollout/ep_len_mean", "eval/mean_reward"}
    assert {name.split("/")[0] for name in table[0]} == {"time", "rollout", "train", "eval"}
    assert all(math.isfinite(float(value)) for row in table for value in row.values())
    summary = json.loads((cartpole / "summary.json").read_text())
    scores = "ep_rew_mean ep_len_mean eval_mean_reward"
    assert " ".join(summary) == f"algo env seed total_timesteps time_elapsed fps {scores}"
    assert (summary["algo"], summary["env"], summary["seed"]) == ("a2c", "CartPole-v1", 7)
    assert summary["total_timesteps"] == 960
    assert summary["ep_rew_mean"] == float(table[-1]["rollout/ep_rew_mean"]) == summary["ep_len_mean"]
    assert "a2c on CartPole-v1: 4 environments in 2 workers" in (cartpole / "log.txt").read_text()
    config = yaml.safe_load((cartpole / "config.yaml").read_text())
    groups = (RunSettings, LearnerSettings, QueueSettings, A2CSettings)
    expected = {f.name for settings in groups for f in fields(settings)}
    assert config.keys() == expected  # every setting, resolved, and nothing of Atari
    assert config["schedule_steps"] == 960
    scores = [float(row["eval/mean_reward"]) for row in table]
    with safe_open(cartpole / "best.safetensors", framework="pt") as best:
        assert float(best.metadata()["score"]) == max(scores)
        assert best.metadata()["steps"] == table[scores.index(max(scores))]["time/total_timesteps"]
    with safe_open(cartpole / "policy.safetensors", framework="pt") as last:
        assert (last.metadata()["steps"], float(last.metadata()["score"])) == ("960", summary["ep_rew_mean"])


def test_a_run_repeats_from_its_own_config(cartpole: Path, tmp_path: Path) -> None:
    again = accel_rl.train(config=cartpole / "config.yaml", out=tmp_path / "again")
    assert again == tmp_path / "again"
    assert_same_run(again, cartpole)
    assert (again / "policy.json").read_bytes() == (cartpole / "policy.json").read_bytes()
    for name in ("policy.safetensors", "best.safetensors"):
        assert_same_policy(again, cartpole, name)


def test_overwrite_leaves_nothing_of_the_old_run(pong: Path, tmp_path: Path, capfd: Any) -> None:
    """--overwrite removes the old run's files after the settings were checked, but no file of the user's."""
    out = tmp_path / "run"
    settings = {**TINY_SERIAL_RUN, "horizon": 4, "eval_interval_steps": 16, "eval_episodes": 1}
    accel_rl.train(**settings, steps=16, out=out)
    assert (out / "best.safetensors").exists()
    (out / "notes.md").write_text("mine")
    (out / "video.mp4").touch()
    words = ["--env", "CartPole-v1", "--steps", 32, "--horizon", 4, *SERIAL, "--out", out]
    refused = call(capfd, "train", *words)
    refused.assert_one_line(2)
    assert f"{out} already holds a run" in refused.err
    assert f"--resume {out}" in refused.err and "--overwrite" in refused.err
    bad = call(capfd, "train", *words, "--overwrite", "--optimizer", "foo")
    bad.assert_one_line(2)
    assert (out / "best.safetensors").exists()  # settings are checked first
    assert call(capfd, "train", *words, "--overwrite").status == 0
    assert not (out / "best.safetensors").exists() and not (out / "video.mp4").exists()
    assert [row["time/total_timesteps"] for row in rows(out)] == ["32"]
    assert (out / "notes.md").exists()


# ---- uses of a run ----


def test_a_renderer_that_fails_is_said_and_no_error(
    cartpole: Path, tmp_path: Path, capfd: Any, monkeypatch: Any
) -> None:
    """A renderer that fails costs one printed line, and the final games are still scored."""
    shutil.copytree(cartpole, tmp_path / "run")
    monkeypatch.setattr(TrainedPolicy, "record_video", lambda *_, **__: [].eglInitialize)
    summary.play_final_games(tmp_path / "run", 1, seed=0)
    said = capfd.readouterr().out
    assert "in 1 games" in said and "video           none: 'list' object has no attribute 'eglInitialize'" in said


def test_eval_prints_one_json_object(cartpole: Path, capfd: Any) -> None:
    """`eval` prints one JSON object, and the seed and --greedy decide its scores."""
    answers = []
    for words in (["--seed", 1], ["--seed", 1, "--greedy"], ["--seed", 1, "--no-greedy"], ["--seed", 2, "--best"]):
        result = call(capfd, "eval", cartpole, "--episodes", 2, *words)
        assert result.status == 0, result.err
        answers.append(json.loads(result.out))
        assert list(answers[-1]) == ["mean_reward", "std_reward", "median_reward", "mean_length", "episodes"]
        assert answers[-1]["episodes"] == 2
    assert answers[0] == answers[1] != answers[2]
    assert answers[3] != answers[0]


def test_predict_returns_the_environments_actions(cartpole: Path, pong: Path) -> None:
    """`predict` returns actions of the environment's kind, for one observation or a batch."""
    for folder, env_id, num_actions in ((cartpole, "CartPole-v1", 2), (pong, "pong", 6)):
        agent = accel_rl.load(folder)
        env = accel_rl.envs.make_env(env_id)
        observation, _ = env.reset(seed=0)
        action, state = agent.predict(observation)
        assert isinstance(action, np.int64) and env.action_space.contains(action) and state is None
        env.step(action)
        batch = np.stack([observation] * 5)
        actions, _ = agent.predict(batch, deterministic=True)
        assert actions.shape == (5,) and len(set(actions.tolist())) == 1
        assert actions[0] == agent.predict(observation, deterministic=True)[0]
        sampled, _ = agent.predict(np.stack([observation] * 200))
        assert set(sampled.tolist()) == set(range(num_actions))  # hardly trained: every action has a fair probability
        with pytest.raises(ValueError, match="observation of shape"):
            agent.predict(observation[1:])
        with pytest.raises(ValueError, match="a pair of an observation and its info"):
            agent.predict(env.reset())
    best = accel_rl.load(str(cartpole), best=True).policy.state_dict()
    assert_same(dict(best), load_file(cartpole / "best.safetensors"))


def test_record_and_plot_make_files(cartpole: Path, pong: Path, tmp_path: Path, capfd: Any) -> None:
    """`record` writes a video and `plot` a picture."""
    video, picture = tmp_path / "new" / "video.mp4", tmp_path / "curves.png"
    result = call(capfd, "record", pong, "--out", video)
    assert result.status == 0 and re.match(rf"{video}: score -?\d+ in 9 steps\n", result.out), result
    assert video.read_bytes()[4:8] == b"ftyp"
    result = call(capfd, "plot", cartpole, pong, "--out", picture)
    assert (result.status, result.out) == (0, f"{picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_there_is_no_score_before_a_game_has_finished(tmp_path: Path, capfd: Any) -> None:
    """Before a game has finished, scores are null and a plot is refused."""
    out = tmp_path / "run"
    words = ["--env", f"{TOYS}:Counting", "--env-options", "{lengths: [0]}", "--steps", 32, "--out", out, *SERIAL]
    result = call(capfd, "train", *words)
    assert result.status == 0 and "no game finished" in result.out
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ep_rew_mean"] is None and summary["ep_len_mean"] is None
    result = call(capfd, "plot", out, "--out", tmp_path / "curve.png")
    result.assert_one_line(2)
    assert "no game has finished yet" in result.err


def test_list_names_all_that_train_accepts(capfd: Any) -> None:
    first_words = {
        what: [line.split()[0] for line in call(capfd, "list", what).out.splitlines()]
        for what in ("algos", "envs", "presets")
    }
    assert {"pong", "breakout", "CartPole-v1"} <= set(first_words["envs"])
    assert first_words["presets"] == [*preset_names(), "stooke", "dqn84", "v5"]
    algos = {*first_words["algos"]}
    assert {"a3c", "gunreal", "ppo_small", "qr_dqn_small"} <= algos and not algos & {"a2c_64", "pqn_16x32"}
    assert algos >= {name for name in preset_names() if "base" not in load_preset(name)}
    reader = subprocess.run(
        f"{sys.executable} -m accel_rl list envs | head -1", shell=True, capture_output=True, text=True
    )
    assert (reader.stdout, reader.stderr) == ("adventure\n", "")  # and no error about a broken pipe


def test_help_explains_every_setting(capfd: Any) -> None:
    result = call(capfd, "train", "--help-all")
    assert result.status == 0
    for settings in (RunSettings, LearnerSettings, QueueSettings, AtariOptions, A2CSettings):
        for field in fields(settings):
            assert field.metadata["help"], field.name
            flag = f"--{field.name.replace('_', '-')}"
            assert re.search(rf"^  {flag}[ ,]", result.out, re.MULTILINE), flag
    assert "Settings: default < preset < --config" in result.out
    for command in ("train", "launch", "tune", "eval", "record", "plot", "report", "watch", "list", "bench"):
        result = call(capfd, command, "--help")
        assert result.status == 0 and f"accel-rl {command}" in result.out
        assert command in call(capfd, "--help").out
        assert all(action.help for action in cli._actions(cli._parser([command]), command))
    assert call(capfd, "--version").out == f"accel-rl {accel_rl.__version__}\n"


def test_help_begins_with_what_matters(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short help fits 100 lines and has the algorithm's own settings, even for a user's algorithm."""
    monkeypatch.setenv("COLUMNS", "80")
    for algo, own in (("ppo", "clip"), ("categorical_dqn", "atoms"), ("docs.reinforce:Reinforce", "normalize")):
        shown = call(capfd, "train", "--algo", algo, "--help").out
        assert shown.count("\n") < 100
        flags = re.findall(r"^  --([a-z-]+)", shown, re.MULTILINE)
        assert {"steps", "envs", "seed", "learning-rate", "help-all", own} <= {*flags} and "chunks" not in flags


# ---- names of other frameworks ----


def tables(heading: str) -> list[list[str]]:
    """Returns the rows of the tables under a heading of docs/coming_from.md, without their heads."""
    page = (ROOT / "docs" / "coming_from.md").read_text()
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert section
    rows = [[cell.strip() for cell in line.split(" |")] for line in section[1].splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "| here"]


def test_names_of_other_frameworks_are_answered_as_documented() -> None:
    """A setting of another framework is answered with the name that the page gives."""
    known, documented = {*run_setting_names(), *built_in_setting_names(), "out"}, dict[str, set[str]]()
    for row in tables("Settings"):
        ours = {flag.replace("-", "_") for flag in re.findall(r"`--([a-z-]+)`", row[0])}
        assert ours and ours <= known, row
        for theirs in re.findall(r"`(\w+)`", "".join(row[1:5])):
            documented.setdefault(theirs.lower(), set()).update(ours)
    for name, ours in documented.items():
        answer = re.fullmatch(rf"unknown setting {name}: here it is (.*)", str(unknown_setting("setting", name, known)))
        assert answer and {*NAME.findall(answer[1])} <= ours, name
    for formula, theirs in ELSEWHERE.items():
        assert all({*NAME.findall(formula)} <= documented[name] for name in theirs.split() if name != "lr"), formula
    for name, reason in ABSENT.items():
        assert str(unknown_setting("setting", name, known)) == f"unknown setting {name}: {reason}"
    page = (ROOT / "docs" / "coming_from.md").read_text()
    absent = page.partition("no counterpart here")[2].partition("\n* metrics")[0]
    assert {*ABSENT} <= {*re.findall(r"`(\w+)`", absent)}
    flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z][a-z-]*)", page)}
    assert flags <= known | {"lr", "env_id", "resume"}


def test_documented_metrics_and_files_exist(cartpole: Path, tmp_path: Path) -> None:
    """Runs have all the metrics and files that the page on other frameworks names."""
    metrics = {*rows(cartpole)[0]}
    for algo, small in (
        ("ppo", {"horizon": 10, "epochs": 1, "minibatches": 2}),
        ("dqn", {"warmup_steps": 20, "batch_size": 8}),
    ):
        settings = {**TINY_SERIAL_RUN, "algo": algo, "log_interval_steps": 40, **small}
        metrics |= {*rows(accel_rl.train(**settings, steps=80, out=tmp_path / algo))[-1]}
    assert {name for row in tables("Metrics") for name in re.findall(r"`([\w/]+)`", row[0])} <= metrics
    files = [name for row in tables("Files") for name in re.findall(r"`([^`]+)`", row[0])]
    assert len(files) > 10 and all([*cartpole.glob(name)] for name in files)


# ---- where it is called from ----

MY_ENV = "import gymnasium\ndef make(gravity):\n    return gymnasium.make('CartPole-v1', sutton_barto_reward=False)\n"


def test_workers_find_modules_in_the_current_directory(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_env.py").write_text(MY_ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["--env", "my_env:make", "--env-options", "{gravity: 1}", "--steps", 64, "--seed", 5, *TINY]
    result = call(capfd, "train", *words)
    assert result.status == 0 and "Traceback" not in result.err, result.err
    (folder,) = (tmp_path / "results" / "a2c" / "my_env_make").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-\d{6}-s5", folder.name)
    name = folder.relative_to(tmp_path)
    assert f"run folder      {name}" in result.out
    assert f"accel-rl record {name} --out {name}/video.mp4 --trust" in result.out


@pytest.mark.slow
def test_modules_in_the_current_directory_can_be_imported(tmp_path: Path) -> None:
    """runs/train.py imports modules of the current directory, as the installed command does (test_import_path.py)."""
    (tmp_path / "my_env.py").write_text(MY_ENV)
    words = ["--env", "my_env:make", "--env-options", "{gravity: 1}", "--steps", 64, "--seed", 5, *TINY]
    result = run(*words, cwd=tmp_path, script=ROOT / "runs" / "train.py")
    assert result.status == 0 and "Traceback" not in result.err, result.err
    (folder,) = (tmp_path / "results" / "a2c" / "my_env_make").iterdir()
    assert shlex.join(map(str, words)) in (folder / "command.txt").read_text()


@pytest.mark.slow
def test_the_users_main_module_is_imported_once(tmp_path: Path) -> None:
    """Workers do not import the script that started them."""
    (tmp_path / "my_env.py").write_text(MY_ENV)
    (tmp_path / "script.py").write_text(
        "import accel_rl\n"
        "print('imported')\n"
        "if __name__ == '__main__':\n"
        f"    settings = {TINY_RUN | {'env': 'my_env:make', 'env_options': {'gravity': 1}, 'steps': 64}!r}\n"
        "    folder = accel_rl.train('a2c', **settings, out='run')\n"
        "    print(folder, accel_rl.load(folder).predict([0.0] * 4)[0])\n"
    )
    result = run(cwd=tmp_path, script=tmp_path / "script.py")
    assert result.status == 0, result.err
    assert re.fullmatch(r"imported\nrun [01]\n", result.out), result.out
    assert result.err == ""


# ---- bad input ----

BAD_ARGUMENTS = [
    ("", "required: COMMAND"),
    ("trian", "invalid choice: 'trian'"),
    ("train --env pogn", "unknown environment 'pogn'; did you mean pong"),
    ("train --algo nomodule.x:Algo", "there is no module 'nomodule'"),
    ("train --env broken:Env", r"environment 'broken:Env': /.*/broken\.py, line 2: invalid syntax"),
    ("train --algo accel_rl.algos.a2c:A2D", "unknown algorithm 'A2D'; did you mean A2C"),
    ("train --algo accel_rl.settings.resolve:Config", "not a subclass of accel_rl.algos.Algo"),
    ("train --preset a2d", "unknown preset 'a2d'; did you mean a2c"),
    ("train --env-preset stoke", "unknown env.preset 'stoke'; did you mean stooke"),
    ("train --learnin-rate 1", "unknown argument '--learnin-rate'; did you mean --learning-rate"),
    ("train --network math:sqrt", "network math:sqrt does not fit observations"),
    ("train --env CartPole-v1 --reset-mode reserve", "reset_mode=reserve needs states that can be copied"),
    ("train --env vector:CartPole-v1 --reset-mode wait", "reset_mode=wait pauses single environments"),
    ("train --envs 5", "envs=5 does not split into 2 groups; use an even number, or --sampler serial"),
    ("train --envs 6 --workers 8", "workers=8 are more than envs=6; use 6 or fewer"),
    ("train --devices cpu --learners-per-gpu 1e16", "learners_per_gpu=10000000000000000 must be at most 1024"),
    (f"train --init-from {'9' * 300}", "there is no such file or folder"),
    (f"train --resume {'9' * 300}", "File name too long"),
    ("train --devices 'cpu\ncpu'", r"devices='cpu\\ncpu' must be one line of text"),
    ("train --learning-rate -1", "learning_rate=-1.0 must be greater than 0"),
    ("train --algo SAC", r"unknown algorithm 'SAC' \(`accel-rl list algos`"),
    ("train --core-size 9", "core_size=9 changes nothing without --core: add that, or omit this"),
    ("train --predictors 3", "predictors=3 changes nothing without --sampler queued"),
    ("train --lr 1e-3", "unknown argument --lr: here it is --learning-rate$"),
    ("train --learning_rate 1e-3", "unknown argument --learning_rate: here it is --learning-rate$"),
    ("train --algo ppo --batch-size 64", "--batch-size: here it is --envs x --horizon / --minibatches$"),
    ("train --algo a2c --batch-size 64", "--batch-size: here it is --envs x --horizon$"),
    ("train --algo pqn --replay-size 1000", "argument --replay-size: other algorithms have it, this one does not$"),
    ("train --algo a2d", "unknown algorithm 'a2d'; did you mean a2c"),
    ("train --learning-rate fast", "learning_rate='fast' must be of type float"),
    ("train --discount 2", "discount=2.0 must be at most 1"),
    ("train --steps", "--steps: expected one argument"),
    ("train --optimizer-options '{momentun: 1}'", "momentun"),
    ("train --on-env-error explode", "choose from fail, restart"),
    ("train --frame-shape 84xa", "frame_shape=.* must be two positive integers"),
    ("train --env-options '{frame_skip: 2}'", "pong takes no env_options"),
    ("train --env CartPole-v1 --env-options '{gravty: 2}'", "unexpected keyword argument 'gravty'"),
    (
        "train --seed 1 --env-options g=1 h=2 --env CartPole-v1",
        "--env-options takes one mapping in quotes, as in --env-options '{g: 1, h: 2}'$",
    ),
    ("train --env-options '{g: 1}' --seed 1 pong", "unknown argument 'pong'"),
    ("train --algo dqn --double True", "--double takes no value: --double switches it on, --no-double off"),
    ("train --config {folder}", "cannot read settings from .*: Is a directory"),
    ("train --config {folder}/broken.yaml", "broken.yaml is not YAML"),
    ("train --config {folder}/aliases.yaml", "aliases.yaml is not YAML: more than 16 aliases"),
    ("train --config {folder}/deep.yaml", "deep.yaml is not YAML: maximum recursion depth"),
    ("train --config {folder}/unknown.yaml", "unknown setting 'learnin_rate'; did you mean learning_rate"),
    ("train --out {folder}/list.yaml", "cannot write the run's folder .*: File exists"),
    ("train --resume {folder}", "holds no run"),
    ("train --resume {run}", "has 960 steps already; use --steps"),
    ("train --resume {run} --steps 2000 --seed 8 --envs 8", "--seed, --envs would change the run"),
    ("train --resume {run} --steps 2000 --env pong", "--env would change the run; .* start a new run with --init-from"),
    ("train --resume {run} --steps 2000 --algo dqn --env CartPole-v1", "^accel-rl: --algo would change the run"),
    ("train --resume {run} --steps 2000 --out {folder}", "omit --out and --config"),
    ("train --resume {run} --steps 2000 --overwrite", "omit --overwrite"),
    ("eval {folder}", "holds no run"),
    ("eval {run}/policy.json", "policy.json is a file; name the run's folder"),
    ("eval {run} --episodes 0", "episodes=0 must be at least 1"),
    ("eval {run} --episodes some", "invalid int value: 'some'"),
    ("eval {run} --seed -1", "seed=-1 must be at least 0"),
    ("eval {pong} --best", r"there is no .*best\.safetensors: no evaluation has been kept; omit --best"),
    ("record {pong} --out {folder}/video.avi", "ends in .mp4"),
    ("plot", "required: RUN_DIR, --out"),
    ("plot {run} --out {folder}/curve.xyz", "its name must end in"),
    ("plot {run} --out {folder}/list.yaml/curve.png", "cannot write"),
]


@pytest.mark.slow
def test_the_reset_mode_is_resolved_and_logged(tmp_path: Path) -> None:
    """The default reset mode is resolved into config.yaml, and a game that falls back is logged."""
    atari = {**TINY_SERIAL_RUN, "decorrelation_steps": 0, "max_episode_steps": 9, "steps": 20}
    for env, reset_mode, falls_back in (("pong", "reserve", False), ("kung_fu_master", "reserve", True)):
        out = accel_rl.train(**{**atari, "env": env}, out=tmp_path / env)
        assert yaml.safe_load((out / "config.yaml").read_text())["reset_mode"] == reset_mode
        said = f"{env} starts from real resets, not from prepared states: its resets depend on what was played before"
        assert (said in (out / "log.txt").read_text()) == falls_back
    out = accel_rl.train(**TINY_RUN, steps=20, out=tmp_path / "cartpole")
    assert yaml.safe_load((out / "config.yaml").read_text())["reset_mode"] == "immediate"


@pytest.mark.parametrize(("words", "message"), BAD_ARGUMENTS, ids=[words or "nothing" for words, _ in BAD_ARGUMENTS])
def test_bad_arguments_are_refused(
    words: str, message: str, cartpole: Path, pong: Path, tmp_path: Path, capfd: Any, monkeypatch: Any
) -> None:
    """Bad arguments are refused with one helpful line and status 2, and nothing is written."""
    (tmp_path / "broken.yaml").write_text("a: [1\nb")
    (tmp_path / "broken.py").write_text("import os\ndef make(:\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "deep.yaml").write_text("[" * 500 + "]" * 500)
    laughs = (f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(30))  # 9 to the 30th
    (tmp_path / "aliases.yaml").write_text("\n".join(["a0: &a0 ha", *laughs]))
    (tmp_path / "unknown.yaml").write_text("learnin_rate: 1\n")
    before = sorted(os.listdir(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)  # where `results` would appear
    for name, folder in (("{folder}", tmp_path), ("{run}", cartpole), ("{pong}", pong)):
        words = words.replace(name, str(folder))
    result = call(capfd, *shlex.split(words))
    result.assert_one_line(2)
    assert result.out == ""
    assert re.search(message, result.err), result.err
    assert sorted(os.listdir(tmp_path)) == before


def test_bad_settings_are_refused_in_python(tmp_path: Path) -> None:
    """Unknown keyword arguments raise UsageError before anything is written."""
    with pytest.raises(UsageError, match="unknown setting 'learnin_rate'; did you mean learning_rate"):
        accel_rl.train(learnin_rate=1, out=tmp_path / "run")
    with pytest.raises(UsageError, match="unknown setting lr: here it is learning_rate"):
        accel_rl.train(lr=1, out=tmp_path / "run")
    with pytest.raises(UsageError, match="unknown setting exp_name: here it is out"):
        accel_rl.train(exp_name="run")
    assert os.listdir(tmp_path) == []


def test_a_real_process_refuses_bad_arguments_as_well() -> None:
    result = run("list", "games")
    result.assert_one_line(2)
    assert result.out == ""


def test_what_needs_no_algorithm_is_answered_at_once(tmp_path: Path) -> None:
    """Answers that need no algorithm, such as to a mistyped flag, do not import torch, which takes seconds.

    The doctor imports no package before it has checked it."""
    (tmp_path / "config.yaml").write_text("algo: dqn\n")
    code = (
        "import sys; from accel_rl import cli; cli._parser([]); assert 'yaml' not in sys.modules\n"
        "import accel_rl.doctor.survey\n"
        "for words in ('trian', 'train --lr 1', 'train --algo ppo --clip-rang=1', 'train --algo a2d --out x', "
        f"'train --config {tmp_path}/config.yaml --epsilon-stps 1', 'launch --resume {tmp_path} --seeed 1'):\n"
        "    assert cli.main(words.split()) == 2, words\n"
        "    assert {'torch', 'gymnasium', 'numba', 'numpy'}.isdisjoint(sys.modules), words\n"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0 and process.stderr.count("\n") == 6, process.stderr


def test_the_names_of_built_in_settings_are_all_known() -> None:
    """The names of built-in settings are those of the algorithms' Settings classes."""
    classes = {find_algo(name)[0] for name in preset_names()}
    assert {*built_in_setting_names()} == {f.name for algo in classes for f in fields(algo.Settings)}


def test_too_few_addresses_for_torch_are_one_line(tmp_path: Path) -> None:
    """Too little address space to import torch is reported in one line."""
    limited = 'ulimit -v 400000; exec "$0" -m accel_rl train --env CartPole-v1'
    process = subprocess.run(["sh", "-c", limited, sys.executable], capture_output=True, text=True, cwd=tmp_path)
    Result(process.returncode, process.stdout, process.stderr).assert_one_line(1)
    assert re.search(r"limit of 0\.4 GB .* is too low \(.*failed to map segment.*\); raise it", process.stderr)
