"""Write tensors in 8 or 4 bits per entry, with one scale per block of entries.

Notation: x entries of a block, L = 2^(bits-1) - 1 steps to each side, s = max |x| / L. Sent are s
(fp32) and round(x / s). A value read back is one product, rounded the same on every processor. A
value that is not finite makes its whole block so, instead of vanishing.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SCALE_BYTES = 4
_TINY = torch.finfo(torch.float32).tiny


def quantised_bytes(num_blocks: int, block: int, bits: int) -> int:
    """Return the length of the payload that holds so many blocks: all scales, then all steps."""
    return num_blocks * (_SCALE_BYTES + block * bits // 8)


def quantise(values: Tensor, payload: Tensor, bits: int) -> None:
    """Round values into `payload`; `values` keep the rounding error.

    Args:
        values: Blocks as rows, overwritten.
        payload: Bytes, as many as `quantised_bytes` says.
        bits: 8, or 4 for blocks of even length.
    """
    num_blocks, block = values.shape
    scales = torch.linalg.vector_norm(values, ord=torch.inf, dim=1).div_((1 << (bits - 1)) - 1)
    steps = values.div(scales.clamp_min(_TINY)[:, None]).round_()
    split = _SCALE_BYTES * num_blocks
    payload[:split].view(torch.float32).copy_(scales)
    whole = steps.to(torch.int8)
    if bits == 4:
        low, high = (whole.view(torch.uint8) & 15).view(num_blocks, block // 2, 2).unbind(2)
        payload[split:].view(num_blocks, block // 2).copy_(low | (high << 4))
    else:
        payload[split:].view(torch.int8).view(num_blocks, block).copy_(whole)
    values.sub_(steps.mul_(scales[:, None]))


def dequantise(payload: Tensor, block: int, bits: int) -> Tensor:
    """Return the values of a payload, with blocks as rows."""
    num_blocks = payload.numel() // quantised_bytes(1, block, bits)
    split = _SCALE_BYTES * num_blocks
    # A part of a received buffer need not be aligned as floats must be.
    scales = payload[:split].clone().view(torch.float32)
    steps = payload[split:].view(torch.int8)
    if bits == 4:
        # Shifted left and back, the sign of a nibble becomes that of a byte.
        steps = torch.stack(((steps << 4) >> 4, steps >> 4), dim=1)
    return steps.view(num_blocks, block) * scales[:, None]
