"""The sheet that a timeline is drawn on: which process has which lanes, and where spans fit.

Between `trace`, which knows events, and `chrome`, which knows the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phalanx.export.chrome import TraceWriter
from phalanx.export.clocks import AttemptClocks
from phalanx.export.lanes import Span

WORK, BEHIND, EVALUATIONS, CHECKPOINTS = 1, 2, 3, 4
_LANES = {
    WORK: "work",
    BEHIND: "overlapped communication",
    EVALUATIONS: "evaluation",
    CHECKPOINTS: "checkpoints",
}


class Sheet:
    """All lanes of a run.

    Args:
        writer: Where they are written.
        clocks: What time it was.
        processes: All of them, in the order in which they are shown.
    """

    def __init__(
        self, writer: TraceWriter, clocks: AttemptClocks, processes: Iterable[str]
    ) -> None:
        self._writer = writer
        self._clocks = clocks
        self._pids = {name: number for number, name in enumerate(processes, 1)}
        self._lanes: set[tuple[int, int]] = set()
        self._ends: dict[tuple[int, int], int] = {}
        for name, pid in self._pids.items():
            writer.name_process(pid, name, order=pid)

    def at_ns(self, process: str, attempt: int, mono_s: float) -> int:
        """Nanoseconds since the run's first moment."""
        return self._clocks.at_ns(process, attempt, mono_s)

    def span(
        self,
        process: str,
        attempt: int,
        lane: int,
        span: Span,
        args: Mapping[str, object] | None = None,
        *,
        inside: tuple[int, int] | None = None,
    ) -> tuple[int, int]:
        """Write a span and return where it lies.

        Spans of a lane must not cross, whatever rounding and clocks do: one begins at the earliest
        where the one before it ends, or lies inside the one that it is a part of.
        """
        pid = self._pids[process]
        begin_ns = self.at_ns(process, attempt, span.begin_s)
        end_ns = self.at_ns(process, attempt, span.end_s)
        if inside is None:
            begin_ns = max(begin_ns, self._ends.get((pid, lane), 0))
            self._ends[pid, lane] = end_ns = max(begin_ns, end_ns)
        else:
            begin_ns, end_ns = (min(max(ns, inside[0]), inside[1]) for ns in (begin_ns, end_ns))
        if end_ns > begin_ns:
            self._name_lane(pid, lane)
            self._writer.span(pid, lane, span.name, begin_ns, end_ns, args)
        return begin_ns, end_ns

    def instant(
        self,
        process: str,
        at_ns: int,
        name: str,
        args: Mapping[str, object],
        *,
        everywhere: bool = False,
    ) -> None:
        """Write something that took no time; `everywhere` draws it across all lanes."""
        pid = self._pids[process]
        self._name_lane(pid, WORK)
        self._writer.instant(pid, WORK, name, at_ns, args, everywhere=everywhere)

    def counter(self, owner: str, name: str, at_ns: int, values: Mapping[str, float]) -> None:
        """Write a figure of a process, or of a machine, which gets lanes of its own."""
        pid = self._pids.get(owner)
        if pid is None:
            pid = self._pids[owner] = len(self._pids) + 1
            self._writer.name_process(pid, owner, order=pid)
        self._writer.counter(pid, name, at_ns, values)

    def _name_lane(self, pid: int, lane: int) -> None:
        if (pid, lane) not in self._lanes:
            self._lanes.add((pid, lane))
            self._writer.name_lane(pid, lane, _LANES[lane])
