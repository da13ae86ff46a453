"""Experiments: the meaning of their files, how they continue after any kind of end, the table and the figure."""

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import psutil
import pytest
import yaml

from accel_rl.errors import UsageError
from accel_rl.experiments import local, report
from accel_rl.experiments.experiment import resolve_all
from accel_rl.experiments.grid import Experiment, read_experiment
from accel_rl.experiments.local import LocalExecutor, Slot, make_slots, num_slots, placement
from accel_rl.experiments.tasks import Task, inspect_run, run_tasks
from accel_rl.hardware.topology import CpuTopology
from accel_rl.run_folder import checkpoint
from accel_rl.run_folder.lock import locked
from accel_rl.settings.resolve import resolve
from tests.helpers.processes import TIMEOUT_S
from tests.helpers.runs import TINY, rows
from tests.test_cli import call

SHIPPED = Path(__file__).parents[2] / "runs" / "experiments"
SMALL: dict[str, Any] = {**TINY, "sampler": "serial", "decorrelation_steps": 20, "log_interval_steps": 100}


def write(path: Path, **parts: Any) -> Path:
    path.write_text(yaml.safe_dump(parts, sort_keys=False))
    return path


# ---- files ----


def test_a_file_describes_its_runs(tmp_path: Path) -> None:
    """A file describes the runs of all combinations and seeds, whose names do not depend on other blocks."""
    file = write(
        tmp_path / "x.yaml",
        settings={"env": "pong", "steps": 1000, "workers": 4},
        grid=[
            {"algo": ["a2c", "ppo"], "learners": [1, 4], "envs_per_learner": 8},
            {"algo": "a2c", "learners": 2, "network": ["my.nets:Net"], "horizon": [5, 7]},
        ],
        seeds=[3, 4],
    )
    experiment = read_experiment(file, {"steps": "500"})
    assert "workers" not in read_experiment(file, {"envs_per_worker": 2}).combinations[0].settings
    assert [run.name for run in experiment.runs] == [
        *(f"{algo}-learners{n}-s{seed}" for algo in ("a2c", "ppo") for n in (1, 4) for seed in (3, 4)),
        *(f"my.nets_Net-horizon{horizon}-s{seed}" for horizon in (5, 7) for seed in (3, 4)),
    ]
    assert experiment.title == "x"
    assert experiment.runs[7].settings == {
        "env": "pong", "steps": "500", "workers": 4, "algo": "ppo", "envs": 32, "seed": 4
    }  # fmt: skip
    assert experiment.runs[7].combination.learners == 4
    last = experiment.runs[-1].settings
    assert last == {
        "env": "pong", "steps": "500", "workers": 4, "algo": "a2c", "network": "my.nets:Net", "horizon": 7, "seed": 4
    }  # fmt: skip


def test_the_papers_numbers_belong_to_their_runs() -> None:
    """The shipped files match each run with its numbers from the paper, so their speed-ups are the paper's."""
    speed_ups = {}
    for name, num_rows in (("table2", 14), ("table3", 12)):
        experiment = read_experiment(SHIPPED / f"{name}.yaml")
        numbers = {c.name: experiment.paper.numbers(c).get("hours") for c in experiment.combinations}
        assert sum(hours is not None for hours in numbers.values()) == num_rows == len(experiment.paper.rows)
        assert experiment.paper.steps == 50_000_000
        for algo in {str(c.values["algo"]) for c in experiment.combinations}:
            one, eight = numbers[f"{algo}-learners1"], numbers[f"{algo}-learners8"]
            if one and eight:
                speed_ups[algo] = round(one / eight, 1)
    assert speed_ups == {
        "a2c": 6.4, "ppo": 4.0, "dqn_512": 3.2, "eps_rainbow_512": 2.2, "categorical_dqn_2048": 5.9
    }  # fmt: skip
    table2 = read_experiment(SHIPPED / "table2.yaml")
    envs = {c.name: c.settings["envs"] for c in table2.combinations}
    assert (envs["a2c-learners8"], envs["a3c-learners2"], envs["ppo-learners1"], envs["appo-learners8"]) == (
        128, 32, 8, 64
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_runs"),
    [
        ("table2", 16),
        ("table3", 12),
        ("cartpole", 8),
        ("auxiliary", 12),
        ("auxiliary_alone", 3),
        ("ga3c_batches", 12),
        ("gunreal", 4),
    ],
)
def test_shipped_files_can_be_run(name: str, num_runs: int) -> None:
    """All runs of a shipped file resolve on eight learners."""
    experiment = read_experiment(SHIPPED / f"{name}.yaml", {"share_processors": True})
    assert len(resolve_all(experiment, LocalExecutor([Slot("cpu", None)] * 8))) == num_runs


