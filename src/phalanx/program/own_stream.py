"""Read a stream that is this worker's own: what its loader gives is its part of every batch.

Every worker reads other data, by a loader that it builds for its rank. All of them make as many
updates; one whose stream ends before the others' goes on with rows that count nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from phalanx.engine.rng import draw_seed
from phalanx.errors import DataError, SpecError
from phalanx.program.passes import Passes, begin_epoch
from phalanx.program.rows import count_rows, take_rows
from phalanx.program.source import STAND_IN_ROWS, BatchCut, BatchSource, MicroBatch, seed_all
from phalanx.spec.strategy import StrategySpec


class OwnStream(BatchSource):
    """The batches of one worker, which others do not read.

    Args:
        passes: What the script gave.
        cut: The worker's place among all.
        num_batches: Of one pass of the script's loop; None: those of the loader.
    """

    counts_rows = False

    def __init__(self, passes: Passes, cut: BatchCut, num_batches: int | None) -> None:
        self._passes = passes
        self.batch_size = passes.batch_size * cut.size
        self.has_steps = num_batches is not None
        self.num_read = 0
        """Batches of this epoch that this worker had."""
        self._set_length(num_batches or passes.length())

    def agree(self, most_batches: int) -> None:
        """Take the longest stream's length for all: it decides when an epoch is over."""
        self._set_length(most_batches)

    def _set_length(self, num_batches: int) -> None:
        self.num_batches = num_batches
        self.num_samples = num_batches * self.batch_size

    @override
    def digest(self, seed: int) -> str:
        return f"own {self.batch_size}x{self.num_batches}"

    @override
    def open(
        self, epoch: int, *, cut: BatchCut, seed: int, start_sample: int
    ) -> Iterator[MicroBatch]:
        skip = start_sample // self.batch_size
        begin_epoch(self._passes.given, epoch)
        # Not restored: a stream draws while it is read.
        seed_all(draw_seed(draw_seed(seed, epoch, cut.rank), 0, 0))
        batches = self._passes.begin()
        stand_in: object | None = None
        self.num_read = 0
        for number in range(self.num_batches):
            batch = next(batches, None)
            if batch is None:
                if stand_in is None or cut.size == 1:
                    raise ended_early(f"after {number} of {self.num_batches} batches")
                yield MicroBatch(stand_in, 0, self.batch_size)
                continue
            self.num_read = number + 1
            rows = count_rows(batch)
            if cut.part < 1:
                rows = cut.used(rows, 1)
                batch = take_rows(batch, 0, rows)
            stand_in = take_rows(batch, 0, min(rows, STAND_IN_ROWS))
            if number >= skip:
                yield MicroBatch(batch, rows, self.batch_size)


def check_strategy(strategy: StrategySpec) -> None:
    """Refuse strategies under which servers hand out the batches: a stream has its own.

    Raises:
        SpecError: It is one of these.
    """
    if strategy.uses_servers:
        raise SpecError(
            "session.data(own=True) needs a strategy under which all workers step together, such "
            f"as allreduce or local_sgd, not '{strategy.name}'"
        )


def ended_early(where: str) -> DataError:
    """Make the error of streams that have ended, of one worker from the start or of all."""
    return DataError(
        f"session.data(own=True) has no batch left {where}; give fewer 'steps', or a longer stream"
    )
