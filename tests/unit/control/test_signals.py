from __future__ import annotations

import os
import signal
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