CARTPOLE = {"env": "CartPole-v1"}  # quick to make, since nothing is compiled
GOOD: dict[str, Any] = {"settings": CARTPOLE, "grid": [{"algo": ["a2c", "ppo"]}]}
HOURS = {"algo": "a2c", "hours": 1}
BAD_PARTS: list[tuple[dict[str, Any], str]] = [
    ({"settigns": {}}, "unknown part 'settigns'; did you mean settings"),
    ({"grid": None}, r"grid=None must be a list, as in `- algo: \[a2c, ppo\]`"),
    ({"grid": [{"algo": []}]}, r"algo: \[\] leaves no combination"),
    ({"settings": 3}, "settings=3 must be a mapping of names, as in `steps: 1000`"),
    ({"seeds": 3}, r"seeds=3 must be a list, as in \[1, 2, 3\]"),
    ({"seeds": [-1]}, "seeds=-1 must be an integer of at least 0"),
    ({"seeds": [1, 1]}, r"seeds: \[1, 1\] names a seed twice"),
    ({"settings": {"seed": 1}}, "seed cannot be set in an experiment; name the seeds under `seeds`"),
    ({"grid": [{"device": ["cpu"]}]}, "device cannot be set in an experiment; name devices with --gpus"),
    ({"settings": {**CARTPOLE, "learners_per_gpu": 2}}, "cannot be set in an experiment; use the flag --learn"),
    ({"settings": {**CARTPOLE, "learnin_rate": 1}}, "a2c-s0: unknown setting 'learnin_rate'; did you mean learning_r"),
    ({"grid": [{"algo": ["a2c", "a2d"]}]}, "a2d-s0: unknown algorithm 'a2d'; did you mean a2c"),
    ({"grid": [{"learners": [3]}]}, "learners3-s0: 3 learners do not fit on cpu,cpu; name more"),
    ({"grid": [{"envs": 4, "envs_per_learner": 4}]}, "envs and envs_per_learner contradict each other"),
    ({"grid": [{"horizon": 5}, {"horizon": 6}]}, r"2 runs would have the name a2c-s0; .*`horizon: \[5\]`"),
    ({"grid": [{"algo": "a2c"}, {"discount": [0.99]}]}, "a2c-s0 and discount0.99-s0 are the same run"),
    ({"paper": {"numbers": []}}, "unknown part of paper 'numbers'"),
    ({"paper": {"steps": 9, "rows": [{**HOURS, "algo": "a3c"}]}}, "matches no combination of the grid"),
    ({"paper": {"steps": 9, "rows": [{"algo": "a2c", "days": 1}]}}, "must have at least one number: score"),
    ({"paper": {"rows": [HOURS]}}, "paper's hours need the number of steps"),
]
BAD_FLAGS = [
    ("--devices cpu,tpu", "devices='cpu,tpu': learners are all on the CPU or all on GPUs"),
    ("--gpus 97", "devices='97', but there is no GPU"),
    ("--devices cpu --learners-per-gpu 2", "that is for GPUs; name cpu once for each learner, as in --devices cpu,cpu"),
    ("--algo dqn", "algo is varied by the grid; omit --algo"),
    ("--overwrite", "--overwrite is for a single run"),
    ("--device cpu", "--device is for a single run"),
    ("--out /proc/x", "cannot write the experiment's folder /proc/x"),
]


@pytest.mark.parametrize(("parts", "message"), BAD_PARTS, ids=[message for _, message in BAD_PARTS])
def test_bad_files_are_refused(parts: dict[str, Any], message: str, tmp_path: Path, capfd: Any) -> None:
    """A mistake in a file is refused in one line before anything is written."""
    file = write(tmp_path / "x.yaml", **{**GOOD, **parts})
    result = call(capfd, "launch", "--experiment", file, "--devices", "cpu,cpu", "--out", tmp_path / "out")
    result.assert_one_line(2)
    assert re.search(message, result.err), result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("words", "message"), BAD_FLAGS)
