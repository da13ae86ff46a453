"""Tests of environments, workers and users that break a run: its message, its checkpoint, and no process left."""

import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

import accel_rl
from accel_rl.algos.a2c import A2C
from accel_rl.cli import main
from accel_rl.envs import EnvConfig
from accel_rl.run_folder import checkpoint
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig, StepHook
from tests.helpers.processes import TINY, Command, Result
from tests.helpers.runs import rows
from tests.helpers.samplers import TOYS, closing, make

SEED = 11
FOREVER = 10**9
QUEUED = ("--algo", "ga3c", "--predictors", 1, "--trainers", 1, "--min-training-batch", 8)
BROKEN = f"{TOYS}:Broken"
NAMED = rf"environment [0-3] \(run seed {SEED}, {BROKEN}\)"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in the way of Linux"),
    pytest.mark.multiprocess,
]
slow = pytest.mark.slow


def arguments(
    out: Path, env: str = BROKEN, options: dict[str, Any] | None = None, *flags: Any, steps: int = 400
) -> list[str]:
    words = ["train", "--env", env, "--out", out, "--steps", steps, "--seed", SEED, "--horizon", 4, *TINY]
    if "ga3c" in flags:  # GA3C has agents in place of workers
        del words[(index := words.index("--workers")) : index + 2]
    words += ["--decorrelation-steps", 0, "--env-options", yaml.safe_dump(options or {}, default_flow_style=True)]
    return [str(word) for word in (*words, *flags)]


def train(*words: Any, **options: Any) -> Command:
    return Command(*arguments(*words, **options))


# ---- environments ----

ENDS = {
    "raise": r"{who}: {named} failed {when}:\nTraceback (.|\n)*ValueError: broken on purpose\n",
    "exit": r"{who} \(process \d+\), in {named} ?{when}, exited with status 7\n",
    "kill": r"{who} \(process \d+\), in {named} ?{when}, was killed by SIGKILL \(.+ if memory ran out: .+\)\n",
    "hang": r"{who} \(process \d+\), in {named} ?{when}, has not answered for 3 s \({limit}\)\n",
}
HANG_S = 3  # a worker that does not hang is never that long without a step, however busy the machine


def time_limit(how: str, limit: str = "--env-timeout-s") -> tuple[str, int]:
    """Returns a short time limit for a fault that has to reach it."""
    return limit, HANG_S if how == "hang" else 60


def assert_failed(result: Result, run: Path, how: str, when: str, flags: Any, limit: str = "--env-timeout-s") -> None:
    assert result.status == 1, result.err
    who = "agent [0-3]" if "ga3c" in flags else "worker [01]"
    message = ENDS[how].format(who=who, named=NAMED, when=when, limit=limit)
    assert re.search(f"accel-rl: {message}", result.err), result.err
    if "restart" not in flags:  # else its replacement is named, too
        assert result.err.count(f"run seed {SEED}") == 1, f"said twice: {result.err}"
    assert re.search(message, (run / "log.txt").read_text())


STEPS = [pytest.param(how, (), id=how) for how in ENDS]
STEPS += [
    pytest.param(how, QUEUED, id=f"queued-{how}", marks=() if how == "raise" else slow) for how in ("raise", "hang")
]


@pytest.mark.parametrize(("how", "flags"), STEPS)
def test_a_step_that_breaks_ends_the_run(tmp_path: Path, capfd: Any, how: str, flags: Any) -> None:
    """A step that fails ends the run with a message that names its cause, and leaves no process."""
    before, run = psutil.Process().children(), tmp_path / how
    words = (run, BROKEN, {"how": how, "at_step": 5, "lengths": [0]}, *time_limit(how), *flags)
    result = Result(main(arguments(*words)), *capfd.readouterr())
    assert_failed(result, run, how, "at action [01]", flags)
    assert psutil.Process().children() == before


def test_a_run_that_fails_says_how_its_page_is_made(tmp_path: Path, capfd: Any) -> None:
    """A failed run's last line tells how to make its page, unless it has no row or --no-report was given."""
    pages = {"page": (30, "--report"), "no-row": (2, "--report"), "no-page": (30, "--no-report")}
    for name, (at_step, flag) in pages.items():
        options, run = {"at_step": at_step, "lengths": [0]}, tmp_path / name
        assert main(arguments(run, BROKEN, options, "--sampler", "serial", "--log-interval-steps", 64, flag)) == 1
        last = capfd.readouterr().err.splitlines()[-1]
        assert re.fullmatch(f"a page about the run so far: .+ report {run}", last) or name != "page", last
        assert "page" not in last.replace(str(run), "") or name == "page", last


