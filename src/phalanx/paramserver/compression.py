"""Compress gradients to bf16 (half) or int8 (a quarter), with error feedback on the worker.

The rounding error of a gradient is added to the next one, so that small steady gradients are not
lost. The server adds up without unpacking where torch can mix types. Parameters in replies are bf16
at most: rounding them to 8 bits would move the model itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.comm.quantise import dequantise, quantise, quantised_bytes
from phalanx.consistency.shards import Segment, ShardLayout
from phalanx.spec.compression import INT8_BLOCK
from phalanx.wire.bulk import Kind

KINDS: dict[str, Kind] = {"none": Kind.F32, "bf16": Kind.BF16, "int8": Kind.INT8}
"""Formats of frames, by the name of the compression."""
_BITS = 8


def payload_bytes(kind: Kind, size: int) -> int:
    """Return the length of the payload that holds `size` numbers."""
    match kind:
        case Kind.F32:
            return 4 * size
        case Kind.BF16:
            return 2 * size
        case Kind.INT8:
            return quantised_bytes(_blocks(size), INT8_BLOCK, _BITS)
        case Kind.NOTHING:
            return 0


class Encoder:
    """Encode gradients on the worker; keeps the rounding error, one entry per parameter.

    Args:
        compression: Name of the format on the way to the server.
        layout: Segments of the flat gradient.
    """

    def __init__(self, compression: str, layout: ShardLayout) -> None:
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
            _round(wanted, payload)
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
        return dequantise(self._payload, INT8_BLOCK, _BITS).flatten()[: self.size]


def _round(wanted: Tensor, payload: Tensor) -> None:
    """Round to 127 steps per block into `payload`; `wanted` keeps the rounding error."""
    size = wanted.numel()
    padded = torch.zeros(_blocks(size), INT8_BLOCK)
    flat = padded.view(-1)[:size]
    flat.copy_(wanted)
    quantise(padded, payload, _BITS)
    wanted.copy_(flat)


def _blocks(size: int) -> int:
    return -(-size // INT8_BLOCK)
