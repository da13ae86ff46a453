"""The self-test's process with trials that end it or hang."""

import os
import time
from typing import Any

from accel_rl.doctor import trials


def _exits() -> dict[str, Any]:
    print("last words", flush=True)
    os._exit(7)


def _hangs() -> dict[str, Any]:
    time.sleep(600)
    return {}


if __name__ == "__main__":
    trials.TRIALS = {"exits": _exits, "hangs": _hangs, "is fine": dict}
    trials.main()
