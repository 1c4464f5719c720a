"""DenseNet-BC (Huang et al. 2017) for small images.

Notation: three dense blocks of (depth - 4) / 6 layers; each layer squeezes all channels so far to
4k by a 1x1 convolution, adds k channels by a 3x3 one, and appends them. A transition between blocks
keeps `reduction` of the channels and halves the image. Convolutions have no bias, because a
normalisation follows each. The network starts with 2k filters and ends in a global average.

Batch normalisation has torch's momentum 0.1 and epsilon 1e-5. Depth 40, growth 12, reduction 0.5 on
28x28x1: 180,778 parameters with statistics, 175,690 trained.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phalanx.model.initial import initialise
from phalanx.model.shape import flatten_rows, image_shape
from phalanx.spec.model import DensenetSpec

NUM_BLOCKS = 3


class DenseLayer(nn.Module):
    """Append `growth` new channels to the input."""

    def __init__(self, num_in: int, *, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_in)
        self.conv1 = nn.Conv2d(num_in, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.dropout = dropout

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the input with the new channels behind it."""
        hidden: Tensor = self.conv1(F.relu(self.norm1(inputs), inplace=True))
        hidden = self._drop(hidden)
        hidden = self.conv2(F.relu(self.norm2(hidden), inplace=True))
        return torch.cat((inputs, self._drop(hidden)), dim=1)

    def _drop(self, hidden: Tensor) -> Tensor:
        return F.dropout(hidden, self.dropout, self.training) if self.dropout > 0 else hidden


class Transition(nn.Module):
    """Keep a share of the channels and halve the image."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(num_in)
        self.conv = nn.Conv2d(num_in, num_out, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return fewer channels and a quarter of the pixels."""
        hidden: Tensor = self.conv(F.relu(self.norm(inputs), inplace=True))
        return F.avg_pool2d(hidden, 2)


class DenseNet(nn.Module):
    """A convolution, dense blocks with transitions between them, and a dense head."""

    def __init__(
        self, *, channels: int, first: int, body: nn.Sequential, width: int, num_classes: int
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.body = body
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        hidden = F.relu(self.norm(self.body(self.conv(images))), inplace=True)
        logits: Tensor = self.head(flatten_rows(F.adaptive_avg_pool2d(hidden, 1)))
        return logits


def build_densenet(
    spec: DensenetSpec, *, input_shape: tuple[int, ...], num_classes: int
) -> nn.Module:
    """Build a DenseNet-BC for images of this shape."""
    _, _, channels = image_shape(input_shape, model="densenet", min_pixels=4)
    num_layers = (spec.depth - 4) // (2 * NUM_BLOCKS)
    width = first = 2 * spec.growth
    body: list[nn.Module] = []
    for block in range(NUM_BLOCKS):
        for _ in range(num_layers):
            body.append(DenseLayer(width, growth=spec.growth, dropout=spec.dropout))
            width += spec.growth
        if block < NUM_BLOCKS - 1:
            kept = max(1, int(width * spec.reduction))
            body.append(Transition(width, kept))
            width = kept
    model = DenseNet(
        channels=channels,
        first=first,
        body=nn.Sequential(*body),
        width=width,
        num_classes=num_classes,
    )
    initialise(model, convolutions="he-normal", dense="glorot-uniform")
    return model
