from __future__ import annotations

import os
import pty
import signal
import sys
import threading

import pytest

from phalanx.control.signals import catch_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_and_the_block_goes_on(number: int) -> None:
    with catch_signals() as caught:
        os.kill(os.getpid(), number)
        assert (caught.number, caught.times) == (number, 1)


def test_the_first_signal_counts_and_all_are_counted() -> None:
    with catch_signals() as caught:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert (caught.number, caught.times) == (signal.SIGTERM, 3)


def test_the_usual_handlers_come_back_even_after_an_error() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]

    def fail() -> None:
        with catch_signals():
            assert [signal.getsignal(number) for number in numbers] != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [signal.getsignal(number) for number in numbers] == before


def test_outside_the_main_thread_the_block_just_runs() -> None:
    seen = []
    before = signal.getsignal(signal.SIGINT)

    def run() -> None:
        with catch_signals() as caught:
            seen.append(caught.number)
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [None, before]


def test_a_closed_terminal_is_recorded_and_output_goes_nowhere() -> None:
    """A process at a terminal of its own, which goes away; a write to it would fail."""
    code = (
        "import os, sys, time\n"
        "from phalanx.control.signals import catch_signals\n"
        "with catch_signals() as caught:\n"
        "    print('ready', flush=True)\n"
        "    while caught.number is None:\n"
        "        time.sleep(0.05)\n"
        "    print('nowhere', flush=True)\n"
        "    sys.exit(40 + caught.number)\n"
    )
    pid, master = pty.fork()
    if pid == 0:
        # Also if these tests run under nohup.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, "-c", code])
    said = b""
    while b"ready" not in said:
        said += os.read(master, 1024)
    os.close(master)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 40 + signal.SIGHUP


def test_a_run_under_nohup_goes_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_signals() as caught:
            os.kill(os.getpid(), signal.SIGHUP)
        assert caught.number is None
    finally:
        signal.signal(signal.SIGHUP, before)
