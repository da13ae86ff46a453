import contextlib
import os
import sys

with contextlib.suppress(OSError):  # main reports a deleted folder
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]  # like the console script: the current folder may hold a yaml.py

from accel_rl.cli import main

sys.exit(main())
