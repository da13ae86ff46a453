"""Closes environments even if a `close` method fails."""

import logging
from collections.abc import Sequence
from typing import Any

logger = logging.getLogger("accel_rl")


def close_all(envs: Sequence[Any]) -> None:
    """Closes all environments, and logs the first failure."""
    failures = []
    for env in envs:
        try:
            env.close()
        except Exception as error:
            failures.append(error)
    if failures:
        logger.warning("close() of an environment failed, and the run goes on: %r", failures[0])
