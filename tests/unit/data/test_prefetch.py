from __future__ import annotations

import gc
import threading
from datetime import timedelta

import pytest

from phalanx.data.stream import Prefetch
from phalanx.errors import TimeoutExpired


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "phalanx-prefetch"]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    assert _threads() == []
    yield
    gc.collect()
    for thread in _threads():
        thread.join(10)
    assert _threads() == []


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_prefetch_keeps_the_order(depth):
    stage = Prefetch(iter(range(100)), depth=depth)
    assert list(stage) == list(range(100))
    assert _threads() == []


def test_prefetch_works_ahead_but_not_beyond_its_depth():
    made: list[int] = []
    enough = threading.Event()

    def source():
        for number in range(100):
            made.append(number)
            if number == 4:
                enough.set()
            yield number

    stage = Prefetch(source(), depth=3)
    assert next(stage) == 0
    # While the consumer holds item 0, items 1 to 3 get ready and item 4 is made.
    assert enough.wait(10)
    stage.close()
    assert made == [0, 1, 2, 3, 4]


def test_an_exception_surfaces_after_the_items_before_it():
    def source():
        yield 1
        yield 2
        raise OSError("disk on fire")

    stage = Prefetch(source(), depth=2)
    assert next(stage) == 1
    assert next(stage) == 2
    with pytest.raises(OSError, match="disk on fire"):
        next(stage)
    with pytest.raises(StopIteration):
        next(stage)


def test_close_ends_a_thread_that_waits_for_its_consumer():
    stage = Prefetch(iter(range(1000)), depth=1)
    next(stage)
    stage.close()
    stage.close()
    assert _threads() == []
    with pytest.raises(StopIteration):
        next(stage)


def test_closed_before_it_began():
    stage = Prefetch(iter(range(3)), depth=1)
    stage.close()
    assert list(stage) == []


def test_a_forgotten_stage_takes_its_thread_along():
    stage = Prefetch(iter(range(1000)), depth=1)
    next(stage)
    (thread,) = _threads()
    del stage
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_waiting_for_an_item_has_a_deadline():
    def source():
        # Hangs until the consumer gives up and closes the channel.
        with stage._channel.changed:
            assert stage._channel.changed.wait_for(lambda: stage._channel.closed, 30)
        yield 1

    stage = Prefetch(source(), depth=1, deadline=timedelta(milliseconds=20))
    with pytest.raises(TimeoutExpired) as caught:
        next(stage)
    assert caught.value.facts["activity"] == "waiting for the input pipeline"


def test_a_depth_of_nothing_is_misuse():
    with pytest.raises(ValueError, match="no prefetch"):
        Prefetch(iter(()), depth=0)


def test_an_exception_passes_through_two_threads():
    def source():
        yield 1
        raise OSError("disk on fire")

    stage = Prefetch(Prefetch(source(), depth=1), depth=2)
    assert next(stage) == 1
    with pytest.raises(OSError, match="disk on fire"):
        next(stage)
