"""The network of job.yaml: any function that returns an nn.Module."""

from torch import nn


def build(input_shape: tuple[int, ...], num_classes: int, width: int) -> nn.Module:
    """Build the network.

    `input_shape` and `num_classes` come from the data, if the function takes them; everything else
    comes from `args`. Images arrive as (samples, channels, height, width), and the network returns
    one number per class (no softmax).
    """
    height, pixels, channels = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * height * pixels, num_classes),
    )
