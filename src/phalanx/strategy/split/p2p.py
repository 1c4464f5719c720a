"""Send and receive tensors between workers of a split run: posted ahead, with deadlines.

Receives are posted a few messages before they are needed, so that data arrives while the worker
computes. Of the time that a worker is blocked, the transfer time at the link's measured speed
counts as communication, the rest as waiting for the sender's computation.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.comm.base import Collective, Pending
from phalanx.engine.part_profiler import Form

_AHEAD = 8
# With more sends outstanding, a worker waits for the oldest before it begins a new batch. Never
# in the middle of one: the receiver may first need another message from this worker.
_MOST_ON_THE_WAY = 64


@dataclass(frozen=True)
class TransferMessage:
    """One message: rows of a part's output, or of its gradient."""

    key: tuple[int, int, int]
    """Direction, transfer, micro-batch."""
    peer: int
    tag: int
    rows: int
    form: Form


class P2pTransfers:
    """Send and receive the messages of one worker, in fp32 or bf16 (`wire`)."""

    def __init__(self, collective: Collective, *, wire: str, latency_s: float, rate: float) -> None:
        self._collective = collective
        self._narrow = wire == "bf16"
        self._latency_s = latency_s
        self._rate = rate
        self._expected: deque[TransferMessage] = deque()
        self._posted: dict[tuple[int, int, int], tuple[TransferMessage, Tensor, Pending]] = {}
        self._sent: deque[tuple[Pending, Tensor]] = deque()
        self.blocked_s = 0.0
        self.wait_s = 0.0
        self.traffic: Counter[tuple[str, int]] = Counter()
        """Bytes sent, by kind and receiver."""
        self.messages: Counter[tuple[str, int]] = Counter()

    def begin(self, expected: Iterable[TransferMessage]) -> None:
        """Begin a new batch, given the messages to receive in the order they are needed."""
        self._expected = deque(expected)
        self.blocked_s = self.wait_s = 0.0
        begin = time.perf_counter()
        while len(self._sent) > _MOST_ON_THE_WAY:
            self._sent.popleft()[0].wait()
        self.blocked_s += time.perf_counter() - begin
        self._post()

    def send(self, message: TransferMessage, tensor: Tensor, kind: str) -> None:
        """Send rows; they must not change afterwards."""
        begin = time.perf_counter()
        packed = message.form.packed(tensor.detach())
        if self._narrow and packed.dtype == torch.float32:
            packed = packed.to(torch.bfloat16)
        pending = self._collective.start_send(packed, target=message.peer, tag=message.tag)
        # Gloo sends from this memory: keep it until the send is done.
        self._sent.append((pending, packed))
        self.count(kind, message.peer, packed.nbytes)
        self.blocked_s += time.perf_counter() - begin

    def count(self, kind: str, peer: int, num_bytes: int) -> None:
        """Count bytes sent, here or by a group of holders."""
        self.traffic[kind, peer] += num_bytes
        self.messages[kind, peer] += 1

    def receive(self, key: tuple[int, int, int]) -> Tensor:
        """Return the rows of one message; blocks until they have arrived."""
        message, memory, pending = self._posted.pop(key)
        begin = time.perf_counter()
        pending.wait()
        blocked_s = time.perf_counter() - begin
        # Post the next receive at once, so that it arrives during the computation.
        self._post()
        self.blocked_s += blocked_s
        self.wait_s += max(0.0, blocked_s - self._latency_s - memory.nbytes / self._rate)
        return message.form.unpacked(memory.to(message.form.dtype))

    def send_token(self, peer: int, tag: int) -> None:
        """Notify a worker without parts that a batch is done."""
        token = torch.zeros(1, dtype=torch.uint8)
        pending = self._collective.start_send(token, target=peer, tag=tag)
        self._sent.append((pending, token))

    def await_token(self, peer: int, tag: int) -> None:
        """Wait for that notice: an exchange's deadline then covers a batch, not an epoch."""
        begin = time.perf_counter()
        token = torch.zeros(1, dtype=torch.uint8)
        self._collective.start_receive(token, source=peer, tag=tag).wait()
        spent_s = time.perf_counter() - begin
        self.blocked_s += spent_s
        self.wait_s += spent_s

    def flush(self) -> None:
        """Wait until everything that was sent has left."""
        begin = time.perf_counter()
        while self._sent:
            self._sent.popleft()[0].wait()
        self.blocked_s += time.perf_counter() - begin

    def _post(self) -> None:
        while self._expected and len(self._posted) < _AHEAD:
            message = self._expected.popleft()
            narrow = self._narrow and message.form.dtype == torch.float32
            memory = message.form.memory(message.rows, torch.bfloat16 if narrow else None)
            pending = self._collective.start_receive(memory, source=message.peer, tag=message.tag)
            self._posted[message.key] = (message, memory, pending)
