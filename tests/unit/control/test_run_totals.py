from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from phalanx.control.run_totals import RunTotals, earlier_totals, mean_times
from phalanx.control.work_times import NO_WORK
from phalanx.records.events import AttemptTotals
from phalanx.records.log import EventLog, read_events
from phalanx.wire.messages import Progress, WorkTimes


def times(sent_bytes: int, compute_s: float) -> WorkTimes:
    return msgspec.structs.replace(NO_WORK, sent_bytes=sent_bytes, compute_s=compute_s)


def beat(sent_bytes: int, compute_s: float, *, step: int = 1) -> Progress:
    return Progress(sent_bytes=sent_bytes, compute_s=compute_s, step=step)


def test_a_resumed_run_counts_what_the_attempts_before_it_spent(tmp_path: Path) -> None:
    path = tmp_path / "controller.jsonl"
    with EventLog(path) as log:
        first = RunTotals(log, 1, earlier_totals(path, 1))
        first.note({"worker-0": beat(0, 0.0, step=0)}, {}, 1.0)
        first.note({"worker-0": beat(10, 1.0)}, {}, 5.0)
        # It is killed: what was recorded last counts.
        first.note({"worker-0": beat(100, 20.0)}, {}, 36.0)
        first.note({"worker-0": beat(105, 20.5)}, {}, 36.5)
    with EventLog(path) as log:
        second = RunTotals(log, 2, earlier_totals(path, 2))
        # It fails: the end is recorded.
        second.record({"worker-0": beat(40, 4.0)}, {}, 6.0)
    with EventLog(path) as log:
        third = RunTotals(log, 3, earlier_totals(path, 3))
        whole = third.conclude({"worker-0": times(7, 0.5)}, {}, elapsed_s=2.0, startup_s=0.5)
    assert (whole.elapsed_s, whole.attempt) == (36.0 + 6.0 + 2.0, 3)
    assert whole.times.sent_bytes == 100 + 40 + 7
    assert whole.times.compute_s == pytest.approx(24.5)
    # The second attempt never made a step: all of it was start-up, as far as anybody knows.
    assert whole.startup_s == pytest.approx(5.0 + 6.0 + 0.5)


def test_a_lost_worker_has_sent_what_it_has_sent(tmp_path: Path) -> None:
    present = {"worker-0": times(10, 2.0), "worker-1": times(20, 4.0)}
    lost = {"worker-1": times(5, 1.0), "worker-2": times(100, 3.0)}
    found = mean_times(present, lost)
    assert found.sent_bytes == 135
    assert found.compute_s == pytest.approx(5.0), "per worker that is left"


def test_records_are_few(tmp_path: Path) -> None:
    path = tmp_path / "controller.jsonl"
    with EventLog(path) as log:
        totals = RunTotals(log, 1, earlier_totals(path, 1))
        for second in range(86400):
            totals.note({"worker-0": beat(second, 0.0)}, {}, float(second))
    records = [one.elapsed_s for one in read_events(path) if isinstance(one, AttemptTotals)]
    assert len(records) < 86400 / 30 + 60
    assert all(after - before <= max(1.0, 0.1 * after + 1.0) for before, after in pairwise(records))
