import sys

from accel_rl.cli import main

sys.exit(main())
