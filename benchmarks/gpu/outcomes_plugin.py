"""A pytest plugin, `-p gpu.outcomes_plugin`: appends each test's outcome to the file that OUTCOMES names, when it ends.

A session that is cut short knows so what has failed until then, and how."""

import json
import os
from typing import Any

import pytest

OUTCOMES = "ACCEL_RL_TEST_OUTCOMES"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers report to the process that started them
        config.pluginmanager.register(Outcomes(os.environ[OUTCOMES]))


class Outcomes:
    def __init__(self, path: str):
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:  # what ends before it begins is skipped, or has failed
            self._write(report, report.outcome)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report, "error")

    def _write(self, report: Any, outcome: str) -> None:
        text = report.longreprtext if outcome in ("failed", "error") else ""
        with open(self._path, "a") as file:
            file.write(json.dumps({"test": report.nodeid, "outcome": outcome, "text": text}) + "\n")
