"""Multi-layer perceptron: dense layers with ReLU, on images or on plain features.

[300, 100] on 28x28 is the first network of the parameter-server study (266,610 parameters), [128]
its second and third (101,770).
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from phalanx.model.initial import initialise
from phalanx.model.shape import flatten_rows
from phalanx.spec.model import MlpSpec


class Mlp(nn.Module):
    """Flatten, then dense layers; the last one gives logits."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        logits: Tensor = self.layers(flatten_rows(inputs))
        return logits


def build_mlp(spec: MlpSpec, *, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build an MLP with Glorot-uniform kernels and zero biases, as Keras' `Dense` starts."""
    layers: list[nn.Module] = []
    width = math.prod(input_shape)
    for hidden in spec.hidden:
        layers += [nn.Linear(width, hidden), nn.ReLU(inplace=True)]
        if spec.dropout > 0:
            layers.append(nn.Dropout(spec.dropout))
        width = hidden
    layers.append(nn.Linear(width, num_classes))
    model = Mlp(nn.Sequential(*layers))
    initialise(model, convolutions="glorot-uniform", dense="glorot-uniform")
    return model
