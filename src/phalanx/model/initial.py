"""Initialise weights as Keras does for the published networks.

Kernels by one of two laws, biases zero, normalisation scale one and shift zero. Each builder calls
`initialise` once, inside the seeded random state of `build_model`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

Law = Literal["glorot-uniform", "he-normal"]

# A normal distribution cut at two deviations has 0.8796 of the deviation of the uncut one; Keras
# divides by it so that the drawn weights have the deviation that He's law asks for.
_CUT_DEVIATION = 0.87962566103423978


def initialise(module: nn.Module, *, convolutions: Law, dense: Law) -> None:
    """Draw every kernel of `module` by the law of its kind, in the order of registration."""
    for layer in module.modules():
        if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
            _draw(layer.weight, convolutions)
        elif isinstance(layer, nn.Linear):
            _draw(layer.weight, dense)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _draw(weight: Tensor, law: Law) -> None:
    if law == "glorot-uniform":
        nn.init.xavier_uniform_(weight)
        return
    fan_in = weight[0].numel()
    deviation = math.sqrt(2.0 / fan_in) / _CUT_DEVIATION
    with torch.no_grad():
        nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
