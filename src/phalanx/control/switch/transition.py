"""Define the ways in which a run leaves a phase before its planned end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_WORDS = {
    "next": "switch to the next phase",
    "rollback": "undo the switch",
    "reshare": "change the shares of the batch",
    "loosen": "go to a looser strategy",
    "return": "go back to the strategy of the phase",
}


@dataclass(frozen=True)
class PhaseTransition:
    """Early end of the present phase.

    Attributes:
        kind: next: the planned phase that follows; rollback: the state before the last switch;
            reshare: the same strategy with other shares of the batch; loosen: the looser strategy
            for stragglers; return: back from it.
        cause: Why, for the records.
        shares: Relative share of the global batch per worker; empty: as before.
    """

    kind: Literal["next", "rollback", "reshare", "loosen", "return"]
    cause: str
    shares: tuple[float, ...] = ()

    @property
    def description(self) -> str:
        """The transition in words."""
        return _WORDS[self.kind]
