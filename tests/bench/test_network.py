"""The benchmark of networks: its figures from a tiny real run, what is measured, and its options."""

import json
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_rl.bench import network, network_contestants, options
from accel_rl.bench.network_contestants import (
    NETWORKS,
    Case,
    OnThreads,
    act_work,
    build_algo,
    count_flops,
    learn_work,
    observe_group,
)
from accel_rl.bench.timing import Schedule, Turns
from accel_rl.cli import main
from accel_rl.config.presets import load_preset
from accel_rl.envs import EnvConfig
from accel_rl.envs.probe import probe_spec
from accel_rl.updates import Update
from accel_rl.updates.optimizers import make_optimizer

OPTIONS = "--network mlp a3c --batches 3 2 --threads 1 --rounds 2 --seconds 0.001"


def run_tiny(patch: pytest.MonkeyPatch, out: Path, has_bf16: bool) -> Any:
    """Returns the JSON that the command line writes."""
    patch.setattr(network, "has_bf16", lambda: has_bf16)
    patch.setattr(network_contestants, "PEAK_SIZE", 64)
    assert main(["bench", "network", *OPTIONS.split(), "--json", str(out)]) == 0
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a result with both precisions; bfloat16 works on every CPU, if slowly."""
    with pytest.MonkeyPatch.context() as patch:
        return run_tiny(patch, tmp_path_factory.mktemp("bench") / "new" / "network.json", has_bf16=True)


def test_every_combination_is_there_once(result: Any) -> None:
    """Would catch a batch size, a number of threads or a precision that is left out or counted twice."""
    keys = ("network", "work", "batch", "threads", "precision")
    expected = list(product(("mlp", "a3c"), ("act", "learn"), (2, 3), (1,), ("float32", "bfloat16")))
    assert sorted(tuple(row[key] for key in keys) for row in result["figures"]) == sorted(expected)
    pairs = sorted(tuple(row[key] for key in keys[:-1]) for row in result["speedups"])
    assert pairs == sorted({case[:-1] for case in expected})
    assert [(peak["threads"], peak["precision"]) for peak in result["peaks"]] == [(1, "float32"), (1, "bfloat16")]


def test_figures_agree_with_each_other(result: Any) -> None:
    """Would catch rates of batches in place of samples, FLOPs of acting for learning, or another precision's peak."""
    peaks = {(peak["threads"], peak["precision"]): peak["flops_per_second"] for peak in result["peaks"]}
    for row in result["figures"]:
        rate, flops = row["samples_per_second"], result["networks"][row["network"]][f"{row['work']}_flops"]
        assert len(row["rates"]) == 2 and rate == statistics.median(row["rates"]) > 0
        assert row["us_per_batch"] == pytest.approx(row["batch"] / rate * 1e6)
        assert row["share_of_peak"] == pytest.approx(rate * flops / peaks[row["threads"], row["precision"]])
    rates = {tuple(row[key] for key in ("network", "work", "batch", "precision")): row for row in result["figures"]}
    for row in result["speedups"]:
        below, above = (
            rates[row["network"], row["work"], row["batch"], precision]["rates"]
            for precision in ("float32", "bfloat16")
        )
        ratios = [a / b for a, b in zip(above, below, strict=True)]
        assert row["bfloat16_over_float32"]["median"] == pytest.approx(statistics.median(ratios))


def test_without_bfloat16_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Would catch figures of emulated bfloat16, minutes of it, on a CPU that has no instructions for it."""
    result = run_tiny(monkeypatch, tmp_path / "network.json", has_bf16=False)
    assert {row["precision"] for row in result["figures"] + result["peaks"]} == {"float32"}
    assert result["speedups"] == []
    printed = capsys.readouterr().out
    assert "bfloat16 is left out: this CPU has no instructions for it" in printed
    assert printed.count("bf") == 1


def test_the_peak_is_the_best_of_all_libraries_and_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch shares of a slow library's rate, and a peak with another number of threads."""
    monkeypatch.setattr(network_contestants, "PEAK_SIZE", 8)
    work = network_contestants.peak_works("float32")["default"]
    monkeypatch.setattr(network, "peak_works", lambda precision: {"slow": work, "fast": work})
    rates = {
        "peak slow float32 1": [9.0, 2.0],
        "peak fast float32 1": [3.0, 4.0],
        "peak slow float32 2": [1.0, 1.0],
        "peak fast float32 2": [1.0, 5.0],
    }

    def fake_alternate(players: Sequence[OnThreads], *_: Any) -> dict[str, Turns]:
        return {player.name: Turns(rates.get(player.name, [1.0, 1.0])) for player in players}

    monkeypatch.setattr(network, "alternate", fake_alternate)
    cases = [Case("mlp", "act", 2, threads, "float32") for threads in (1, 2)]
    turns, peaks = network.measure(cases, Schedule(1.0, 2))
    assert peaks == {(1, "float32"): 9.0, (2, "float32"): 5.0}
    assert list(turns) == cases


