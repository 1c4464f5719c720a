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
    the record carries the time that the next one's batch took to come, and the step can be laid out
    once the next one is known; if nothing was computed in between, it carries none. What is yielded
    comes in the order of time: parts of two steps take turns.
    """

    def __init__(self) -> None:
        self._open: Step | None = None
        self._computed_s: float | None = None  # end of the open step's computation, if laid out

    def add(self, following: Step) -> Iterator[tuple[Step, list[Span]]]:
        """Take the next step; yields what is known by now."""
        done, computed_s = self._open, None
        if done is not None:
            yield from self._begin(done, following)
            computed_s = done.mono_s - done.exchange_s
            yield following, _computation(following, computed_s, done.input_s)
            yield done, self._answer(done)
        self._open, self._computed_s = following, computed_s
        if following.input_s == 0:
            yield from self.finish()

    def finish(self) -> Iterator[tuple[Step, list[Span]]]:
        """Yield what is left of the last step."""
        if self._open is not None:
            yield from self._begin(self._open, None)
            yield self._open, self._answer(self._open)
            self._open, self._computed_s = None, None

    def _begin(self, step: Step, following: Step | None) -> Iterator[tuple[Step, list[Span]]]:
        """The computation of the first step after a pause, which came before all else."""
        if self._computed_s is None:
            later_s = step.input_s
            if step.input_s > 0 and following is not None:
                later_s += following.forward_s + following.backward_s
            self._computed_s = step.mono_s - step.exchange_s - later_s
            yield step, _computation(step, self._computed_s, 0.0)

    def _answer(self, step: Step) -> list[Span]:
        """The wait for the answer to a push, and the push that went on before it."""
        assert self._computed_s is not None
        wait_s = step.wait_s or 0.0
        begin_s = step.mono_s - step.exchange_s
        parts = [("waiting", wait_s), ("exchange", step.exchange_s - wait_s)]
        behind = _behind(step, begin_s, begin_s - self._computed_s)
        return [*_backwards(step.mono_s, parts), *behind]


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
