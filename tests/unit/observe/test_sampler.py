from __future__ import annotations

import threading

import pytest

from phalanx.errors import StoreError
from phalanx.observe.sampler import Sampler, interval_after
from phalanx.records.events import Event, HostSample, ProcessSample, Watching
from phalanx.spec.observe import ObserveSpec
from support.waiting import wait_until


def test_samples_come_by_time_and_at_marks_and_end_with_the_process() -> None:
    events: list[Event] = []
    with Sampler(ObserveSpec(interval_s=0.05), events.append, attempt=3) as sampler:
        wait_until(lambda: len(events) > 3, "a few samples")
        sampler.mark("begin")
        sampler.mark("end")
    count = len(events)
    assert not any(thread.name == "sampler" for thread in threading.enumerate())
    samples = [event for event in events if isinstance(event, ProcessSample)]
    assert len(samples) == count
    assert {sample.attempt for sample in samples} == {3}
    assert [sample.moment for sample in samples if sample.moment] == ["begin", "end"]
    used = [sample.cpu_user_s + sample.cpu_system_s for sample in samples]
    assert used == sorted(used)


def test_one_process_of_a_machine_watches_it_first_idle_then_at_work() -> None:
    events: list[Event] = []
    with Sampler(ObserveSpec(interval_s=0.05), events.append, watch_host=True) as sampler:
        sampler.watch_idle(0.2)
        wait_until(lambda: _phases(events)[-1:] == ["run"], "a sample of the machine at work")
    assert isinstance(events[0], Watching)
    phases = _phases(events)
    assert phases.count("baseline") >= 2
    # The thread's very first sample may come before the watching begins.
    assert phases[-1] == "run"
    hosts = [event for event in events if isinstance(event, HostSample)]
    assert all(len(sample.core_busy_s) == events[0].cores for sample in hosts)
    assert all(0 < sample.memory_used_bytes < sample.memory_total_bytes for sample in hosts)
    assert all(sample.received_bytes.keys() == sample.sent_bytes.keys() for sample in hosts)


def _phases(events: list[Event]) -> list[str]:
    return [event.phase for event in events if isinstance(event, HostSample)]


def test_without_an_interval_nothing_is_measured() -> None:
    events: list[Event] = []
    with Sampler(ObserveSpec(interval_s=None), events.append, watch_host=True) as sampler:
        sampler.mark("begin")
    assert events == []


@pytest.mark.parametrize("error", [StoreError("the disk is full"), OSError("no such entry")])
def test_a_failing_measurement_neither_raises_nor_goes_on(error: Exception) -> None:
    calls: list[Event] = []

    def refuse(event: Event) -> None:
        calls.append(event)
        raise error

    with Sampler(ObserveSpec(interval_s=0.05), refuse) as sampler:
        wait_until(lambda: not _is_running(), "the sampler to give up")
        asked = len(calls)
        sampler.mark("begin")
    assert len(calls) <= asked + 1


def _is_running() -> bool:
    return any(thread.name == "sampler" for thread in threading.enumerate())


def test_a_long_run_is_sampled_less_often() -> None:
    day_s = 86400.0
    paces = [
        interval_after(elapsed_s, 1.0) for elapsed_s in (0.0, 3599.0, 3600.0, day_s, 7 * day_s)
    ]
    assert paces == [1.0, 1.0, 5.0, 30.0, 30.0]
    assert interval_after(7 * day_s, 60.0) == 60.0, "never more often than asked"
