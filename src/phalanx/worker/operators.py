"""Sum up operator calls of the training thread as self times, by span and name; pure.

A call's self time is its duration less that of the calls inside it. The innermost mark around it
(`engine.spans`) decides its span, so an addition of the optimiser is told from one of the model.
Calls of other threads, and exchanges that end in another thread, are kept apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.engine.spans import PREFIX
from phalanx.records.profile import OperatorTime

Key = tuple[str, str]
"""Span and operator."""


class OperatorCall(NamedTuple):
    """One call as the profiler saw it."""

    begin_ns: int
    end_ns: int
    name: str
    beside: bool
    memory_bytes: int | None = None
    """Set for an allocation or release of memory, which has no duration."""


@dataclass
class _Sum:
    calls: int = 0
    self_ns: int = 0
    memory_bytes: int = 0


class _Open:
    __slots__ = ("end_ns", "key", "sum")

    def __init__(self, end_ns: int, key: Key, total: _Sum) -> None:
        self.end_ns = end_ns
        self.key = key
        self.sum = total


class OperatorSums:
    """Sums over calls so far."""

    def __init__(self) -> None:
        self._operators: defaultdict[Key, _Sum] = defaultdict(_Sum)
        self._beside: defaultdict[Key, _Sum] = defaultdict(_Sum)

    def add(self, calls: Iterable[OperatorCall]) -> None:
        """Add the calls of one stretch of profiling, in any order."""
        stack: list[_Open] = []
        # Of two that begin together, the longer one is around the shorter one.
        for call in sorted(calls, key=lambda call: (call.begin_ns, -call.end_ns)):
            if call.beside:
                total = self._beside["", call.name]
                total.calls += 1
                total.self_ns += call.end_ns - call.begin_ns
                continue
            while stack and stack[-1].end_ns <= call.begin_ns:
                stack.pop()
            if call.memory_bytes is None:
                self._open(call, stack)
            elif stack:
                stack[-1].sum.memory_bytes += call.memory_bytes

    def _open(self, call: OperatorCall, stack: list[_Open]) -> None:
        around = stack[-1] if stack else None
        # Clocks of nanoseconds: a call may seem to end a moment after the one around it.
        end_ns = call.end_ns if around is None else min(call.end_ns, around.end_ns)
        duration_ns = end_ns - call.begin_ns
        if around is not None:
            around.sum.self_ns -= duration_ns
        if call.name.startswith(PREFIX):
            key = (call.name.removeprefix(PREFIX), "")
        else:
            key = ("" if around is None else around.key[0], call.name)
        total = self._operators[key]
        total.calls += 1
        total.self_ns += duration_ns
        stack.append(_Open(end_ns, key, total))

    def include(self, operators: Iterable[OperatorTime], beside: Iterable[OperatorTime]) -> None:
        """Add the sums of an earlier stretch."""
        for found, sums in ((operators, self._operators), (beside, self._beside)):
            for one in found:
                total = sums[one.span, one.name]
                total.calls += one.calls
                total.self_ns += round(one.self_s * 1e9)
                total.memory_bytes += one.memory_bytes

    def operators(self) -> list[OperatorTime]:
        """Return operators of the training thread, longest first."""
        return _listed(self._operators)

    def beside(self) -> list[OperatorTime]:
        """Return operators of other threads, longest first."""
        return _listed(self._beside)


def _listed(sums: dict[Key, _Sum]) -> list[OperatorTime]:
    ordered = sorted(sums.items(), key=lambda item: (-item[1].self_ns, item[0]))
    return [
        OperatorTime(
            span=span,
            name=name,
            calls=total.calls,
            self_s=total.self_ns / 1e9,
            memory_bytes=total.memory_bytes,
        )
        for (span, name), total in ordered
    ]
