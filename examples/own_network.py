"""A network of your own: any function that returns an nn.Module.

Train it from this directory with `phalanx train own_network.yaml`.
"""

from torch import nn


def build(input_shape: tuple[int, ...], num_classes: int, width: int = 64) -> nn.Module:
    """Called in every worker; the shape is (height, width, channels), images come in as NCHW."""
    height, columns, channels = input_shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(height * columns * channels, width),
        nn.GELU(),
        nn.Linear(width, num_classes),
    )
