import contextlib
import os
import sys

with contextlib.suppress(OSError):  # the folder has been deleted, which main reports
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]  # as for the console script: the current folder may hold a yaml.py

from accel_rl.cli import main

sys.exit(main())