def test_flops_by_hand() -> None:
    """Would catch a layer that is left out or counted at the wrong size, or the gradient of observations."""
    convolutions = 2 * 16 * 25 * 19 * (4 * 8 * 8), 2 * 32 * 12 * 9 * (16 * 4 * 4)
    linear = 2 * 12 * 9 * 32 * 256 + 2 * 256 * (6 + 1)
    acting = sum(convolutions) + linear
    assert count_flops(build_algo("a3c", "float32").policy, NETWORKS["a3c"].spec) == (
        acting,
        3 * acting - convolutions[0],
    )
    first, later = 2 * 4 * 64, 2 * 64 * 64  # of one of two trunks
    assert count_flops(build_algo("mlp", "float32").policy, NETWORKS["mlp"].spec) == (
        2 * (first + later) + 2 * 64 * (2 + 1),
        2 * (2 * first + 3 * later) + 3 * 2 * 64 * (2 + 1),
    )


@pytest.mark.parametrize(
    ("name", "env", "preset"),
    [
        ("a3c", "pong", "stooke"),
        *((name, "pong", "dqn84") for name in ("nature", "nature_norm", "cule")),
        ("mlp", "CartPole-v1", ""),
    ],
)
def test_networks_are_those_of_training(name: str, env: str, preset: str) -> None:
    """Would catch figures for a network that no run has."""
    spec, measured = probe_spec(EnvConfig(env, preset) if preset else EnvConfig(env)), NETWORKS[name].spec
    assert (spec.observation_shape, spec.row_dtype) == (measured.observation_shape, measured.row_dtype)
    assert spec.action_space == measured.action_space
    settings = load_preset("a2c")["pixels" if spec.is_pixels else "vectors"]
    assert NETWORKS[name].separate_value == settings.get("separate_value", False)
    assert tuple(NETWORKS) == options.NETWORKS
    assert build_algo(name, "bfloat16").policy.bf16 and not build_algo(name, "float32").policy.bf16


def test_groups_are_observed_as_by_the_action_server() -> None:
    """Would catch stacks that lie in memory in one piece, which are faster to read."""
    observation = observe_group(NETWORKS["a3c"].spec, 3)
    assert observation.shape == (3, 4, 104, 80) and observation.dtype == torch.uint8
    frame = 104 * 80
    assert observation.stride() == (frame, 6 * frame, 80, 1)
    assert observe_group(NETWORKS["mlp"].spec, 3).shape == (3, 4)


@pytest.mark.parametrize("name", ["mlp", "a3c"])
def test_what_is_repeated(name: str) -> None:
    """Would catch an update without a gradient, or rounds that differ since parameters have changed."""
    algo, spec = build_algo(name, "float32"), NETWORKS[name].spec
    update = Update(algo.policy, make_optimizer("rmsprop"), 0.5)
    before = update.parameters.values.clone()
    assert act_work(algo.policy, spec, 3)() == 3
    assert not update.parameters.gradient.any()
    learn = learn_work(algo, update, spec, 5)
    assert learn() == 5
    gradient = update.parameters.gradient.clone()
    assert gradient.any() and gradient.isfinite().all()
    learn()
    torch.testing.assert_close(update.parameters.gradient, gradient)
    assert torch.equal(update.parameters.values, before)


def test_a_turn_has_its_threads_and_leaves_the_first_call_out() -> None:
    """Would catch turns on another contestant's threads, and rates that include filling the caches."""
    now, threads, calls = 0.0, set(), 0
    before = torch.get_num_threads()

    def work() -> int:
        nonlocal now, calls
        threads.add(torch.get_num_threads())
        calls += 1
        now += 3.0 if calls == 1 else 1.0
        return 10

    try:
        assert OnThreads("work", work, 2, lambda: now).run(4.0) == 10.0
        assert threads == {2} and calls == 5
        assert OnThreads("work", work, 1, lambda: now).run(1.0) == 10.0
        assert threads == {1, 2} and calls == 6, "a call that takes the whole turn counts"
    finally:
        torch.set_num_threads(before)


def test_threads_are_given_back(result: Any) -> None:
    """Would catch a benchmark that leaves this process with another number of threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        network.measure([Case("mlp", "act", 1, 1, "float32")], Schedule(0.001, 1))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_default_threads() -> None:
    """Would catch numbers that this process has no logical CPUs for, and hours on a large machine."""
    assert [network.default_threads(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 8]]
    assert network.default_threads(192) == [1, 2, 4, 8, 16]
