"""Describe events in one line each; an open table from kind to words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from phalanx.errors import printable
from phalanx.records.events import (
    AnyEvent,
    Checkpoint,
    Considered,
    Decision,
    Evaluation,
    Failure,
    Finished,
    Placed,
    Refused,
    Resumed,
    ServerRestored,
    Started,
    Switched,
    Warned,
)
from phalanx.report.document import Mark
from phalanx.report.format import (
    format_accuracy,
    format_bytes,
    format_duration,
    format_loss,
    format_places,
)

MAX_CHARACTERS = 600
"""Of one line."""


class Line(msgspec.Struct, frozen=True):
    """One event of a process, for people."""

    time_s: float
    process: str
    kind: str
    text: str
    mark: Mark = ""
    """doubt: something went wrong."""


def line_of(process: str, time_s: float, event: AnyEvent) -> Line | None:
    """Describe an event; None for those that are shown as figures."""
    found = _WORDS.get(type(event))
    if found is None:
        return None
    kind, words = found
    mark = _MARKS.get(type(event), "")
    if isinstance(event, Decision) and event.rank is not None:
        # What becomes of a process that was lost.
        mark = "doubt"
    return Line(time_s, process, kind, printable(words(event)[:MAX_CHARACTERS]), mark)


def describe_switch(event: Switched) -> str:
    """Describe a switch with its reason."""
    return (
        f"{event.before} → {event.after} after {event.samples:,} samples ({event.cause}), "
        f"{format_duration(event.pause_s)} pause, {event.handover}"
    )


def _evaluation(event: Evaluation) -> str:
    accuracy = "" if event.accuracy is None else f", accuracy {format_accuracy(event.accuracy)}"
    return f"{event.part} of epoch {event.epoch}: loss {format_loss(event.loss)}{accuracy}"


def _started(event: Started) -> str:
    return f"{event.role} on {event.host}, process {event.pid}, attempt {event.attempt}"


def _failure(event: Failure) -> str:
    last = event.detail.strip().splitlines()[-1:]
    return f"{event.cause}{': ' if last else ''}{''.join(last)}"


def _considered(event: Considered) -> str:
    closed = f"; not yet because of {', '.join(event.closed)}" if event.closed else "; switch now"
    return f"switch considered: gain {event.gain:.2f}, saves {event.saved_s:.0f} s{closed}"


def _restored(event: ServerRestored) -> str:
    return (
        f"server {event.server} goes on from version {event.version:,}, "
        f"{event.lost_updates:,} updates lost, {event.repeated:,} batches repeated"
    )


def _refused(event: Refused) -> str:
    counts = ", ".join(f"{count} {reason}" for reason, count in event.reasons.items())
    return f"strangers at the group '{event.group}': {counts}"


_WORDS: dict[type, tuple[str, Callable[[Any], str]]] = {
    Started: ("started", _started),
    Evaluation: ("evaluation", _evaluation),
    Checkpoint: (
        "checkpoint",
        lambda one: (
            f"{one.path}, {format_bytes(one.size_bytes)} in {format_duration(one.duration_s)}"
        ),
    ),
    Resumed: ("resumed", lambda one: f"from {one.path}, {one.samples:,} samples"),
    Switched: ("switch", describe_switch),
    Placed: ("placement", lambda one: format_places(one.forecast.places)),
    Considered: ("switch", _considered),
    ServerRestored: ("restored", _restored),
    Decision: ("decision", lambda one: f"{one.what}: {one.reason}"),
    Failure: ("fault", _failure),
    Warned: ("warning", lambda one: one.message),
    Refused: ("refused", _refused),
    Finished: ("finished", lambda one: one.state),
}
_MARKS: dict[type, Mark] = {
    Failure: "doubt",
    Warned: "doubt",
    ServerRestored: "doubt",
    Refused: "doubt",
}