# One with a message from the worker, and one without; STEPS has all the ways to end.
RESETS = [pytest.param(how, game, (), id=f"{how}-{game}") for how, game in (("raise", 0), ("raise", 1), ("kill", 1))]
NOT_REPLACED = (*QUEUED, "--on-env-error", "restart")
RESETS += [pytest.param("hang", 0, (), id="hang", marks=slow)]
RESETS += [pytest.param("kill", 0, NOT_REPLACED, id="queued-kill", marks=slow)]


@pytest.mark.parametrize(("how", "game", "flags"), RESETS)
def test_a_reset_that_breaks_ends_the_run(tmp_path: Path, capfd: Any, how: str, game: int, flags: Any) -> None:
    """A reset that fails, of the first or second game, ends the run with its cause and leaves no process."""
    before, run, limit = psutil.Process().children(), tmp_path / "run", "--env-build-timeout-s"
    options = {"how": how, "at_step": 0, "at_game": game}
    status = main(arguments(run, BROKEN, options, *time_limit(how, limit), *flags))
    when = "at action [01]" if game else ("while it was built or reset" if how == "raise" else "")
    assert_failed(Result(status, *capfd.readouterr()), run, how, when, flags, limit)
    assert psutil.Process().children() == before


def test_an_environment_that_cannot_be_built_ends_the_run(tmp_path: Path, capfd: Any) -> None:
    """An environment that cannot be built ends the run with one message before anything is written."""
    says = {
        "raise": "failed while it was built:\nTraceback (.|\n)*ValueError: broken on purpose",
        "exit": "the process that built it exited with status 7",
        "kill": "the process that built it was killed by SIGKILL",
        "hang": r"was not built within 1 s \(--env-build-timeout-s\)",
    }
    before = psutil.Process().children()
    for how, message in says.items():
        options = {"at_build": True, "how": how}
        limit_s = 1 if how == "hang" else 60
        assert main(arguments(tmp_path / how, BROKEN, options, "--env-build-timeout-s", limit_s)) == 1
        assert re.match(f"accel-rl: {BROKEN}:? {message}", err := capfd.readouterr().err), err
        assert not (tmp_path / how).exists()  # nothing has been trained
    assert psutil.Process().children() == before


def test_environments_that_cannot_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    """An environment whose close() fails gives a single warning; the sampler closes all the same."""
    env = EnvConfig("tests.helpers.misbehaving_envs:Misbehaving", options={"deed": "close fails"})
    sampler = make(SerialSampler, env, SamplerConfig(4, 5))
    sampler.collect()
    sampler.close()
    assert caplog.messages == ["close() of an environment failed, and the run goes on: ValueError('broken on purpose')"]


def train_until_struck(run: Path, strike: Callable[[list[psutil.Process]], None], *flags: Any) -> int:
    """Trains in this process until `strike`, called with the workers once there are results, ends it; returns the
    status."""
    me, has_ended = psutil.Process(), threading.Event()
    before = me.children()

    def wait_and_strike() -> None:
        while not (run / "progress.csv").exists():
            if has_ended.wait(0.02):
                return  # The run has failed: there is nobody to strike.
        (launcher,) = (child for child in me.children() if child not in before)
        strike(launcher.children())

    striker = threading.Thread(target=wait_and_strike)
    striker.start()
    try:
        return main(arguments(run, "CartPole-v1", None, "--log-interval-steps", 100, *flags, steps=FOREVER))
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        has_ended.set()
        striker.join()
        assert me.children() == before


# ---- environments that are replaced ----


