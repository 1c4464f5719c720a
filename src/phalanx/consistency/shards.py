"""Cut the flat parameter buffer: contiguous shards over servers, segments within a shard.

Pure arithmetic on numbers of parameters (4 bytes each on the server). Every process computes the
same layout from the same spec, so that no key lists travel: a segment's index is enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

PARAMETER_BYTES = 4
# Smaller ones cost more in Python than they gain by overlapping.
MIN_SEGMENT_BYTES = 3 << 19
MAX_SEGMENT_BYTES = 4 << 20
# Enough segments for receiving, applying and answering to overlap, few enough that Python's
# cost per segment stays small.
_SEGMENTS_PER_SHARD = 8


@dataclass(frozen=True)
class Segment:
    """Content of one frame: parameters `start` to `stop` of the flat buffer."""

    index: int
    server: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Parameters in it."""
        return self.stop - self.start


@dataclass(frozen=True)
class ShardLayout:
    """Assignment of segments to servers.

    Attributes:
        segments: All of them, in the order of the flat buffer.
        num_servers: Servers that own at least one.
    """

    segments: tuple[Segment, ...]
    num_servers: int

    @property
    def num_parameters(self) -> int:
        """Length of the flat buffer."""
        return self.segments[-1].stop

    def of_server(self, server: int) -> tuple[Segment, ...]:
        """Return the segments of one server, in order."""
        return self._by_server.get(server, ())

    def bounds(self, server: int) -> tuple[int, int]:
        """Return the slice of the flat buffer that one server owns."""
        own = self.of_server(server)
        return own[0].start, own[-1].stop

    def covering(self, start: int, stop: int) -> range:
        """Return the indices of the segments that overlap a slice of the flat buffer."""
        if stop <= start:
            return range(0)
        first = bisect_right(self._starts, start) - 1
        return range(first, bisect_right(self._starts, stop - 1))

    @cached_property
    def _by_server(self) -> dict[int, tuple[Segment, ...]]:
        # Looked up for every answered segment: a search through all of them would cost seconds per
        # push of a large model.
        own: dict[int, list[Segment]] = {}
        for segment in self.segments:
            own.setdefault(segment.server, []).append(segment)
        return {server: tuple(segments) for server, segments in own.items()}

    @cached_property
    def _starts(self) -> list[int]:
        return [segment.start for segment in self.segments]


def plan_shards(
    num_parameters: int,
    *,
    num_servers: int,
    min_shard_bytes: int = 256 * 1024,
    max_shards: int | None = None,
    segment_bytes: int | None = None,
    cut_at: Sequence[int] | None = None,
    borders: Sequence[int] = (),
) -> ShardLayout:
    """Cut the flat buffer evenly over as many servers as are worth using.

    Args:
        num_parameters: Length of the flat buffer.
        num_servers: Available servers.
        min_shard_bytes: A server gets no less, unless there is only one.
        max_shards: Most servers to use.
        segment_bytes: Upper limit of a frame; default: an eighth of the shard, 1.5 to 4 MiB.
        cut_at: Places, in rising order, where cuts are allowed; None: anywhere. A frame is longer
            than its limit, and a server without a shard, where they are too few.
        borders: Places, in rising order, that no segment lies on both sides of.

    Returns:
        Shards that differ by at most one parameter, each cut into segments that do too, or as
        nearly as `cut_at` allows.
    """
    if num_parameters <= 0 or num_servers <= 0:
        raise ValueError("a layout needs at least one parameter and one server")
    worth_using = num_parameters * PARAMETER_BYTES // max(min_shard_bytes, PARAMETER_BYTES)
    num_shards = max(1, min(num_servers, max_shards or num_servers, worth_using))
    limit = segment_bytes or _segment_bytes(num_parameters * PARAMETER_BYTES // num_shards)
    segments: list[Segment] = []
    shards = _even(0, num_parameters, num_shards, cut_at)
    for server, (start, stop) in enumerate(shards):
        within = [border for border in borders if start < border < stop]
        for first, last in pairwise([start, *within, stop]):
            num_segments = -(-(last - first) * PARAMETER_BYTES // limit)
            segments += [
                Segment(len(segments) + i, server, *bounds)
                for i, bounds in enumerate(_even(first, last, num_segments, cut_at))
            ]
    return ShardLayout(tuple(segments), len(shards))


def _segment_bytes(shard_bytes: int) -> int:
    return min(MAX_SEGMENT_BYTES, max(MIN_SEGMENT_BYTES, shard_bytes // _SEGMENTS_PER_SHARD))


def _even(start: int, stop: int, parts: int, cut_at: Sequence[int] | None) -> list[tuple[int, int]]:
    size = stop - start
    cuts = [start + size * part // parts for part in range(1, parts)]
    if cut_at is not None:
        cuts = sorted({_nearest(cut, cut_at) for cut in cuts if cut_at})
    return list(pairwise([start, *(cut for cut in cuts if start < cut < stop), stop]))


def _nearest(place: int, allowed: Sequence[int]) -> int:
    after = bisect_left(allowed, place)
    return min(allowed[max(0, after - 1) : after + 1], key=lambda one: abs(one - place))