def test_bad_flags_are_refused(words: str, message: str, tmp_path: Path, capfd: Any) -> None:
    """A flag that contradicts the file or the other flags is refused in one line."""
    file, where = write(tmp_path / "x.yaml", **GOOD), [] if re.search("--(gpus|devices)", words) else ["--gpus", "auto"]
    result = call(capfd, "launch", "--experiment", file, "--out", tmp_path / "out", *words.split(), *where)
    result.assert_one_line(2)
    assert re.search(message, result.err), result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", ["--summary", "--executor ray", "--job {cpus:2}"])
def test_flags_of_experiments_need_one(words: str, capfd: Any) -> None:
    """A flag for experiments is refused without one."""
    result = call(capfd, "launch", "--env", "CartPole-v1", *words.split())
    result.assert_one_line(2)
    assert f"{words.split()[0]} needs an experiment" in result.err


# ---- slots ----


class Process:
    """A run's process, which ends when the test says so."""

    def __init__(self) -> None:
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status


def test_runs_start_when_their_slots_are_free(tmp_path: Path, monkeypatch: Any) -> None:
    """A run starts when enough slots are free, and gives them back at its end."""
    monkeypatch.setattr(Task, "start", lambda task, where, trust: Process())
    executor = LocalExecutor([Slot(f"cuda:{index}", None) for index in range(4)])
    one, two = (Task(f"{learners}", tmp_path / "run", {}, {}, 100, learners) for learners in (1, 2))
    jobs = [executor.start(task) for task in (one, two, two, one, one)]
    assert [job and job.slots for job in jobs] == [(0,), (1, 2), None, (3,), None]
    jobs[1].process.status = 0  # type: ignore[union-attr]
    assert [job and job.slots for job in (executor.start(two), executor.start(one))] == [(1, 2), None]


def test_slots_share_out_the_logical_cpus(monkeypatch: Any) -> None:
    """Slots share out the logical CPUs near their GPUs, each CPU to one slot unless they are shared."""
    cores = tuple((core, core + 4) for core in (0, 2, 1, 3))
    machine = CpuTopology(cores, nodes=(0, 1, 0, 1), num_online=8)
    devices = ["cuda:0", "cuda:1"]
    monkeypatch.setattr(local, "gpu_node", {"cuda:0": 1, "cuda:1": 0, "cpu": None}.get)
    slots = make_slots(devices, machine)
    assert slots == [Slot("cuda:0", (2, 3, 6, 7)), Slot("cuda:1", (0, 1, 4, 5))]
    assert placement(slots, 2) == {"devices": "cuda:0,cuda:1", "cpus": "0-7"}
    assert placement(slots[:1], 1) == {"device": "cuda:0", "cpus": "2-3,6-7"}
    assert placement(slots[:1], 3) == {"devices": "cuda:0", "learners_per_gpu": 3, "cpus": "2-3,6-7"}
    assert [num_slots(*pair) for pair in ((1, 1), (8, 1), (1, 2), (2, 2), (8, 2))] == [1, 8, 1, 1, 4]
    with pytest.raises(UsageError, match="3 learners do not fill GPUs with learners_per_gpu=2 each"):
        num_slots(3, 2)
    assert sorted(cpu for slot in make_slots(["cpu"] * 3, machine) for cpu in slot.cpus or ()) == [*range(8)]
    with pytest.raises(UsageError, match=r"learners=3 need a logical CPU each.* or --share-processors"):
        make_slots(["cpu"] * 3, CpuTopology(((5,), (7,)), (0, 0), 2))
    shared = make_slots(["cpu"] * 3, CpuTopology(((5,), (7,)), (0, 0), 2), share=True)
    assert [slot.cpus for slot in shared] == [(5,), (7,), (5,)]
    assert make_slots(["cpu"], machine) == [Slot("cpu", None)]  # like `accel-rl train`
    assert make_slots(["cpu"], replace(machine, chosen=True)) == [Slot("cpu", tuple(range(8)))]
    assert placement(make_slots(devices, replace(machine, can_pin=False)), 2) == {"devices": "cuda:0,cuda:1"}


