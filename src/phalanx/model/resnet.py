"""Residual networks for small images, in the layout of the Keras CIFAR-10 example.

Notation: n blocks per stage, three stages, 16 filters at the start. Version 1 (He et al. 2015) has
two 3x3 convolutions per block: depth 6n+2. Version 2 (He et al. 2016) normalises and activates
before each convolution and uses 1x1, 3x3, 1x1 bottlenecks: depth 9n+2. Shortcuts that change shape
are 1x1 convolutions; convolutions have biases; the head is a global average and one dense layer.

Counted as Keras counts, with running statistics: version 1, n=8: 763,882 (760,266 trained);
version 2, n=6: 1,673,738 (1,663,338 trained), on 32x32x3 with 10 classes.

Two departures from the example, neither of which changes a count: stride-2 convolutions pad one
pixel on every side (Keras pads right and bottom only), and batch normalisation has torch's
momentum 0.1 and epsilon 1e-5 (Keras: 0.01 in torch's reading, 1e-3).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from phalanx.model.initial import initialise
from phalanx.model.shape import flatten_rows, image_shape
from phalanx.spec.model import ResnetSpec

FIRST_FILTERS = 16
NUM_STAGES = 3


class BasicBlock(nn.Module):
    """Version 1: two 3x3 convolutions beside a shortcut, ReLU after the sum."""

    def __init__(self, num_in: int, num_out: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride=stride, padding=1)
        self.norm1 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(num_out)
        self.shortcut = _projection(num_in, num_out, stride) if num_in != num_out else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's output, activated."""
        hidden = F.relu(self.norm1(self.conv1(inputs)), inplace=True)
        residual: Tensor = self.norm2(self.conv2(hidden))
        residual += inputs if self.shortcut is None else self.shortcut(inputs)
        return F.relu(residual, inplace=True)


class BottleneckBlock(nn.Module):
    """Version 2: normalise, activate, convolve, three times; nothing after the sum.

    The first block of the network takes input that is normalised and active already (`bare`).
    """

    def __init__(self, num_in: int, num_out: int, *, inner: int, stride: int, bare: bool) -> None:
        super().__init__()
        self.norm1 = None if bare else nn.BatchNorm2d(num_in)
        self.conv1 = nn.Conv2d(num_in, inner, 1, stride=stride)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1)
        self.norm3 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, num_out, 1)
        self.shortcut = _projection(num_in, num_out, stride) if num_in != num_out else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's output, not yet activated."""
        active = inputs if self.norm1 is None else F.relu(self.norm1(inputs), inplace=True)
        hidden = F.relu(self.norm2(self.conv1(active)), inplace=True)
        hidden = F.relu(self.norm3(self.conv2(hidden)), inplace=True)
        residual: Tensor = self.conv3(hidden)
        residual += inputs if self.shortcut is None else self.shortcut(inputs)
        return residual


class ResNet(nn.Module):
    """A stem, a row of blocks, an optional last normalisation, and a dense head."""

    def __init__(
        self,
        *,
        channels: int,
        blocks: nn.Sequential,
        last_norm: nn.BatchNorm2d | None,
        width: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, FIRST_FILTERS, 3, padding=1)
        self.norm = nn.BatchNorm2d(FIRST_FILTERS)
        self.blocks = blocks
        self.last_norm = last_norm
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        hidden = F.relu(self.norm(self.conv(images)), inplace=True)
        hidden = self.blocks(hidden)
        if self.last_norm is not None:
            hidden = F.relu(self.last_norm(hidden), inplace=True)
        logits: Tensor = self.head(flatten_rows(F.adaptive_avg_pool2d(hidden, 1)))
        return logits


def build_resnet(spec: ResnetSpec, *, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build a ResNet with He-normal kernels, the dense head included, as the example has it."""
    _, _, channels = image_shape(input_shape, model="resnet", min_pixels=4)
    blocks, width = _basic_blocks(spec.n) if spec.version == 1 else _bottleneck_blocks(spec.n)
    model = ResNet(
        channels=channels,
        blocks=nn.Sequential(*blocks),
        last_norm=nn.BatchNorm2d(width) if spec.version == 2 else None,
        width=width,
        num_classes=num_classes,
    )
    initialise(model, convolutions="he-normal", dense="he-normal")
    return model


def _basic_blocks(n: int) -> tuple[list[nn.Module], int]:
    blocks: list[nn.Module] = []
    width = FIRST_FILTERS
    for stage in range(NUM_STAGES):
        filters = FIRST_FILTERS * 2**stage
        for block in range(n):
            stride = 2 if stage > 0 and block == 0 else 1
            blocks.append(BasicBlock(width, filters, stride=stride))
            width = filters
    return blocks, width


def _bottleneck_blocks(n: int) -> tuple[list[nn.Module], int]:
    blocks: list[nn.Module] = []
    width = inner = FIRST_FILTERS
    for stage in range(NUM_STAGES):
        # The first stage widens fourfold, the others twofold: 64, 128, 256 channels.
        filters = inner * (4 if stage == 0 else 2)
        for block in range(n):
            first = block == 0
            blocks.append(
                BottleneckBlock(
                    width,
                    filters,
                    inner=inner,
                    stride=2 if first and stage > 0 else 1,
                    bare=first and stage == 0,
                )
            )
            width = filters
        inner = filters
    return blocks, width


def _projection(num_in: int, num_out: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(num_in, num_out, 1, stride=stride)
