"""Sum a worker's gradients over all workers, bucket by bucket, whole or compressed.

`Allreduce` starts a bucket during backward as soon as it is final and finishes all of them before
the update. What compression leaves out of a sum is kept as a residual and added to the worker's
next gradient (error feedback), so over many steps nothing is lost for good.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective, Pending
from phalanx.engine.layout import Range
from phalanx.engine.trained import FlatReplica
from phalanx.errors import PeerError
from phalanx.spec.compression import CompressionSpec
from phalanx.spec.registry import load

RESIDUAL = "residual"


class GradientExchange(ABC):
    """Exchange the gradients of one replica; all workers start buckets in the same order.

    Args:
        replica: Its gradient buffer is summed in place.
        collective: The workers.
    """

    replicas_drift = False
    """Whether replicas on unlike processors may round sums differently, so that `synchronize` has
    to make them equal."""

    def __init__(self, replica: FlatReplica, collective: Collective) -> None:
        self._replica = replica
        self._collective = collective
        self.pending: list[Pending] = []
        """Exchanges of this step that have been started; by bucket."""

    @property
    def kept(self) -> dict[str, Tensor]:
        """What this worker has left out so far, by name, each as long as the gradient."""
        return {}

    def sums_bytes(self) -> list[int]:
        """Return the sizes of the sums of a step; empty: it exchanges otherwise."""
        return []

    def begin(self, step_index: int) -> None:  # noqa: B027 (most need not know)
        """Begin a step, which has this number in the whole run."""

    @abstractmethod
    def start(self, index: int) -> None:
        """Start the sum of a bucket whose gradients are final."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until the gradient buffer holds the sum over all workers."""

    def export_state(self) -> dict[str, Tensor]:
        """Return what all workers keep; all call it together."""
        return {
            name: torch.stack(self._collective.all_gather(own)) for name, own in self.kept.items()
        }

    def import_state(self, state: dict[str, Tensor]) -> None:
        """Restore what was kept, maybe in a group of another size."""
        for name, own in self.kept.items():
            rows = state.get(name)
            if rows is not None and rows.shape[1:] == own.shape:
                self._carry(rows, own)

    def _carry(self, rows: Tensor, own: Tensor) -> None:
        """Write this worker's part of what all have left out, one row per former worker."""
        rank = self._collective.rank
        if len(rows) == self._collective.size:
            own.copy_(rows[rank])
        elif rank == 0:
            # In a group of another size the first worker carries what all have left out.
            own.copy_(rows.sum(0))
        else:
            own.zero_()

    def take_note(self) -> str | None:
        """Return what the user should know of the step before, once."""
        return None


class ReducedExchange(GradientExchange):
    """Sum a message per bucket by one all-reduce, behind backward."""

    entry_bytes = 4
    """Of an entry of a message."""

    @override
    def sums_bytes(self) -> list[int]:
        return [self.entry_bytes * len(bucket) for bucket in self._replica.buckets]

    @override
    def start(self, index: int) -> None:
        bucket = self._replica.buckets[index]
        self.pending.append(self._collective.start_all_reduce(self._encode(index, bucket)))

    @override
    def finish(self) -> None:
        # Buckets were started in rising order, so positions are bucket indices.
        for index, pending in enumerate(self.pending):
            pending.wait()
            self._decode(self._replica.buckets[index])
        self.pending.clear()

    @abstractmethod
    def _encode(self, index: int, bucket: Range) -> Tensor:
        """Return what is summed over workers for a bucket."""

    @abstractmethod
    def _decode(self, bucket: Range) -> None:
        """Write the summed bucket into the gradient buffer."""