@pytest.mark.parametrize("words", ["", "--gpus 0-1", "--learners-per-gpu 2", "--experiment x.yaml"])
def test_without_gpus_devices_must_be_named(words: str, tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    write(tmp_path / "x.yaml", **GOOD)
    env = [] if "--experiment" in words else ["--env", "CartPole-v1"]
    result = call(capfd, "launch", "--out", "out", *words.split(), *env)
    result.assert_one_line(2)
    assert "but there is no GPU here; use --devices cpu,cpu for two learners" in result.err
    assert not Path("out").exists()


@pytest.mark.parametrize("by", ["flag", "file"])
def test_named_devices_are_used(by: str, tmp_path: Path, capfd: Any) -> None:
    """A single launched run uses the devices that a flag or its file names."""
    settings = {**SMALL, "share_processors": True, **({"devices": "cpu,cpu"} if by == "file" else {})}
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    words = ["launch", "--config", file, "--show-affinity", *(["--devices", "cpu,cpu"] if by == "flag" else [])]
    result = call(capfd, *words)
    assert result.status == 0, result.err
    assert re.search(r"learner 0 +cpu .*\nlearner 1 +cpu ", result.out)


# ---- runs ----


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_failed_run_does_not_stop_the_rest(tmp_path: Path, capfd: Any) -> None:
    """A failed run is reported and does not stop the rest; the same command repeats it, but no finished run."""
    settings = {**SMALL, "steps": 200}
    file = write(tmp_path / "x.yaml", title="Two runs", settings=settings, grid=[{"algo": "a2c"}], seeds=[0, 1])
    out = tmp_path / "out"
    in_the_way = out / "a2c-s0" / "command.txt"
    in_the_way.mkdir(parents=True)
    words = ["--experiment", file, "--devices", "cpu,cpu", "--share-processors", "--out", out]
    result = call(capfd, "launch", *words)
    assert result.status == 1
    assert "runs: 2, already finished: 0; on cpu x 2" in result.out
    assert "a2c-s0 has failed with status 2" in result.out and "a2c-s1 has finished" in result.out
    assert f"a2c-s0 has failed; {out / 'a2c-s0.txt'} ends with:" in result.err
    assert f"accel-rl: cannot write the run's folder {out / 'a2c-s0'}: Is a directory" in result.err
    assert result.err.endswith("1 of 2 runs failed: a2c-s0; the same command runs them again\n")
    assert "| 1 of 2 |" in result.out and (out / "summary.png").read_bytes().startswith(b"\x89PNG")

    in_the_way.rmdir()
    finished = (out / "a2c-s1" / "checkpoint.pt").stat().st_mtime_ns
    result = call(capfd, "launch", *words)
    assert result.status == 0, result.err
    assert "runs: 2, already finished: 1;" in result.out and "a2c-s0 has finished" in result.out
    assert (out / "a2c-s1" / "checkpoint.pt").stat().st_mtime_ns == finished
    assert "1 of 2" not in (out / "summary.md").read_text()

    result = call(capfd, "launch", *words, "--summary")
    assert result.status == 0 and "already finished" not in result.out and "# Two runs" in result.out
    with locked(out, "experiment"):
        call(capfd, "launch", *words).assert_one_line(2)


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "what was waited for has not happened"
        time.sleep(0.02)


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork")
def test_an_experiment_continues_after_a_kill_and_an_interruption(tmp_path: Path, capfd: Any) -> None:
    """An experiment continues from its checkpoints after a kill, which ends its runs, and stops cleanly at an
    interruption."""
    file = write(tmp_path / "x.yaml", settings={**SMALL, "steps": 1_000_000}, grid=[{"algo": "a2c"}], seeds=[1, 2])
    out, executor = tmp_path / "out", LocalExecutor([Slot("cpu", None)])
    first, second = out / "a2c-s1", out / "a2c-s2"
    resolved = resolve_all(read_experiment(file), executor)
    out.mkdir()

    def steps_logged() -> int:
        table = rows(first) if (first / "progress.csv").exists() else []
        return int(table[-1]["time/total_timesteps"]) if table else 0

    tasks = [inspect_run(run.name, out / run.name, run.settings, config, config.run.steps) for run, config in resolved]
    process = multiprocessing.get_context("fork").Process(target=run_tasks, args=(tasks, executor), daemon=True)
    process.start()
    wait_for(steps_logged)
    (run_process,) = psutil.Process(process.pid).children()
    process.kill()
    process.join()
    wait_for(lambda: not run_process.is_running() or run_process.status() == psutil.STATUS_ZOMBIE)
    steps = checkpoint.load(first / "checkpoint.pt")["steps"]
    assert steps >= 100

    ended, deadline = threading.Event(), time.monotonic() + TIMEOUT_S

    def interrupt() -> None:
        while not ended.wait(0.02):
            if steps_logged() > steps or time.monotonic() > deadline:
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = call(capfd, "launch", "--experiment", file, "--devices", "cpu", "--out", out)
    ended.set()
    thread.join()
    assert (result.status, result.err) == (130, "")
    assert "a2c-s1 resumes on cpu" in result.out and "a2c-s1 has stopped" in result.out
    assert "stopped; the same command continues from here" in result.out and not second.exists()
    assert checkpoint.load(first / "checkpoint.pt")["steps"] > steps
    assert (first / "log.txt").read_text().count("resumed at step") == 1


def test_a_folder_is_of_one_run(tmp_path: Path) -> None:
    """A folder's run continues only with its own settings; those that the machine has decided may differ."""
    settings = {**SMALL, "algo": "a2c", "steps": 1000, "seed": 1}
    config, run = resolve({**settings, "device": "cpu"}), tmp_path / "run"

    def inspect(config: Any, steps: int = 1000, **given: Any) -> Task:
        return inspect_run("a2c-s1", run, {**settings, **given}, config, steps)

    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump(config.as_dict()))
    (run / "summary.json").write_text('{"total_timesteps": 500}')
    for changed, message in (
        ({"learning_rate": 1e-5}, r"a2c-s1 was started with learning_rate=0.001 \(now 1e-05\)"),
        ({"steps": 3000}, "to change the steps, set schedule_steps to its old value"),
    ):
        with pytest.raises(UsageError, match=message):
            inspect(resolve({**settings, "device": "cpu", **changed}, spec=config.spec))
    elsewhere = replace(config, run=replace(config.run, precision="bf16"))  # another kind of CPU
    assert not inspect(elsewhere).finished and inspect(elsewhere, steps=500).finished
    with pytest.raises(UsageError, match="a2c-s1 was started with precision="):
        inspect(elsewhere, precision="bf16")
    (run / "config.yaml").write_text(yaml.safe_dump(config.as_dict()).replace("track:", "tracked:"))
    with pytest.raises(
        UsageError, match=r"a2c-s1 is from another version of accel_rl \(track, tracked\); finish it with"
    ):
        inspect(config)


