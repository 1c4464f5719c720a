from __future__ import annotations

from pathlib import Path

import pytest
import torch

from phalanx.engine.spans import PREFIX, span, spanned
from phalanx.records.profile import read_profile
from phalanx.records.rundir import RunDir
from phalanx.spec.observe import ProfileSpec
from phalanx.worker.profile import EpochProfiler
from phalanx.worker.profile_window import STEPS_PER_READING


def profiler(run: RunDir, epochs: str | None, *, memory: bool = False) -> EpochProfiler:
    spec = None if epochs is None else ProfileSpec(epochs=epochs, memory=memory)
    return EpochProfiler(spec, run=run, process="worker-0")


def train(one: EpochProfiler, epoch: int, num_steps: int) -> None:
    one.enter(epoch)
    matrix = torch.ones(8, 8)
    for _ in spanned("input", range(num_steps)):
        with span("forward"):
            torch.mm(matrix, matrix)
        with span("apply"):
            matrix.add_(0.0)
        one.step_done()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "run")


def test_only_the_chosen_epochs_are_profiled(run: RunDir) -> None:
    one = profiler(run, "2-3")
    one.prepare()
    for epoch in range(4):
        train(one, epoch, 3)
    one.leave()
    found = read_profile(run, "worker-0")
    assert found is not None
    assert found.engine.startswith("torch ")
    assert [(epoch.epoch, epoch.steps) for epoch in found.epochs] == [(1, 3), (2, 3)]


def test_operators_are_told_by_what_they_were_for_and_add_up_to_the_clock(run: RunDir) -> None:
    # More steps than are read at once, so that several readings are joined.
    steps = 2 * STEPS_PER_READING + 3
    one = profiler(run, "1")
    train(one, 0, steps)
    one.leave()
    found = read_profile(run, "worker-0")
    assert found is not None
    (epoch,) = found.epochs
    calls = {(operator.span, operator.name): operator.calls for operator in epoch.operators}
    assert calls["forward", "aten::mm"] == steps
    assert calls["apply", "aten::add_"] == steps
    assert calls["input", ""] == steps + 1
    assert not any(name.startswith(PREFIX) for _, name in calls)
    assert 0 < sum(operator.self_s for operator in epoch.operators) <= epoch.wall_s


def test_an_epoch_that_is_interrupted_by_a_pause_is_one_epoch(run: RunDir) -> None:
    one = profiler(run, "1")
    train(one, 0, 2)
    one.leave()
    train(one, 0, 3)
    one.leave()
    found = read_profile(run, "worker-0")
    assert found is not None
    (epoch,) = found.epochs
    assert epoch.steps == 5
    assert {o.calls for o in epoch.operators if o.name == "aten::mm"} == {5}


def test_an_epoch_that_a_resumed_run_repeats_is_measured_anew(run: RunDir) -> None:
    for _ in range(2):
        one = profiler(run, "1")
        train(one, 0, 3)
        one.leave()
    found = read_profile(run, "worker-0")
    assert found is not None
    assert [epoch.steps for epoch in found.epochs] == [3]


def test_memory_is_noted_if_it_was_asked_for(run: RunDir) -> None:
    one = profiler(run, "1", memory=True)
    train(one, 0, 4)
    one.leave()
    found = read_profile(run, "worker-0")
    assert found is not None
    claimed = {o.name: o.memory_bytes for o in found.epochs[0].operators if o.memory_bytes}
    # Each product is 8 x 8 floats, released again before the next.
    assert claimed
    assert max(claimed.values()) == 4 * 8 * 8 * 4


def test_a_job_without_a_profile_writes_and_marks_nothing(run: RunDir) -> None:
    one = profiler(run, None)
    one.prepare()
    train(one, 0, 3)
    one.leave()
    assert read_profile(run, "worker-0") is None
    assert span("forward") is span("backward")


def test_marks_are_seen_only_while_an_epoch_is_profiled(run: RunDir) -> None:
    one = profiler(run, "1")
    one.enter(0)
    assert isinstance(span("forward"), torch.autograd.profiler.record_function)
    one.enter(1)
    assert not isinstance(span("forward"), torch.autograd.profiler.record_function)
