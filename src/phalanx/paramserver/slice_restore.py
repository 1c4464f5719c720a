"""Restore the slice of a restarted server from the copy of one worker: the server's half.

Pure. The coordinator names a donor with a number that grows with every request of the run. The
donor sends its copy segment by segment, and each segment is acknowledged. Segments of an earlier
request, of a worker that was not asked, or of another version never join those of the present one:
a server is restored to one version, from one donor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from phalanx.paramserver.handshake import ClientIdentity
from phalanx.paramserver.ledger import SegmentTickets


@dataclass(frozen=True)
class WithoutDonor:
    """The slice is missing, and no donor has been named."""

    number: int = 0


@dataclass(frozen=True)
class Loading:
    """Segments of one copy are arriving."""

    number: int
    donor: ClientIdentity
    version: int | None = None
    """Of the copy; None: nothing has arrived."""
    loaded: Mapping[int, SegmentTickets] = field(default_factory=dict)
    """Batches behind the segments that have arrived."""


@dataclass(frozen=True)
class Complete:
    """The slice is whole; requests up to this number are settled."""

    number: int = 0
    version: int | None = None
    """To which it was restored; None: it was never missing."""


RestoreState = WithoutDonor | Loading | Complete


class LoadVerdict(Enum):
    """What becomes of a segment of a copy."""

    TAKE = "take"
    SETTLED = "settled"  # it is here already, or of a request that no longer counts
    UNEXPECTED = "unexpected"  # of a request that the coordinator has not announced yet
    FORBIDDEN = "forbidden"  # of a client that was not asked


class SliceRestore:
    """Decide which segments of which copy restore a slice.

    Args:
        num_segments: Of the slice.
        restoring: Whether the slice is missing.
    """

    def __init__(self, num_segments: int, *, restoring: bool) -> None:
        self.state: RestoreState = WithoutDonor() if restoring else Complete()
        self._num_segments = num_segments

    @property
    def is_over(self) -> bool:
        """Whether the slice is whole."""
        return isinstance(self.state, Complete)

    @property
    def version(self) -> int | None:
        """The version to which the slice was restored; None: it is missing, or never was."""
        return self.state.version if isinstance(self.state, Complete) else None

    @property
    def num_loaded(self) -> int:
        """Segments of the present copy that have arrived."""
        return len(self.state.loaded) if isinstance(self.state, Loading) else 0

    def expect(self, number: int, donor: ClientIdentity) -> None:
        """Take the copy of this donor, and nothing that an earlier one has sent."""
        if number <= self.state.number:
            return  # a repeated announcement
        # What an earlier donor has sent may be of another version: begin anew.
        if isinstance(self.state, Complete):
            self.state = replace(self.state, number=number)
        else:
            self.state = Loading(number, donor)

    def offer(
        self,
        client: ClientIdentity,
        *,
        number: int,
        version: int,
        segment: int,
        contents: SegmentTickets,
    ) -> LoadVerdict:
        """Decide about a segment; TAKE: it counts as loaded, and must be written."""
        state = self.state
        if number > state.number:
            return LoadVerdict.UNEXPECTED
        if number < state.number or not isinstance(state, Loading):
            return LoadVerdict.SETTLED
        if client != state.donor or not 0 <= segment < self._num_segments:
            return LoadVerdict.FORBIDDEN
        if state.version != version:
            state = Loading(state.number, state.donor, version)
        if segment in state.loaded:
            return LoadVerdict.SETTLED
        self.state = replace(state, loaded={**state.loaded, segment: contents})
        return LoadVerdict.TAKE

    def whole_copy(self) -> list[SegmentTickets] | None:
        """Return the batches behind each segment once all have arrived; `finish` is then due."""
        if not isinstance(self.state, Loading) or self.num_loaded < self._num_segments:
            return None
        return [self.state.loaded[index] for index in range(self._num_segments)]

    def finish(self, version: int, number: int = 0) -> None:
        """Note that the slice is whole, by a donor's copy or by the request of this number."""
        self.state = Complete(max(self.state.number, number), version)
