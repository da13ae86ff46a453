"""A pytest plugin, `-p tests.helpers.without_extras`: what is neither required nor pytest itself cannot be imported.

It shows what a machine without the extras and the packages for development can run. PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
keeps out the plugins that are installed."""

import sys

from accel_rl.doctor.software import EXTRAS

DEVELOPMENT = (
    "hypothesis", "minigrid", "mkdocs", "moviepy", "mypy", "playwright", "pytest_timeout", "ruff", "stable_baselines3",
    "twine", "xdist",
)  # fmt: skip

for name in (*DEVELOPMENT, *(module for modules in EXTRAS.values() for module in modules)):
    sys.modules[name] = None  # type: ignore[assignment]
