"""Check the input shape of a network; one that does not fit is a SpecError.

Called by each network's builder before any layer is made. Twins in other frameworks use it too, so
torch is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.errors import SpecError

if TYPE_CHECKING:
    from torch import Tensor


def image_shape(
    input_shape: tuple[int, ...], *, model: str, min_pixels: int
) -> tuple[int, int, int]:
    """Return the input as (height, width, channels); SpecError if `model` cannot read it."""
    if len(input_shape) != 3:
        raise SpecError(
            f"model '{model}' reads images of shape (height, width, channels), but the data has "
            f"samples of shape {input_shape}; choose 'mlp' or image data",
            model=model,
        )
    height, width, channels = input_shape
    if min(height, width) < min_pixels:
        raise SpecError(
            f"model '{model}' needs images of at least {min_pixels}x{min_pixels} pixels, but the "
            f"data has {height}x{width}; choose 'mlp' or larger images",
            model=model,
        )
    return height, width, channels


def flatten_rows(inputs: Tensor) -> Tensor:
    """Flatten to one row per sample, pixels in the order height, width, channel.

    This is the order of Keras, and costs nothing for images that are channels-last in memory.
    """
    if inputs.ndim == 4:
        inputs = inputs.permute(0, 2, 3, 1)
    return inputs.flatten(start_dim=1)
