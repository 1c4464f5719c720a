"""Split the time of workers' steps into phases; pure.

In a synchronous group no single worker can separate waiting from communication: the last to arrive
at an exchange does not wait, so its time is the communication, and the others waited for what they
spent beyond it. Parameter servers report how long they held a reply back. Start-up, evaluation and
checkpoints are separate events and no part of any phase.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phalanx.records.events import AnyEvent, Stall, Step


class StepPhases(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one worker, over its steps; they do not overlap except for `overlapped_s`."""

    input_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    communication_s: float = 0.0
    """Exposed: neither overlapped with computation nor waiting."""
    wait_s: float = 0.0
    apply_s: float = 0.0
    overlapped_s: float = 0.0
    """Exchange that overlapped with forward and backward; not a part of the sum."""

    @property
    def total_s(self) -> float:
        """Wall time of all phases."""
        return (
            self.input_s
            + self.forward_s
            + self.backward_s
            + self.communication_s
            + self.wait_s
            + self.apply_s
        )

    def __add__(self, other: StepPhases) -> StepPhases:
        return StepPhases(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )


class Comparison:
    """The shortest exchange of each step over all workers of one attempt.

    Args:
        events: Of all workers; those with recorded waiting are ignored.
    """

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        self._shortest: dict[tuple[str, int], float] = {}
        for event in events:
            if isinstance(event, Step | Stall) and event.wait_s is None:
                key, spent_s = _key(event), event.exchange_s
                self._shortest[key] = min(spent_s, self._shortest.get(key, spent_s))

    def wait_s(self, event: Step | Stall) -> float:
        """Return how long a worker waited for others in a step or stall."""
        if event.wait_s is not None:
            return event.wait_s
        spent_s = event.exchange_s
        return spent_s - self._shortest.get(_key(event), spent_s)

    def phases(self, event: Step | Stall) -> StepPhases:
        """Return the phases of one step or stall."""
        wait_s = self.wait_s(event)
        communication_s = event.exchange_s - wait_s
        if isinstance(event, Stall):
            return StepPhases(communication_s=communication_s, wait_s=wait_s)
        return StepPhases(
            input_s=event.input_s,
            forward_s=event.forward_s,
            backward_s=event.backward_s,
            communication_s=communication_s,
            wait_s=wait_s,
            apply_s=event.apply_s,
            overlapped_s=event.overlapped_s,
        )


def _key(event: Step | Stall) -> tuple[str, int]:
    if isinstance(event, Step):
        return "step", event.step
    return event.what, event.epoch