@pytest.mark.parametrize("how", ["raise", pytest.param("kill", marks=slow)])
def test_a_run_goes_on_with_a_new_environment(tmp_path: Path, how: str) -> None:
    """With --on-env-error restart the run completes, counts the replaced environments and logs them."""
    options = {"how": how, "at_step": 5, "lengths": [9], "once": str(tmp_path / "once")}
    flags = ("--on-env-error", "restart", *time_limit(how), "--log-interval-steps", 100)
    assert main(arguments(tmp_path / "run", BROKEN, options, *flags)) == 0
    table = rows(tmp_path / "run")
    assert int(table[-1]["time/total_timesteps"]) == 400
    lost = 1 if how == "raise" else 2  # a worker has two environments
    assert [int(row["rollout/env_restarts"]) for row in table] == [lost] * len(table)
    assert float(table[-1]["rollout/ep_len_mean"]) == 9  # A lost game does not count.
    log = (tmp_path / "run" / "log.txt").read_text()
    assert re.search(rf"WARNING worker [01].* {NAMED}", log), log
    assert ("broken on purpose" in log) == (how == "raise")


def broken_sampler(sampler_class: Any, tmp_path: Path, how: str, **batch: Any) -> Any:
    options = {"how": how, "at_step": 5, "lengths": [7], "once": str(tmp_path / "once")}
    config = SamplerConfig(num_envs=4, horizon=4, num_workers=2, env_timeout_s=time_limit(how)[1])
    return make(sampler_class, EnvConfig(BROKEN, options=options), config, restart_on_error=True, **batch)


def assert_rollout(rollout: Any, reset_mode: str) -> Any:
    """Asserts Counting's rules for all valid samples; returns which environments [B] were lost."""
    step, T = rollout.observation_rows[..., 1], rollout.horizon
    valid = rollout.valid
    reward = (10 * rollout.action + step[:T] + 1).float()
    assert torch.equal(rollout.reward, torch.where(valid, reward, 0.0))
    assert torch.equal(rollout.terminated, valid & (step[:T] == 6))
    assert not (rollout.terminated & rollout.truncated).any()
    starts = rollout.terminated & (reset_mode == "immediate")
    assert torch.equal(rollout.reset[1:], starts)
    assert (step[1:][starts] == 0).all()
    goes_on = valid & ~starts
    assert torch.equal(step[1:][goes_on], step[:T][goes_on] + 1)
    assert torch.equal(step[1:][~valid], step[:T][~valid])  # it stands still
    assert not (valid[1:] & ~valid[:-1]).any()  # until the rollout's end
    cut_off = valid[:-1] & ~valid[1:] & ~rollout.terminated[:-1]  # the steps before the lost ones
    at = (rollout.final_step, rollout.final_env)
    assert torch.equal(torch.stack(at, 1), cut_off.nonzero())
    seen_after = (rollout.final_step + 1, rollout.final_env)
    assert torch.equal(rollout.final_observation, rollout.observation_rows[seen_after])
    assert all(game.length == 7 for game in rollout.games)
    return cut_off.any(0) | ~valid[0]


def assert_no_token_left(sampler: Any) -> None:
    assert not isinstance(sampler, AlternatingSampler) or sampler.pool.tokens_left() == 0


@pytest.mark.parametrize(
    ("how", "reset_mode"), [("raise", "immediate"), ("kill", "immediate"), pytest.param("hang", "wait", marks=slow)]
)
def test_lost_samples_are_not_valid(tmp_path: Path, how: str, reset_mode: str) -> None:
    """Lost steps are not valid, lost games do not score, and the processes stay in step."""
    for sampler_class in (AlternatingSampler, SerialSampler) if how == "raise" else (AlternatingSampler,):
        sampler = broken_sampler(sampler_class, tmp_path, how, reset_mode=reset_mode)
        try:
            num_lost, num_games = [], 0
            for _ in range(8):
                rollout = sampler.collect()
                lost = assert_rollout(rollout, reset_mode)
                assert_no_token_left(sampler)
                assert reset_mode == "wait" or torch.equal(rollout.valid.all(0), ~lost)
                num_lost.append(int(lost.sum()))
                num_games += len(rollout.games)
            assert num_lost == [0, 1 if how == "raise" else 2, 0, 0, 0, 0, 0, 0]
            assert sampler.num_restarts == sum(num_lost)
            assert num_games >= 8
        finally:
            sampler.close()
            (tmp_path / "once").unlink()


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_an_evaluation_goes_on_with_a_new_environment(tmp_path: Path, how: str) -> None:
    """An environment lost in an evaluation is replaced; the evaluation ends, and training goes on."""
    for sampler_class in (AlternatingSampler, SerialSampler) if how == "raise" else (AlternatingSampler,):
        sampler = broken_sampler(sampler_class, tmp_path, how)
        try:
            assert_rollout(sampler.collect(), "immediate")  # four steps: training has not reached the broken one
            games = sampler.evaluate(GamesToPlay(8), 0, False)
            assert [game.length for game in games] == [7] * 8
            assert (tmp_path / "once").exists()
            assert sampler.num_restarts == (0 if how == "raise" else 2)
            for index in range(4):
                rollout = sampler.collect()
                assert not assert_rollout(rollout, "immediate").any()
                assert rollout.valid.all()
                assert int(rollout.reset[0].sum()) == (sampler.num_restarts if index == 0 else 0)
                assert_no_token_left(sampler)
            assert len(sampler.evaluate(GamesToPlay(4), 1, False)) == 4
        finally:
            sampler.close()
            (tmp_path / "once").unlink()


