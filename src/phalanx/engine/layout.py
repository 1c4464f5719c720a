"""Map parameters to ranges of the flat buffers, and ranges to buckets.

Reads shapes and returns views. `flat` moves a module's parameters into such a layout; parameter
servers cut shards out of it; checkpoints name their contents by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

BYTES_PER_FLOAT = 4
MIN_BUCKET_BYTES = 512 * 1024
MAX_BUCKET_BYTES = 25 * 1024 * 1024


@dataclass(frozen=True)
class Range:
    """Entries `start` to `stop` (excluded) of a flat buffer."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Slot:
    """The place of one parameter."""

    name: str
    """As in `named_parameters()`."""
    shape: tuple[int, ...]
    start: int
    stop: int
    channels_last: bool
    """A convolution kernel that lies in memory as (out, height, width, in)."""

    @property
    def is_kernel(self) -> bool:
        """Whether the L2 regulariser applies: matrices and convolutions, not biases or scales."""
        return len(self.shape) >= 2

    def view(self, flat: Tensor) -> Tensor:
        """Return the view of `flat` that belongs here, in the parameter's shape; no copy."""
        part = flat[self.start : self.stop]
        if not self.channels_last:
            return part.view(self.shape)
        num_out, num_in, height, width = self.shape
        return part.view(num_out, height, width, num_in).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class FlatLayout:
    """All slots in order, without gaps.

    The layout depends on the network alone, never on the machine, so that flat buffers of different
    workers and of a checkpoint mean the same.
    """

    slots: tuple[Slot, ...]

    @property
    def size(self) -> int:
        """Number of entries of a flat buffer."""
        return self.slots[-1].stop if self.slots else 0

    def kernels(self, within: Range | None = None) -> tuple[Range, ...]:
        """Return ranges of kernel entries, counted from the start of `within` and cut to it."""
        whole = within or Range(0, self.size)
        cut = (
            Range(max(slot.start, whole.start), min(slot.stop, whole.stop))
            for slot in self.slots
            if slot.is_kernel
        )
        return _joined(
            Range(part.start - whole.start, part.stop - whole.start)
            for part in cut
            if part.start < part.stop
        )

    def buckets(self, bucket_bytes: int | None = None) -> tuple[Range, ...]:
        """Cut the buffer, from its end, into ranges of whole parameters.

        Backward computes the last layers first, so bucket 0 holds the last parameters. A bucket is
        closed as soon as it has `bucket_bytes`; only the last may be smaller.

        Args:
            bucket_bytes: None takes a quarter of the model, within 512 KiB and 25 MiB.
        """
        if bucket_bytes is None:
            quarter = self.size * BYTES_PER_FLOAT // 4
            bucket_bytes = min(max(quarter, MIN_BUCKET_BYTES), MAX_BUCKET_BYTES)
        buckets: list[Range] = []
        stop = self.size
        for slot in reversed(self.slots):
            if (stop - slot.start) * BYTES_PER_FLOAT >= bucket_bytes or slot.start == 0:
                buckets.append(Range(slot.start, stop))
                stop = slot.start
        return tuple(buckets)


def _joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for part in ranges:
        if joined and joined[-1].stop == part.start:
            part = Range(joined.pop().start, part.stop)
        joined.append(part)
    return tuple(joined)
