"""Signals that ask a run to stop."""

import contextlib
import os
import signal
from typing import Any

import pytest

from accel_rl.hardware.signals import StopSignal


def test_a_terminal_that_is_gone_stops_a_run_in_good_order() -> None:
    """Would catch a run that is lost with the connection, or by the shell's second SIGHUP."""
    before: Any = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    try:
        with StopSignal() as stop:
            stop.ready()
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
            assert stop.received == signal.SIGHUP
            with pytest.raises(SystemExit) as end:
                stop.leave()
            assert end.value.code == 128 + signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)


def test_nohup_is_obeyed() -> None:
    """Would catch a run that stops with its terminal although it was started to go on."""
    before: Any = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_an_import_has_caught_is_not_lost() -> None:
    """Would catch a run that goes on after Ctrl-C because a package that was being imported catches all errors."""
    with StopSignal() as stop:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stop.ready()
