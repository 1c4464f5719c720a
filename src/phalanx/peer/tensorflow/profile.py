"""Taking the times of TensorFlow's operators in the epochs that the job wants profiled.

The same interface and records as `worker.profile`. TensorFlow runs operators on several threads, so
two may run at once: each moment is shared among those that ran in it, and the times add up to at
most the time on the clock, as they do natively. Which span an operator belongs to is in its name.
"""

from __future__ import annotations

import heapq
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from phalanx.peer.tensorflow.step import SPAN
from phalanx.records.profile import (
    EpochProfile,
    OperatorTime,
    ProcessProfile,
    read_profile,
    write_profile,
)
from phalanx.records.rundir import RunDir
from phalanx.spec.observe import ProfileSpec

# As natively: what the profiler keeps grows with every call.
STEPS_PER_READING = 20
_GRADIENTS = "gradient_tape/"
_HOST = "/host:CPU"


class Call(NamedTuple):
    """One call of an operator."""

    begin_ns: int
    end_ns: int
    span: str
    name: str


class StepProfiler:
    """Profiles the chosen epochs of one process.

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

    def enter(self, epoch: int) -> None:
        """Steps of this epoch follow."""
        self.leave()
        if self._spec is not None and self._spec.covers(epoch):
            self._window = _Window(epoch)
            self._window.resume()

    def step_done(self, *, input_s: float, exchange_s: float) -> None:
        """A step is over.

        Args:
            input_s: How long it waited for its batch.
            exchange_s: How long it took part in the exchange, which is no operator's time.
        """
        if self._window is not None:
            self._window.count_step(input_s, exchange_s)

    def leave(self) -> None:
        """The epoch's steps are over, or training pauses: write down what was measured."""
        window, self._window = self._window, None
        if window is None:
            return
        window.pause()
        former = read_profile(self._run, self._process)
        epochs = {one.epoch: one for one in former.epochs} if former is not None else {}
        # A checkpoint within an epoch makes several windows of it; what an earlier process measured
        # is replaced, because a resumed run repeats the epoch.
        earlier = epochs.get(window.epoch) if window.epoch in self._own else None
        epochs[window.epoch] = window.result(earlier)
        self._own.add(window.epoch)
        write_profile(
            self._run,
            ProcessProfile(
                process=self._process,
                engine=f"tensorflow {tf.__version__}",
                epochs=[epochs[number] for number in sorted(epochs)],
            ),
        )


class _Window:
    """The time from `enter` to `leave`."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._steps = 0
        self._wall_s = 0.0
        self._calls: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._spent_s: defaultdict[tuple[str, str], float] = defaultdict(float)

    def resume(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-")
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
        )
        tf.profiler.experimental.start(self._folder.name, options=options)
        self._begin = time.perf_counter()

    def pause(self) -> None:
        self._wall_s += time.perf_counter() - self._begin
        tf.profiler.experimental.stop()
        calls = read_calls(Path(self._folder.name))
        self._folder.cleanup()
        # The exchange is measured as a whole; its operators only start it.
        calls = [call for call in calls if call.span != "all_reduce"]
        for call in calls:
            self._calls[call.span, call.name] += 1
        for key, spent_s in share_time(calls).items():
            self._spent_s[key] += spent_s

    def count_step(self, input_s: float, exchange_s: float) -> None:
        self._steps += 1
        for span, spent_s in (("input", input_s), ("all_reduce", exchange_s)):
            if spent_s > 0:
                self._calls[span, ""] += 1
                self._spent_s[span, ""] += spent_s
        if self._steps % STEPS_PER_READING == 0:
            self.pause()
            self.resume()

    def result(self, former: EpochProfile | None) -> EpochProfile:
        if former is not None:
            self._wall_s += former.wall_s
            self._steps += former.steps
            for one in former.operators:
                self._calls[one.span, one.name] += one.calls
                self._spent_s[one.span, one.name] += one.self_s
        operators = [
            OperatorTime(span=span, name=name, calls=calls, self_s=self._spent_s[span, name])
            for (span, name), calls in self._calls.items()
        ]
        return EpochProfile(
            epoch=self.epoch,
            wall_s=self._wall_s,
            steps=self._steps,
            operators=sorted(operators, key=lambda one: (-one.self_s, one.span, one.name)),
            beside=[],
        )


def read_calls(folder: Path) -> list[Call]:
    """The calls of operators in what the profiler wrote."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    found: list[Call] = []
    for path in folder.glob("plugins/profile/*/*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        for plane in space.planes:
            if plane.name != _HOST:
                continue
            for line in plane.lines:
                for event in line.events:
                    about = plane.event_metadata[event.metadata_id]
                    # Operators are called `name in the graph:kind`; the rest is the engine's own.
                    if not about.display_name or ":" not in about.name:
                        continue
                    begin_ns = line.timestamp_ns + event.offset_ps // 1000
                    end_ns = begin_ns + event.duration_ps // 1000
                    span = span_of(about.name, about.display_name)
                    found.append(Call(begin_ns, end_ns, span, about.display_name))
    return found


def span_of(name: str, kind: str) -> str:
    """What an operator was called for, by its name in the graph."""
    if kind.startswith("Collective"):
        return "all_reduce"
    if _GRADIENTS in name:
        return "backward"
    if kind.startswith("Iterator"):
        return "input"
    _, marked, rest = name.rpartition(SPAN)
    return rest.partition("/")[0] if marked else ""


def share_time(calls: Iterable[Call]) -> dict[tuple[str, str], float]:
    """Seconds by span and operator; a moment is shared equally among those that run in it."""
    spent_ns: defaultdict[tuple[str, str], float] = defaultdict(float)
    running: list[tuple[int, tuple[str, str]]] = []
    now = 0

    def advance(to_ns: int) -> None:
        nonlocal now
        while running and now < to_ns:
            until = min(running[0][0], to_ns)
            share = (until - now) / len(running)
            for _, key in running:
                spent_ns[key] += share
            now = until
            while running and running[0][0] <= now:
                heapq.heappop(running)
        now = to_ns

    last = 0
    for call in sorted(calls):
        advance(call.begin_ns)
        heapq.heappush(running, (call.end_ns, (call.span, call.name)))
        last = max(last, call.end_ns)
    advance(last)
    return {key: spent / 1e9 for key, spent in spent_ns.items()}
