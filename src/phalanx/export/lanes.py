"""Where the phases of a step lie in time; pure.

A step is stamped at its end and says how long each phase took, so it is laid out backwards from its
stamp. Under a strategy that computes while a push is on its way, the end of a step is the answer to
its push, and the next step has been computed before that: `OverlappedSteps` puts them where they
were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from phalanx.records.events import Step


class Span(NamedTuple):
    """One phase on one lane."""

    name: str
    begin_s: float
    end_s: float
    beside: bool = False
    """On the lane of communication that went on behind the computation."""


def lay_out(step: Step, wait_s: float, *, apply_first: bool = False) -> tuple[float, list[Span]]:
    """The beginning of a step, and its phases in the order of time.

    Args:
        step: What was recorded.
        wait_s: The part of the exchange that was waiting for others.
        apply_first: Whether the update is made before the exchange, as in local SGD.
    """
    exchange = [("waiting", wait_s), ("exchange", step.exchange_s - wait_s)]
    apply = [("apply", step.apply_s)]
    tail = [*apply, *exchange] if apply_first else [*exchange, *apply]
    head = [("input", step.input_s), ("forward", step.forward_s), ("backward", step.backward_s)]
    spans = list(_backwards(step.mono_s, [*head, *tail]))
    begin_s = step.mono_s - sum(length for _, length in (*head, *tail))
    computed_s = begin_s + step.input_s + step.forward_s + step.backward_s
    return begin_s, spans + _behind(step, computed_s, step.forward_s + step.backward_s)


class OverlappedSteps:
    """Lays out steps that are computed while the push before them is on its way.

    A step is recorded when its push is answered. If that was awaited after computing the next step,
    the record carries the time that the next one's batch took to come; if nothing was computed in
    between, it carries none. So a step can be laid out once the next one is known.
    """

    def __init__(self) -> None:
        self._open: Step | None = None
        self._placed: list[Span] = []
        self._computed_s: float | None = None  # end of the open step's own computation

    def add(self, step: Step) -> Iterator[tuple[Step, list[Span]]]:
        """Take the next step; yields the one before it."""
        yield from self.finish(step)
        before = self._open
        self._placed, self._computed_s = [], None
        if before is not None and before.input_s > 0:
            self._computed_s = before.mono_s - before.exchange_s
            self._placed = _computation(step, self._computed_s, before.input_s)
        self._open = step

    def finish(self, following: Step | None = None) -> Iterator[tuple[Step, list[Span]]]:
        """Yield the last step."""
        if self._open is not None:
            yield _answer(self._open, self._placed, self._computed_s, following=following)


def _answer(
    step: Step, placed: list[Span], computed_s: float | None, *, following: Step | None
) -> tuple[Step, list[Span]]:
    """A step's spans: its computation, and the wait for the answer to its push."""
    wait_s = step.wait_s or 0.0
    end_s, begin_s = step.mono_s, step.mono_s - step.exchange_s
    if computed_s is None:
        # The first after a pause: the next one's batch and computation came after it.
        later_s = step.input_s
        if step.input_s > 0 and following is not None:
            later_s += following.forward_s + following.backward_s
        computed_s = begin_s - later_s
        placed = _computation(step, computed_s, 0.0)
    parts = [("waiting", wait_s), ("exchange", step.exchange_s - wait_s)]
    exchange = _backwards(end_s, parts)
    return step, [*placed, *exchange, *_behind(step, begin_s, begin_s - computed_s)]


def _computation(step: Step, end_s: float, input_s: float) -> list[Span]:
    parts = [("input", input_s), ("forward", step.forward_s), ("backward", step.backward_s)]
    return list(_backwards(end_s, parts))


def _behind(step: Step, end_s: float, longest_s: float) -> list[Span]:
    length_s = min(step.overlapped_s, longest_s)
    if length_s <= 0:
        return []
    return [Span("overlapped exchange", end_s - length_s, end_s, beside=True)]


def _backwards(end_s: float, parts: list[tuple[str, float]]) -> Iterator[Span]:
    """Parts one after another, the last ending at `end_s`; empty ones are left out."""
    begin_s = end_s - sum(length for _, length in parts)
    for name, length in parts:
        if length > 0:
            yield Span(name, begin_s, begin_s + length)
        begin_s += length