@pytest.mark.parametrize("when", ["open_evaluation", "close_evaluation"])
def test_a_worker_is_killed_around_an_evaluation(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker killed when an evaluation begins or ends is replaced, and the sampler stays in step."""
    env = EnvConfig(f"{TOYS}:Counting", options={"lengths": [7]})
    sampler = make(AlternatingSampler, env, SamplerConfig(4, 5, 2), restart_on_error=True)
    request = getattr(sampler.pool, when)

    def kill_before(*arguments: Any) -> None:
        victim = sampler.pool.processes[0]
        victim.kill()
        victim.wait()
        request(*arguments)

    with closing(sampler):
        monkeypatch.setattr(sampler.pool, when, kill_before)
        for index in range(2):
            assert len(sampler.evaluate(GamesToPlay(4), index, False)) == 4
            assert_rollout(sampler.collect(), "immediate")
            assert_no_token_left(sampler)
            assert sampler.num_restarts == 2 * (index + 1)


def test_any_worker_may_be_killed_at_any_moment() -> None:
    env = EnvConfig(f"{TOYS}:Slow", options={"step_s": 0.002, "lengths": [7]})
    sampler = make(AlternatingSampler, env, SamplerConfig(8, 5, 4), restart_on_error=True)
    rng = random.Random(0)
    with closing(sampler):
        for num_killed in range(10):
            assert sampler.num_restarts == 2 * num_killed
            victim = rng.choice(sampler.pool.processes).pid
            killer = threading.Timer(rng.uniform(0.0, 0.06), os.kill, (victim, signal.SIGKILL))  # a rollout takes 40 ms
            killer.start()
            while victim in [process.pid for process in sampler.pool.processes]:
                assert_rollout(sampler.collect(), "immediate")
                assert_no_token_left(sampler)
            killer.join()
        for _ in range(3):
            rollout = sampler.collect()
            assert not assert_rollout(rollout, "immediate").any()
        assert len(sampler.evaluate(GamesToPlay(8), 0, False)) == 8


@slow
def test_a_new_worker_may_build_its_environments_one_by_one() -> None:
    """The time limit of a worker that replaces another one starts again with each environment that it builds."""
    env = EnvConfig(f"{TOYS}:Slow", options={"build_s": 0.4, "step_s": 0.0})
    config = SamplerConfig(16, 1, 1, env_build_timeout_s=HANG_S)  # less than all builds together: 6.4 s
    sampler = make(AlternatingSampler, env, config, restart_on_error=True)
    with closing(sampler):
        sampler.pool.processes[0].kill()
        assert sampler.collect().valid.all() and sampler.num_restarts == 16


@slow
def test_a_worker_that_has_replied_waits_for_the_replacement_of_another() -> None:
    """The limits of the other workers start again once a worker that died in a request was replaced."""
    env = EnvConfig(f"{TOYS}:Slow", options={"build_s": 0.4, "step_s": 0.0})
    config = SamplerConfig(16, 1, 2, env_build_timeout_s=HANG_S)  # less than the new worker's builds: 6.4 s
    sampler = make(AlternatingSampler, env, config, restart_on_error=True)
    with closing(sampler):
        victim = sampler.pool.processes[0].pid
        threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()  # while both build for the evaluation
        assert len(sampler.evaluate(GamesToPlay(16), 0, False)) == 16 and sampler.num_restarts >= 8


@pytest.mark.parametrize("held", [None, slice(0, 2)], ids=["between two steps", "while group 0 is held"])
def test_all_workers_may_be_killed_at_once(held: slice | None) -> None:
    """A rollout does not wait for a group whose workers have all died, and their steps are not valid."""
    sampler = make(
        AlternatingSampler,
        EnvConfig(f"{TOYS}:Counting", options={"lengths": [7]}),
        SamplerConfig(4, 6, 2),
        restart_on_error=True,
    )

    def on_step(t: int) -> None:
        if t == 3:
            for process in sampler.pool.processes:
                os.kill(process.pid, signal.SIGKILL)
                while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
                    time.sleep(0.001)

    with closing(sampler):
        rollout = sampler.collect(StepHook(on_step, envs_to_update=lambda t: held))
        assert_rollout(rollout, "immediate")
        assert_no_token_left(sampler)
        assert rollout.valid[:3].all() and not rollout.valid[4:].any()
        assert sampler.num_restarts == 4
        rollout = sampler.collect()
        assert rollout.valid.all() and rollout.reset[0].all() and not rollout.observation_rows[0].any()


def test_a_worker_may_be_killed_after_a_groups_last_row() -> None:
    """A worker's death after its group's last row does not announce that group again."""
    sampler = make(AlternatingSampler, EnvConfig(f"{TOYS}:Counting"), SamplerConfig(4, 1, 2), restart_on_error=True)
    with closing(sampler):
        pool = sampler.pool
        pool.begin()
        for group in (0, 1):
            pool.wait([group])
        pool.announce_actions(0)
        pool.wait([0])
        pool.processes[0].kill()
        pool.announce_actions(1)
        pool.wait([1])
        pool.end()  # raises RunError if a row is left over
        assert sampler.num_restarts == 2


@pytest.mark.parametrize("flags", [(), pytest.param(QUEUED, marks=slow)])
def test_a_killed_launcher_ends_the_run(tmp_path: Path, capfd: Any, flags: tuple[Any, ...]) -> None:
    """When the launching process is killed, the run ends with one message and no worker stays."""
    left: list[psutil.Process] = []

    def strike(workers: list[psutil.Process]) -> None:
        left.extend(workers)
        psutil.Process(workers[0].ppid()).kill()

    assert train_until_struck(tmp_path / "run", strike, *flags) == 1
    message, err = "the process that starts the workers was killed by SIGKILL", capfd.readouterr().err
    assert err.splitlines()[-1].startswith(f"accel-rl: {message}") and "Traceback" not in err, err
    assert message in (tmp_path / "run" / "log.txt").read_text()
    assert len(left) == (4 if flags else 2) and not psutil.wait_procs(left, timeout=60)[1]


# ---- signals ----


def assert_stopped(result: Result, status: int, run: Path) -> dict[str, Any]:
    """Asserts that a signal ended the run in good order; returns the checkpoint."""
    assert result.status == status
    assert "Traceback" not in result.err
    assert re.search(rf"to continue: \S*accel-rl train --resume {run}\n", result.err), result.err
    state = checkpoint.load(run / "checkpoint.pt")
    assert f"stopped at step {state['steps']} of" in result.err
    assert json.loads((run / "summary.json").read_text())["total_timesteps"] == state["steps"]
    assert not list(run.glob("*.tmp"))
    return state


@slow
def test_an_interrupted_queued_run_ends_in_order(tmp_path: Path) -> None:
    """Ctrl-C ends a queued run promptly with a checkpoint, and the run can be resumed."""
    command = train(tmp_path, "CartPole-v1", None, "--log-interval-steps", 100, *QUEUED, steps=FOREVER)
    command.wait_for((tmp_path / "progress.csv").exists)
    os.killpg(command.process.pid, signal.SIGINT)  # as a terminal's Ctrl-C does
    steps = assert_stopped(command.finish(within_s=30.0), 130, tmp_path)["steps"]  # 3 s where the machine is not busy
    accel_rl.train(resume=tmp_path, steps=steps + 40)
    assert checkpoint.load(tmp_path / "checkpoint.pt")["steps"] >= steps + 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_in_order(tmp_path: Path, capfd: Any, number: signal.Signals) -> None:
    """SIGINT to the command, as by Ctrl-C, or SIGTERM to every process, as by a service manager, ends the run with a
    checkpoint and a pointer to its page."""

    def strike(workers: list[psutil.Process]) -> None:
        others = (workers[0].ppid(), *(worker.pid for worker in workers)) if number == signal.SIGTERM else ()
        for pid in (os.getpid(), *others):
            os.kill(pid, number)

    result = Result(train_until_struck(tmp_path, strike, "--report"), *capfd.readouterr())
    assert_stopped(result, 128 + number, tmp_path)
    assert re.search(rf"a page about it so far: \S*accel-rl report {tmp_path}\n", result.err), result.err


@slow
def test_signals_during_an_evaluation(tmp_path: Path) -> None:
    """A signal during an evaluation stops the run without waiting for the games."""
    options, flags = {"lengths": [0], "step_s": 0.005}, ("--eval-interval-steps", 16)
    numbers = (signal.SIGINT, signal.SIGTERM)
    signs = {number: tmp_path / f"evaluates at {number.name}" for number in numbers}
    commands = {
        number: train(
            tmp_path / number.name, f"{TOYS}:Slow", {**options, "sign": str(signs[number])}, *flags, steps=FOREVER
        )
        for number in numbers
    }
    for number, command in commands.items():
        run = tmp_path / number.name
        command.wait_for(signs[number].exists)
        command.process.send_signal(number)
        assert assert_stopped(command.finish(), 128 + number, run)["steps"] == 16


@slow
def test_signals_while_a_run_starts(tmp_path: Path) -> None:
    """A signal while a run starts ends it in silence, with the signal's status and no process left."""
    options = {"build_s": 1.0}
    probing, building = (train(tmp_path / name, f"{TOYS}:Slow", options) for name in ("probing", "building"))
    probing.wait_for(probing.descendants)
    os.killpg(probing.process.pid, signal.SIGINT)
    result = probing.finish()
    assert (result.status, result.out, result.err) == (130, "", "")
    assert not (tmp_path / "probing").exists()
    building.wait_for(building.workers)
    building.process.send_signal(signal.SIGTERM)
    result = building.finish()
    assert (result.status, result.out, result.err) == (143, "", "")


@slow
def test_the_second_signal_insists(tmp_path: Path) -> None:
    """A second signal ends a run whose environment hangs."""
    options = {"how": "hang", "at_step": 5, "lengths": [0], "once": str(tmp_path / "once")}
    command = train(tmp_path / "run", BROKEN, options)
    command.wait_for((tmp_path / "once").exists)
    command.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert command.process.poll() is None  # the rollout in progress would be finished
    command.process.send_signal(signal.SIGINT)
    assert command.finish().status == 130


@slow
def test_nothing_outlives_a_killed_trainer(tmp_path: Path) -> None:
    """No process outlives a killed learner, even if it hangs in an environment or was started by one."""
    (tmp_path / "endless.py").write_text(
        "import pathlib, time\ndef make():\n    pathlib.Path('built').touch()\n    time.sleep(3600)\n"
    )
    probing = Command("train", "--env", "endless:make", *TINY, cwd=tmp_path)
    options = {"how": "hang", "at_step": 5, "lengths": [0], "once": str(tmp_path / "once")}
    hanging = train(tmp_path / "run", BROKEN, options)
    queued = train(tmp_path / "queued", "CartPole-v1", None, "--log-interval-steps", 100, *QUEUED, steps=FOREVER)
    (tmp_path / "forking.py").write_text(
        "import gymnasium, subprocess\ndef make():\n    subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    forking = Command(
        "train", "--env", "forking:make", *TINY, "--out", "forked", "--log-interval-steps", 100, cwd=tmp_path
    )
    for command, sign, number in (
        (probing, "built", 1),
        (hanging, "once", 3),
        (queued, "queued/progress.csv", 5),
        (forking, "forked/progress.csv", 3 + 4),
    ):
        command.wait_for((tmp_path / sign).exists)
        assert len(command.descendants()) == number
        command.process.kill()
        assert command.finish().status == -signal.SIGKILL


# ---- the GPU's memory ----


def test_a_gpu_without_enough_memory(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    """Running out of device memory gives one line that names the settings to lower."""

    def learn(self: Any, rollout: Any, update: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total of ...")

    monkeypatch.setattr(A2C, "learn", learn)
    assert main(arguments(tmp_path / "run", "CartPole-v1")) == 1
    message = r"accel-rl: cpu is out of memory \(2.50 GiB was requested\): lower --envs \(4\) or --horizon \(4\)\n"
    assert re.search(message, err := capfd.readouterr().err), err
    assert "Traceback" not in err
