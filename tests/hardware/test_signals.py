"""Tests of signals that ask a run to stop."""

import contextlib
import os
import signal
from typing import Any

import pytest

from accel_rl.hardware.signals import StopSignal


def test_a_terminal_that_is_gone_stops_a_run_in_good_order() -> None:
    """A terminal's SIGHUP, sent once or twice, stops a run in good order; under nohup it is ignored."""
    before: Any = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with StopSignal() as stop:
            stop.ready()
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
            assert stop.received == signal.SIGHUP
            with pytest.raises(SystemExit) as end:
                stop.leave()
            assert end.value.code == 128 + signal.SIGHUP
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_an_import_has_caught_is_not_lost() -> None:
    """A signal still ends the program if an import has caught its exception."""
    with StopSignal() as stop:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stop.ready()
