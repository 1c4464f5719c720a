"""Taking the times of operators in the epochs that the job wants profiled.

The loops say where they are (`enter`, `step_done`, `leave`); outside of the chosen epochs that
costs a comparison. The profiler is read every few steps, because it keeps some hundred bytes per
operator call and a large model makes thousands of calls a step. All workers read after the same
step, so that they do not wait for one another, and the pause is not part of what is measured.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import torch
from torch.autograd.profiler import profile as torch_profile
from torch.autograd.profiler_util import MEMORY_EVENT_NAME

from phalanx.engine.spans import PREFIX, spans_on
from phalanx.records.profile import (
    EpochProfile,
    ProcessProfile,
    read_profile,
    write_profile,
)
from phalanx.records.rundir import RunDir
from phalanx.spec.observe import ProfileSpec
from phalanx.worker.operators import Call, OperatorSums

# ResNet-56 makes 3,200 calls a step: 64,000 calls are read in a third of a second.
STEPS_PER_READING = 20


class EpochProfiler:
    """Profiles the chosen epochs of one worker.

    Args:
        spec: Which epochs; None profiles nothing.
        run: Where the result is written.
        process: This process's name.
    """

    def __init__(self, spec: ProfileSpec | None, *, run: RunDir, process: str) -> None:
        self._spec = spec
        self._run = run
        self._process = process
        self._window: _Window | None = None
        self._own: set[int] = set()

    def prepare(self) -> None:
        """Start and stop the profiler once, before training: its first start takes seconds."""
        if self._spec is not None:
            with torch_profile(use_kineto=True):
                pass

    def enter(self, epoch: int) -> None:
        """Steps of this epoch follow; calling it again within the epoch does nothing."""
        if self._window is not None and self._window.epoch == epoch:
            return
        self.leave()
        if self._spec is not None and self._spec.covers(epoch):
            self._window = _Window(epoch, memory=self._spec.memory)
            self._window.resume()

    def step_done(self) -> None:
        """A step is over."""
        if self._window is not None:
            self._window.count_step()

    def leave(self) -> None:
        """The epoch's steps are over, or training pauses: write down what was measured."""
        window, self._window = self._window, None
        if window is None:
            return
        window.pause()
        former = read_profile(self._run, self._process)
        epochs = {one.epoch: one for one in former.epochs} if former is not None else {}
        # A gate within an epoch, such as a checkpoint, makes several windows of it. What an earlier
        # process measured is replaced: a resumed run repeats the epoch.
        earlier = epochs.get(window.epoch) if window.epoch in self._own else None
        epochs[window.epoch] = window.result(earlier)
        self._own.add(window.epoch)
        write_profile(
            self._run,
            ProcessProfile(
                process=self._process,
                engine=f"torch {torch.__version__.partition('+')[0]}",
                epochs=[epochs[number] for number in sorted(epochs)],
            ),
        )


class _Window:
    """The time from `enter` to `leave`."""

    def __init__(self, epoch: int, *, memory: bool) -> None:
        self.epoch = epoch
        self._memory = memory
        self._steps = 0
        self._wall_s = 0.0
        self._sums = OperatorSums()

    def resume(self) -> None:
        self._stack = ExitStack()
        self._torch = torch_profile(use_kineto=True, profile_memory=self._memory)
        self._stack.enter_context(self._torch)
        self._stack.enter_context(spans_on())
        self._begin = time.perf_counter()

    def pause(self) -> None:
        self._wall_s += time.perf_counter() - self._begin
        self._stack.close()
        self._sums.add(_calls(self._torch))

    def count_step(self) -> None:
        self._steps += 1
        if self._steps % STEPS_PER_READING == 0:
            self.pause()
            self.resume()

    def result(self, former: EpochProfile | None) -> EpochProfile:
        if former is not None:
            self._sums.include(former.operators, former.beside)
            self._wall_s += former.wall_s
            self._steps += former.steps
        return EpochProfile(
            epoch=self.epoch,
            wall_s=self._wall_s,
            steps=self._steps,
            operators=self._sums.operators(),
            beside=self._sums.beside(),
        )


def _calls(finished: torch_profile) -> list[Call]:
    """What the profiler saw.

    Taken from its raw results: torch's own list of events is made in Python at 60 µs an event,
    half a minute for an epoch of a large model; this takes 3 µs.
    """
    results = finished.kineto_results
    assert results is not None
    events = results.events()
    # Spans are only opened by the thread that trains.
    threads = {event.start_thread_id() for event in events if event.name().startswith(PREFIX)}
    found: list[Call] = []
    for event in events:
        name, begin_ns, thread = event.name(), event.start_ns(), event.start_thread_id()
        if name == MEMORY_EVENT_NAME:
            num_bytes = event.nbytes()  # type: ignore[attr-defined]  # missing in torch's stub
            found.append(Call(begin_ns, begin_ns, name, thread not in threads, num_bytes))
        elif not name.startswith("profiler::_record_function"):
            beside = thread not in threads or event.is_async() or event.end_thread_id() != thread
            found.append(Call(begin_ns, begin_ns + event.duration_ns(), name, beside))
    return found
