"""docs/gpu.md shows the committed results of GPU sessions."""

import json
from pathlib import Path
from typing import Any

import pytest

import gpu_page
from accel_rl.errors import UsageError
from gpu_session import PARTS

IDENTITY = {"gpu": "NVIDIA Toy 3", "num_gpus": 1, "torch": "2.0", "cuda": "13.0", "accel_rl": "1", "sources": "abcd"}
IDENTITY |= {"driver": "580.1", "python": "3.12.3", "numpy": "2.5.2", "simulator": "native"}


def write(folder: Path, part: str, rows: list[dict[str, Any]], status: str = "complete", reason: str = "") -> None:
    folder.mkdir(exist_ok=True)
    content = {"version": 1, "part": part, "identity": IDENTITY, "started": "2026-11-27 10:00", "status": status}
    (folder / f"{part}.json").write_text(json.dumps(content | {"reason": reason, "seconds": 1.0, "rows": rows}))


def test_the_page_is_that_of_the_results() -> None:
    """The page is exactly the one that the committed results make."""
    assert gpu_page.PAGE.read_text() == gpu_page.make_page()


def test_a_session_becomes_a_section(tmp_path: Path) -> None:
    """The page names the machine, what was not run, how each part ended, and its figures."""
    session, page = tmp_path / "toy-3_torch-2.0_abcd", tmp_path / "gpu.md"
    write(session, "facts", [{"name": "machine", "text": "a CPU, cores: 16"}])
    rates: dict[str, Any] = {
        "name": "a2c 112",
        "steps_per_s": 43210,
        "gpu_use": 0.5,
        "sampler_shares": {"env_wait": 0.25},
    }
    write(session, "training", [rates, {"name": "vtrace", "error": "RuntimeError: a | b"}], "failed", "(vtrace: a)")
    gpu_page.run([session], tmp_path / "results", page)
    said = page.read_text()
    assert "## NVIDIA Toy 3, PyTorch 2.0\n\nNVIDIA Toy 3, PyTorch 2.0 (CUDA 13.0), accel_rl 1 (sources abcd); " in said
    assert (
        "; driver 580.1, Python 3.12.3, NumPy 2.5.2, Atari on the native simulator; 2026-11-27.\n\nA CPU, cores: 16.\n"
        in said
    )
    assert "Nothing yet" not in said
    assert "| a2c 112 | 43,210 | 50 % |  | 25 % |" in said and "| vtrace | error: RuntimeError: a / b |" in said
    assert f"**training**: {PARTS['training'].purpose}. failed (vtrace: a).\n\n| training | steps/s |" in said
    (absent,) = [line for line in said.splitlines() if line.startswith("Not run: ")]
    not_run = ["install", "correctness", "pong", "sampling", "learners", "micro", "profile", "switches", "emulator"]
    assert absent == f"Not run: {', '.join([*not_run, 'nccl', 'peers'])}."
    assert "No comparison has run on a GPU yet." in said
    peer = {"name": "ppo: SB3, EnvPool", "text": "not installed: envpool"}
    write(session, "peers", [rates | {"over": {"SB3, processes": {"median": 3, "low": 2, "high": 4}}}, peer])
    gpu_page.run([session], tmp_path / "results", page)
    said = page.read_text()
    assert "| a2c 112 | 43,210 |  |  | 3.000 (2.000 to 4.000) |  |  |  |  |" in said and "No comparison" not in said
    assert "| ppo: SB3, EnvPool |  |  |  |  |  |  |  | not installed: envpool |" in said


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    """Neither a wrong folder nor a rehearsal becomes a page of results."""
    with pytest.raises(UsageError, match=r"has no results of benchmarks/gpu_session\.py"):
        gpu_page.run([tmp_path], tmp_path / "results", tmp_path / "gpu.md")
    write(tmp_path / "fake", "facts", [])
    file = tmp_path / "fake" / "facts.json"
    file.write_text(file.read_text().replace("NVIDIA Toy 3", "fake GPU 0"))
    with pytest.raises(UsageError, match="is of a dry run"):
        gpu_page.run([tmp_path / "fake"], tmp_path / "results", tmp_path / "gpu.md")
    assert not (tmp_path / "results").exists() and not (tmp_path / "gpu.md").exists()
