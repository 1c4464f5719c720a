"""Define batches and the stream that a worker reads them from. `pipeline` builds the streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from phalanx.data.base import Array
from phalanx.data.normalize import NetworkInputs
from phalanx.data.order import Indices
from phalanx.data.stages import Prefetch


@dataclass(frozen=True)
class Batch:
    """One worker's samples of one step.

    `inputs` lies in a buffer that the stream uses again: it is the consumer's until it asks for the
    next batch. `copy` makes a batch that lasts.
    """

    inputs: NetworkInputs
    """Contiguous (n, H, W, C) or (n, ...); n may be 0. int64 only where a network of the user's
    reads whole numbers."""
    targets: Array
    """int64 labels or float32 values."""
    indices: Indices
    """Indices of the samples in their part."""
    global_count: int
    """Samples of all workers in this step."""
    global_offset: int
    """Samples of all workers in this epoch before this step."""
    epoch: int
    step: int

    def __len__(self) -> int:
        return len(self.targets)

    def copy(self) -> Batch:
        """Return a batch that owns its inputs."""
        return replace(self, inputs=self.inputs.copy())


class Timed(Protocol):
    """Stage with a cost in seconds."""

    name: str
    seconds: float


class BatchStream:
    """The batches of one epoch or evaluation, once through.

    Use it in a `with` block, so that leaving the loop early ends its threads at once.
    """

    def __init__(
        self,
        stages: Sequence[Timed],
        batches: Iterator[Batch],
        *,
        threads: Sequence[Prefetch[Any]],
        steps: range,
    ) -> None:
        self._stages = stages
        self._batches = batches
        self._threads = threads
        self.first_step = steps.start
        self.num_steps = steps.stop
        """One past the last step's number: for a whole epoch, the number of its steps."""

    def __len__(self) -> int:
        return self.num_steps - self.first_step

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the background threads, if any; the batches not yet taken are dropped."""
        # The one that is nearest to the source first, since the others may be waiting for it.
        for thread in self._threads:
            thread.close()

    def stage_times(self) -> dict[str, float]:
        """Return the seconds each stage has worked so far; for `prefetch`, the consumer waited."""
        return {stage.name: stage.seconds for stage in self._stages}
