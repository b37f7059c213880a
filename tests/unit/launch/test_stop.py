from __future__ import annotations

import os
import signal

import pytest

from sft_cli.launch.stop import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_sets_the_flag_and_no_more(number: signal.Signals) -> None:
    with StopRequest() as stop:
        assert stop.requested == 0
        os.kill(os.getpid(), number)
        assert stop.requested == number


def test_an_announced_end_counts_as_the_end() -> None:
    """Slurm's `--signal=USR1@120`."""
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.requested == signal.SIGTERM


def test_handlers_come_back() -> None:
    before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    with StopRequest():
        pass
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before
