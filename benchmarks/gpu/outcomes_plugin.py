"""A pytest plugin (`-p gpu.outcomes_plugin`) that appends each test's start and outcome to the file named by OUTCOMES.

So a session that is cut short still knows the failed tests, their errors, and the running tests."""

import json
import os

import pytest

OUTCOMES = "ACCEL_RL_TEST_OUTCOMES"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers report to the process that started them
        config.pluginmanager.register(Outcomes(os.environ[OUTCOMES]))


class Outcomes:
    def __init__(self, path: str):
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(nodeid, "begun")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:  # a test that ends before its call was skipped or failed
            self._write(report.nodeid, report.outcome, report.longreprtext if report.failed else "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report.nodeid, "error", report.longreprtext)

    def _write(self, test: str, outcome: str, text: str = "") -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, "text": text}) + "\n")