class BackgroundExchange(GradientExchange):
    """Exchange buckets that take several rounds, one after another in a thread behind backward.

    All calls of a step come from that thread and in the order of buckets, so they are the same on
    all workers however fast each is.
    """

    def __init__(self, replica: FlatReplica, collective: Collective) -> None:
        super().__init__(replica, collective)
        # It ends by itself when nothing holds the exchange any more.
        self._thread = ThreadPoolExecutor(
            1,
            thread_name_prefix="exchange",
            # A setting of each thread: numbers too small for the processor's fast paths are zero.
            initializer=torch.set_flush_denormal,
            initargs=(True,),
        )
        self._broken = False

    @override
    def start(self, index: int) -> None:
        self.pending.append(_Task(self._thread.submit(self._run, index)))

    @override
    def finish(self) -> None:
        try:
            # Taken one by one: an error must not hold the exchange that holds the error.
            while self.pending:
                self.pending.pop(0).wait()
        finally:
            self.pending.clear()

    def _run(self, index: int) -> None:
        if self._broken:
            raise PeerError("an earlier exchange of this step broke off")
        self._broken = True
        self._exchange(index)
        self._broken = False

    @abstractmethod
    def _exchange(self, index: int) -> None:
        """Replace a bucket of the gradient buffer by the sum over workers; runs in the thread."""


class _Task:
    def __init__(self, future: Future[None]) -> None:
        self._future: Future[None] | None = future

    def wait(self) -> None:
        """Block until done, once; the collective enforces its deadline."""
        future, self._future = self._future, None
        try:
            if future is not None:
                future.result()
        finally:
            del future

    def is_done(self) -> bool:
        """Return whether the thread has finished it, with or without success."""
        return self._future is None or self._future.done()


class DelayedExchange(GradientExchange):
    """Send gradients whole in the first steps of the run, and compressed from then on.

    Args:
        replica: Its gradient buffer is summed in place.
        collective: The workers.
        whole: Used first.
        compressed: Used afterwards; its state is that of both.
        whole_steps: Number of first steps.
    """

    def __init__(
        self,
        replica: FlatReplica,
        collective: Collective,
        *,
        whole: GradientExchange,
        compressed: GradientExchange,
        whole_steps: int,
    ) -> None:
        super().__init__(replica, collective)
        self.replicas_drift = compressed.replicas_drift
        self._whole, self._compressed = whole, compressed
        self._whole_steps = whole_steps
        self._now = compressed

    @property
    @override
    def kept(self) -> dict[str, Tensor]:
        return self._compressed.kept

    @override
    def sums_bytes(self) -> list[int]:
        return self._compressed.sums_bytes() or self._whole.sums_bytes()

    @override
    def begin(self, step_index: int) -> None:
        self._now = self._whole if step_index < self._whole_steps else self._compressed
        self.pending = self._now.pending

    @override
    def start(self, index: int) -> None:
        self._now.start(index)

    @override
    def finish(self) -> None:
        self._now.finish()

    @override
    def export_state(self) -> dict[str, Tensor]:
        return self._compressed.export_state()

    @override
    def import_state(self, state: dict[str, Tensor]) -> None:
        self._compressed.import_state(state)


ExchangeMaker = Callable[[CompressionSpec, FlatReplica, Collective], GradientExchange]


def build_exchange(
    spec: CompressionSpec, replica: FlatReplica, collective: Collective
) -> GradientExchange:
    """Build the exchange of a compression.

    Raises:
        SpecError: It cannot be imported.
    """
    made = cast(ExchangeMaker, load(spec.kind.exchange))(spec, replica, collective)
    if spec.whole_steps == 0:
        return made
    from phalanx.strategy.exchange.whole import WholeExchange

    whole = WholeExchange(spec, replica, collective)
    return DelayedExchange(
        replica, collective, whole=whole, compressed=made, whole_steps=spec.whole_steps
    )


def equalise(replica: FlatReplica, collective: Collective) -> None:
    """Give every worker the chief's parameters, unless a digest shows that all are equal."""
    data = replica.parameters.numpy().data
    digest = int.from_bytes(hashlib.blake2b(data, digest_size=7).digest())
    bounds = torch.tensor([digest, -digest], dtype=torch.int64)
    collective.all_reduce(bounds, "max")
    if bounds[0] != -bounds[1]:
        collective.broadcast(replica.parameters)
