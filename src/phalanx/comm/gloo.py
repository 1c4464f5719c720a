"""Implement collectives on Gloo, the CPU back-end of torch.distributed.

The process group is made directly rather than through torch's global default group: several groups
can then exist in one process, and a test can run its ranks as threads. torch ships no complete type
stubs for these classes, hence the ignores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo
from typing_extensions import override

from phalanx.comm.base import Collective, Pending, Reduction
from phalanx.errors import PeerError

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
# Gloo runs each collective in one thread; with two, one sends while the other reduces.
_NUM_THREADS = 2
# Beyond the tags of a split network's messages.
_ALL_TO_ALL = 1 << 30


class GlooCollective(Collective):
    """A group over TCP connections between all pairs.

    Args:
        store: Rendezvous for the members' addresses.
        rank: This worker's index.
        size: Number of workers.
        host: The local address that this worker's connections use.
        deadline_s: Time limit of one exchange.
    """

    def __init__(
        self,
        store: dist.Store,  # type: ignore[name-defined]
        *,
        rank: int,
        size: int,
        host: str,
        deadline_s: float,
    ) -> None:
        self.rank = rank
        self.size = size
        self.sent_bytes = 0
        self._deadline_s = deadline_s
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=deadline_s)
        options._threads = _NUM_THREADS
        try:
            self._group = ProcessGroupGloo(store, rank, size, options)
        except RuntimeError as error:
            raise PeerError(f"the group of {size} workers did not form: {error}") from error

    @property
    def process_group(self) -> ProcessGroupGloo:
        """The group as torch knows it."""
        return self._group

    @override
    def start_all_reduce(self, tensor: torch.Tensor, reduction: Reduction = "sum") -> Pending:
        options = dist.AllreduceOptions()
        options.reduceOp = _OPERATIONS[reduction]  # type: ignore[assignment]
        # A ring sends each of its N chunks N-1 times while reducing and N-1 times while gathering.
        self._count(2 * (self.size - 1) / self.size * tensor.nbytes)
        return self._start(
            lambda: self._group.allreduce([tensor], options),  # type: ignore[attr-defined]
            "all-reduce",
        )

    @override
    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = source
        options.rootTensor = 0
        # A binomial tree; what inner nodes forward is attributed to the source.
        copies = math.ceil(math.log2(self.size)) if self.rank == source else 0
        self._count(copies * tensor.nbytes)
        self._start(
            lambda: self._group.broadcast([tensor], options),  # type: ignore[attr-defined]
            "broadcast",
        ).wait()

    @override
    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        self._count((self.size - 1) * tensor.nbytes)
        self._start(
            lambda: self._group.allgather([parts], [tensor]),  # type: ignore[attr-defined]
            "all-gather",
        ).wait()
        return parts

    @override
    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(tensor)
        received[self.rank].copy_(tensor[self.rank])
        # One partner each way at a time: a switch drops what several senders push to one port.
        for distance in range(1, self.size):
            target, source = (self.rank + distance) % self.size, (self.rank - distance) % self.size
            sent = self.start_send(tensor[target], target=target, tag=_ALL_TO_ALL)
            self.start_receive(received[source], source=source, tag=_ALL_TO_ALL).wait()
            sent.wait()
        return received

    @override
    def start_send(self, tensor: torch.Tensor, *, target: int, tag: int) -> Pending:
        self._count(tensor.nbytes)
        return self._start(
            lambda: self._group.send([tensor], target, tag),  # type: ignore[attr-defined]
            f"sending to worker {target}",
        )

    @override
    def start_receive(self, tensor: torch.Tensor, *, source: int, tag: int) -> Pending:
        return self._start(
            lambda: self._group.recv([tensor], source, tag),  # type: ignore[attr-defined]
            f"receiving from worker {source}",
        )

    @override
    def close(self) -> None:
        self._group.shutdown()

    def failure(self, activity: str, error: RuntimeError) -> PeerError:
        """Return the error to raise for a failed exchange."""
        reason = str(error).strip() or "no reason given"
        with_whom = "" if "worker" in activity else f" with {self.size - 1} peers"
        return PeerError(
            f"{activity}{with_whom} broke off (limit {self._deadline_s:g} s by "
            f"deadlines.exchange_s): {reason.splitlines()[0]}",
            rank=self.rank,
        )

    def _count(self, num_bytes: float) -> None:
        self.sent_bytes += int(num_bytes)

    def _start(self, begin: Callable[[], dist.Work], activity: str) -> Pending:
        try:
            return _GlooPending(begin(), activity, self)
        except RuntimeError as error:
            raise self.failure(activity, error) from error


class _GlooPending:
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

    def is_done(self) -> bool:
        """Return whether Gloo's thread has finished, with or without success."""
        return self._work.is_completed()
