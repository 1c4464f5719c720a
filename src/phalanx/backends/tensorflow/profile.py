"""Profile TensorFlow's operators in the epochs that the job selects.

TensorFlow runs operators on several threads, so two may run at once: each moment is shared among
those that ran in it, and the times add up to at most the wall time, as they do natively. The span
of an operator is in its name.
"""

from __future__ import annotations

import heapq
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from typing_extensions import override

from phalanx.backends.tensorflow.step import SPAN
from phalanx.records.profile import EpochProfile, OperatorTime
from phalanx.spec.observe import ProfileSpec
from phalanx.worker.profile_window import ProfileWindow, WindowProfiler

_GRADIENTS = "gradient_tape/"
_HOST = "/host:CPU"


class GraphCall(NamedTuple):
    """One call of an operator of a graph."""

    begin_ns: int
    end_ns: int
    span: str
    name: str


class GraphProfiler(WindowProfiler):
    """Profile TensorFlow's operators in the chosen epochs of one process."""

    engine = f"tensorflow {tf.__version__}"

    @override
    def _open(self, epoch: int, spec: ProfileSpec) -> ProfileWindow:
        return _GraphWindow(epoch)


class _GraphWindow(ProfileWindow):
    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self._calls: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._spent_s: defaultdict[tuple[str, str], float] = defaultdict(float)

    @override
    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-")
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
        )
        tf.profiler.experimental.start(self._folder.name, options=options)

    @override
    def _stop(self) -> None:
        tf.profiler.experimental.stop()
        calls = read_calls(Path(self._folder.name))
        self._folder.cleanup()
        # The exchange is measured as a whole; its operators only start it.
        calls = [call for call in calls if call.span != "all_reduce"]
        for call in calls:
            self._calls[call.span, call.name] += 1
        for key, spent_s in share_time(calls).items():
            self._spent_s[key] += spent_s

    @override
    def _count(self, *, input_s: float, exchange_s: float) -> None:
        for span, spent_s in (("input", input_s), ("all_reduce", exchange_s)):
            if spent_s > 0:
                self._calls[span, ""] += 1
                self._spent_s[span, ""] += spent_s

    @override
    def _include(self, former: EpochProfile) -> None:
        for one in former.operators:
            self._calls[one.span, one.name] += one.calls
            self._spent_s[one.span, one.name] += one.self_s

    @override
    def _profile(self, *, wall_s: float, steps: int) -> EpochProfile:
        operators = [
            OperatorTime(span=span, name=name, calls=calls, self_s=self._spent_s[span, name])
            for (span, name), calls in self._calls.items()
        ]
        return EpochProfile(
            epoch=self.epoch,
            wall_s=wall_s,
            steps=steps,
            operators=sorted(operators, key=lambda one: (-one.self_s, one.span, one.name)),
            beside=[],
        )


def read_calls(folder: Path) -> list[GraphCall]:
    """Return the calls of operators in the profiler's output."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    found: list[GraphCall] = []
    for path in folder.glob("plugins/profile/*/*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        for plane in space.planes:
            if plane.name != _HOST:
                continue
            for line in plane.lines:
                for event in line.events:
                    about = plane.event_metadata[event.metadata_id]
                    # Operators are called `name in the graph:kind`; the rest is the runtime's.
                    if not about.display_name or ":" not in about.name:
                        continue
                    begin_ns = line.timestamp_ns + event.offset_ps // 1000
                    end_ns = begin_ns + event.duration_ps // 1000
                    span = span_of(about.name, about.display_name)
                    found.append(GraphCall(begin_ns, end_ns, span, about.display_name))
    return found


def span_of(name: str, kind: str) -> str:
    """Return the span of an operator, by its name in the graph."""
    if kind.startswith("Collective"):
        return "all_reduce"
    if _GRADIENTS in name:
        return "backward"
    if kind.startswith("Iterator"):
        return "input"
    _, marked, rest = name.rpartition(SPAN)
    return rest.partition("/")[0] if marked else ""


def share_time(calls: Iterable[GraphCall]) -> dict[tuple[str, str], float]:
    """Return seconds by span and operator; operators that run at once share their time."""
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