def test_launch_without_an_experiment_trains_one_run(tmp_path: Path, capfd: Any) -> None:
    words = ["--env", "CartPole-v1", "--sampler", "serial", "--envs", 4, "--steps", 40, "--learning-rate", 1e-3]
    words += ["--no-tensorboard", "--eval-interval-steps", 0, "--devices", "cpu", "--out", tmp_path / "run"]
    result = call(capfd, "launch", *words)
    assert result.status == 0 and f"run folder      {tmp_path / 'run'}" in result.out
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["device"], config["learning_rate"], config["steps"]) == ("cpu", 1e-3, 40)
    call(capfd, "launch", "--summary", "--devices", "cpu").assert_one_line(2)


# ---- table and figure ----

MACHINE = {"cpu": "a processor", "cores": 2, "gpus": [], "python": "3", "packages": {}}


@pytest.fixture
def known(tmp_path: Path) -> tuple[Experiment, Path]:
    """Returns an experiment with round numbers: 1,000 and 1,500 steps/s with one learner, 2,000 and 3,000 with two.

    One of the two runs of PPO was cut short.
    """
    file = write(
        tmp_path / "x.yaml",
        title="Known",
        settings={"env": "CartPole-v1", "steps": 9000},
        grid=[{"algo": ["a2c", "ppo"], "learners": [1, 2], "envs_per_learner": 4}],
        seeds=[1, 2],
        paper={
            "source": "a paper",
            "steps": 3_600_000,
            "rows": [
                {"algo": "a2c", "learners": 1, "hours": 1.0},
                {"algo": "a2c", "learners": 2, "hours": 0.5, "score": -3},
            ],
        },
    )
    runs = {"a2c-learners1-s1": (9000, 9, 10), "a2c-learners1-s2": (9000, 6, 14)}
    runs |= {"a2c-learners2-s1": (9000, 4.5, None), "a2c-learners2-s2": (9000, 3, 7)}
    runs |= {"ppo-learners2-s1": (3_600_000, 3600, 1), "ppo-learners2-s2": (4500, 4.5, 1)}
    for name, (steps, seconds, score) in runs.items():
        run = tmp_path / name
        run.mkdir()
        (run / "config.yaml").write_text("algo: a2c\nsteps: 9000\n")
        (run / "machine.json").write_text(json.dumps(MACHINE))
        values = {"total_timesteps": steps, "time_elapsed": seconds, "fps": 1.0, "ep_rew_mean": score}
        (run / "summary.json").write_text(json.dumps(values))
        table = [f"{steps * i // 4},{seconds * i / 4},{'' if score is None else score * i / 4}" for i in range(1, 5)]
        (run / "progress.csv").write_text(
            "\n".join(["time/total_timesteps,time/time_elapsed,rollout/ep_rew_mean", *table, ""])
        )
    return read_experiment(file), tmp_path


