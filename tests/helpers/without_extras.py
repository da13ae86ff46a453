"""A pytest plugin (`-p tests.helpers.without_extras`) that allows only required packages and pytest to be imported.

It shows what a machine without the extras and the packages for development can run. PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
excludes the installed plugins."""

import configparser
import re
import sys
from pathlib import Path

DEVELOPMENT = (
    "hypothesis", "minigrid", "mkdocs", "moviepy", "mypy", "playwright", "pytest_timeout", "ruff", "stable_baselines3",
    "twine", "xdist",
)  # fmt: skip

SETUP = configparser.ConfigParser()
SETUP.read(Path(__file__).parents[2] / "setup.cfg")
EXTRAS = [text for extra, text in SETUP["options.extras_require"].items() if extra not in ("dev", "docs")]
PACKAGES = re.findall(r"^([\w-]+)>=", "\n".join(EXTRAS), re.MULTILINE)

for name in (*DEVELOPMENT, *PACKAGES):
    sys.modules[name.removesuffix("-ce")] = None  # type: ignore[assignment]
