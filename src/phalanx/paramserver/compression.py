"""Compress gradients to bf16 (half) or int8 (a quarter), with error feedback on the worker.

The rounding error of a gradient is added to the next one, so that small steady gradients are not
lost. The server adds up without unpacking where torch can mix types. Parameters in replies are bf16
at most: rounding them to 8 bits would move the model itself.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from phalanx.consistency.shards import Segment, ShardLayout
from phalanx.wire.bulk import Kind

Compression = Literal["none", "bf16", "int8"]
# One scale per block follows layers of different magnitude; 4 bytes in 1028 are cheap.
BLOCK = 1024

KINDS: dict[Compression, Kind] = {"none": Kind.F32, "bf16": Kind.BF16, "int8": Kind.INT8}


def payload_bytes(kind: Kind, size: int) -> int:
    """Return the length of the payload that holds `size` numbers."""
    match kind:
        case Kind.F32:
            return 4 * size
        case Kind.BF16:
            return 2 * size
        case Kind.INT8:
            return (4 + BLOCK) * _blocks(size)
        case Kind.NOTHING:
            return 0


class Encoder:
    """Encode gradients on the worker; keeps the rounding error, one entry per parameter.

    Args:
        compression: Format on the way to the server.
        layout: Segments of the flat gradient.
    """

    def __init__(self, compression: Compression, layout: ShardLayout) -> None:
        self.kind = KINDS[compression]
        self._residual = torch.zeros(layout.num_parameters) if self.kind != Kind.F32 else None
        self._staging: dict[int, Tensor] = {}

    def encode(self, segment: Segment, gradient: Tensor) -> Tensor:
        """Return the payload for a segment, valid until the same segment is encoded again.

        Without compression it is the gradient itself, not a copy.

        Args:
            segment: Position in the flat gradient.
            gradient: Of this segment alone; not changed.
        """
        if self._residual is None:
            return gradient
        wanted = self._residual[segment.start : segment.stop].add_(gradient)
        payload = self._staging.get(segment.index)
        if payload is None:
            size = payload_bytes(self.kind, segment.size)
            payload = self._staging[segment.index] = torch.zeros(size, dtype=torch.uint8)
        if self.kind == Kind.BF16:
            rounded = payload.view(torch.bfloat16).copy_(wanted)
            wanted.sub_(rounded)
        else:
            _quantise(wanted, payload)
        return payload

    def state(self) -> Tensor | None:
        """Return the residual itself, not a copy; None without compression."""
        return self._residual


class Received:
    """Values in a received frame."""

    def __init__(self, kind: Kind, payload: memoryview | Tensor, size: int) -> None:
        if isinstance(payload, memoryview):
            payload = torch.frombuffer(payload, dtype=torch.uint8)
        if payload.nbytes != payload_bytes(kind, size):
            raise ValueError(f"{payload.nbytes} bytes do not hold {size} numbers as {kind.name}")
        self.kind = kind
        self.size = size
        self._payload = payload

    def own(self) -> Tensor | None:
        """Return the values in place, writable; None: they have to be decoded."""
        if self.kind != Kind.F32:
            return None
        if self._payload.dtype == torch.float32:
            return self._payload
        # Small frames lie anywhere in a shared receive buffer, but float views must be aligned.
        aligned = self._payload if self._payload.data_ptr() % 4 == 0 else self._payload.clone()
        return aligned.view(torch.float32)

    def write_to(self, out: Tensor) -> None:
        """Overwrite `out` with the values."""
        out.copy_(self._unpacked())

    def add_to(self, out: Tensor) -> None:
        """Add the values to `out`."""
        out.add_(self._unpacked())

    def _unpacked(self) -> Tensor:
        if self.kind == Kind.F32:
            own = self.own()
            assert own is not None
            return own
        if self.kind == Kind.BF16:
            even = self._payload if self._payload.data_ptr() % 2 == 0 else self._payload.clone()
            return even.view(torch.bfloat16)
        num_blocks = _blocks(self.size)
        scales = self._payload[: 4 * num_blocks].clone().view(torch.float32)
        steps = self._payload[4 * num_blocks :].view(torch.int8).view(num_blocks, BLOCK)
        return (steps * scales[:, None]).flatten()[: self.size]


def _quantise(wanted: Tensor, payload: Tensor) -> None:
    """Round to 127 steps per block into `payload`; `wanted` keeps the rounding error."""
    size = wanted.numel()
    num_blocks = _blocks(size)
    padded = torch.zeros(num_blocks, BLOCK)
    padded.view(-1)[:size].copy_(wanted)
    scales = torch.linalg.vector_norm(padded, ord=torch.inf, dim=1).div_(127)
    steps = padded.div_(scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round_()
    payload[: 4 * num_blocks].view(torch.float32).copy_(scales)
    payload[4 * num_blocks :].view(torch.int8).view(num_blocks, BLOCK).copy_(steps)
    wanted.sub_(steps.mul_(scales[:, None]).view(-1)[:size])


def _blocks(size: int) -> int:
    return -(-size // BLOCK)