def test_the_table_has_the_right_numbers(known: Any, capsys: Any) -> None:
    """The table has each combination's scores, speeds, hours and ratios, with extrapolations marked."""
    experiment, folder = known
    report.report(experiment, folder)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in [table[0], *table[2:]]] == [
        [
            "algo", "learners", "runs", "score", "paper: score", "steps/s", "hours for 3.6M steps", "paper: hours",
            "ours / paper: hours", "speed-up", "paper: speed-up",
        ],
        ["a2c", "1", "2", "12.0 ± 2.8", "-", "1,250", "0.80*", "1.00", "0.80", "1.00", "1.00"],
        ["a2c", "2", "2", "7.0", "-3.0", "2,500", "0.40*", "0.50", "0.80", "2.00", "2.00"],
        ["ppo", "1", "0 of 2", "-", "-", "-", "-", "-", "-", "-", "-"],
        ["ppo", "2", "1 of 2", "1.0 ± 0.0", "-", "1,000", "1.00*", "-", "-", "-", "-"],
    ]  # fmt: skip
    text = (folder / "summary.md").read_text()
    assert all(line in text for line in table)
    assert "*: extrapolated from the speed of runs of 4,500 steps or more." in text
    assert "Paper: a paper." in text and "Machine: a processor, cores: 2, no GPU" in text
    saved = json.loads((folder / "summary.json").read_text())
    assert saved["machines"] == [MACHINE] and saved["title"] == "Known"
    row = saved["rows"][1]
    assert (row["settings"]["envs"], row["total_timesteps"]) == (8, [9000, 9000])
    assert (row["steps_per_second"], row["speed_up"], row["hours"], row["hours_over_paper"]) == (2500, 2, 0.4, 0.8)


def test_the_figure_shows_the_right_curves(known: Any) -> None:
    """The figure shows each combination's curve, and the paper's hours at their numbers of learners."""
    experiment, folder = known
    report.report(experiment, folder)
    picture = cv2.imread(str(folder / "summary.png"))
    assert picture.shape == (500, 1800, 3) and picture.std() > 10
    result = json.loads((folder / "summary.json").read_text())
    over_steps, _, speed = report.make_figure(experiment, result, folder).axes
    labels = ["a2c-learners1", "a2c-learners2", "ppo-learners2"]
    curves = {line.get_label(): line for line in over_steps.get_lines() if line.get_label() in labels}
    assert list(curves) == labels
    assert curves["a2c-learners1"].get_ydata().tolist() == [3, 6, 9, 12]
    assert curves["a2c-learners1"].get_color() == curves["a2c-learners2"].get_color()
    assert curves["a2c-learners1"].get_linestyle() != curves["a2c-learners2"].get_linestyle()
    points = [(list(line.get_xdata()), list(line.get_ydata())) for line in speed.get_lines()]
    assert points[:2] == [([1, 2], [0.8, 0.4]), ([1, 2], [1.0, 0.5])]
    assert speed.get_ylabel() == "hours for 3.6M steps"


def test_there_is_a_table_before_any_game_has_finished(tmp_path: Path, capfd: Any) -> None:
    """There is a table before any game has finished; a folder that does not exist is refused."""
    file = write(tmp_path / "x.yaml", **GOOD)
    words = ["--experiment", file, "--summary", "--out"]
    call(capfd, "launch", *words, tmp_path / "none").assert_one_line(2)
    assert not (tmp_path / "none").exists()
    (tmp_path / f"{read_experiment(file).runs[0].name}.yaml").touch()
    result = call(capfd, "launch", *words, tmp_path)
    assert (result.status, result.err) == (0, "")
    assert "minutes" in result.out and "hours" not in result.out
    assert "| 0 of 1 |" in result.out and "picture  none: no game has finished yet" in result.out
