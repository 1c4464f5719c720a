"""Halve gradient traffic by bf16 with error feedback.

Notation: g gradient, e residual, q what is sent. p = g + e, q = bf16(p), e' = p - q. Over many
steps the sum of what was sent equals the sum of the gradients up to one residual, so no gradient
is lost for good.
"""

from __future__ import annotations

import torch


class Bf16Compressor:
    """Compress slices of one flat gradient buffer, each with its own part of the residual.

    Args:
        gradients: The flat fp32 buffer whose slices will be sent.
    """

    def __init__(self, gradients: torch.Tensor) -> None:
        self._gradients = gradients
        self.residual = torch.zeros_like(gradients)
        self._sent = torch.empty_like(gradients, dtype=torch.bfloat16)

    def compress(self, begin: int, end: int) -> torch.Tensor:
        """Return the slice in bf16, ready to be summed over workers in place."""
        residual = self.residual[begin:end]
        sent = self._sent[begin:end]
        residual.add_(self._gradients[begin:end])
        sent.copy_(residual)
        residual.sub_(sent)
        return sent

    def decompress(self, begin: int, end: int) -> None:
        """Copy the summed slice back into the fp32 buffer."""
        self._gradients[begin:end].copy_(self._sent[begin:end])
