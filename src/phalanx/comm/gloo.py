"""Collectives on Gloo, the CPU back-end of torch.distributed.

The process group is made directly rather than through torch's global default group: several groups
can then live in one process, and a test can run its ranks as threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from typing_extensions import override

from phalanx.comm.base import Collective, Pending, Reduction
from phalanx.errors import PeerError

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


class GlooCollective(Collective):
    """A group over TCP connections between all pairs.

    Args:
        store: Where the members find one another's addresses.
        rank: This worker's index.
        size: How many workers take part.
        host: The local address that this worker's connections use.
        deadline_s: How long one exchange may take.
    """

    def __init__(
        self, store: dist.Store, *, rank: int, size: int, host: str, deadline_s: float
    ) -> None:
        self.rank = rank
        self.size = size
        self.sent_bytes = 0
        self._deadline_s = deadline_s
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=deadline_s)
        options._threads = 2
        try:
            self._group = dist.ProcessGroupGloo(store, rank, size, options)
        except RuntimeError as error:
            raise PeerError(f"the group of {size} workers did not form: {error}") from error

    @override
    def start_all_reduce(self, tensor: torch.Tensor, reduction: Reduction = "sum") -> Pending:
        options = dist.AllreduceOptions()
        options.reduceOp = _OPERATIONS[reduction]
        # A ring sends each of its N chunks N-1 times while reducing and N-1 times while spreading.
        self._count(2 * (self.size - 1) / self.size * tensor.nbytes)
        return self._start(lambda: self._group.allreduce([tensor], options), "all-reduce")

    @override
    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = source
        options.rootTensor = 0
        # A binomial tree: the source sends log2(N) copies, so the mean over workers is (N-1)/N.
        self._count(math.ceil(math.log2(self.size)) * tensor.nbytes if self.rank == source else 0)
        self._start(lambda: self._group.broadcast([tensor], options), "broadcast").wait()

    @override
    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        self._count((self.size - 1) * tensor.nbytes)
        self._start(lambda: self._group.allgather([parts], [tensor]), "all-gather").wait()
        return parts

    @override
    def close(self) -> None:
        self._group.shutdown()

    def _count(self, num_bytes: float) -> None:
        self.sent_bytes += int(num_bytes)

    def _start(self, begin: Callable[[], dist.Work], activity: str) -> Pending:
        try:
            return _GlooPending(begin(), activity, self)
        except RuntimeError as error:
            raise self.failure(activity, error) from error

    def failure(self, activity: str, error: RuntimeError) -> PeerError:
        """The error that a failed exchange surfaces as."""
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        return PeerError(
            f"{activity} with {self.size - 1} peers broke off (limit {self._deadline_s:g} s): "
            f"{first_line}",
            rank=self.rank,
        )


class _GlooPending:
    """An exchange that Gloo's threads carry out."""

    def __init__(self, work: dist.Work, activity: str, group: GlooCollective) -> None:
        self._work = work
        self._activity = activity
        self._group = group

    def wait(self) -> None:
        """Block until done; Gloo itself enforces the deadline."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._group.failure(self._activity, error) from error
