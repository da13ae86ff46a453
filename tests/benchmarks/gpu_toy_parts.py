"""Parts of a GPU session that go wrong, without PyTorch. Run like benchmarks/gpu/parts.py."""

import os
import signal
import subprocess
import sys
import time

from gpu.rows import Row, Rows, run_part

GPU: Row = {"name": "probe", "gpu": "NVIDIA Toy 3", "num_gpus": 1, "torch": "2.0+toy", "cuda": "13.0", "accel_rl": "1"}
GPU |= {"driver": "580.1", "python": "3.12.3", "numpy": "2.5.2", "simulator": "native"}


def probe(rows: Rows) -> None:
    rows.put({"name": "probe", "no_gpu": "no GPU is here"} if "NO_GPU" in os.environ else GPU)


def good(rows: Rows) -> None:
    rows.add("first", lambda: {"text": f"made by {os.getpid()}"})
    rows.add("second", lambda: {"steps_per_s": 2})


def peers(rows: Rows) -> None:
    rows.add("ppo: ours", lambda: {"steps_per_s": 3})


def wrong(rows: Rows) -> None:
    """Makes one row fail at the first call."""

    def once() -> Row:
        if not (rows.out / "called").exists():
            (rows.out / "called").touch()
            raise ValueError("too\nhot")
        return {"text": "cooler"}

    good(rows)
    rows.put({"name": "third", "found": "warm", "complete": False})
    rows.add("third", once)


def hangs(rows: Rows) -> None:
    """Never ends, and neither do the processes that it has started."""
    good(rows)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    rows.put({"name": "child", "pid": child.pid, "complete": False})
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def crashes(rows: Rows) -> None:
    good(rows)
    os.kill(os.getpid(), signal.SIGSEGV)


def raises(rows: Rows) -> None:
    rows.put({"name": "half", "text": "there"})
    raise RuntimeError("nothing goes")


if __name__ == "__main__":
    run_part({each.__name__: each for each in (probe, good, peers, wrong, hangs, crashes, raises)})
