"""Decode images (PNG, JPEG and other formats of Pillow) to arrays; used by the Parquet source."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phalanx.errors import DataError

_GREY_MODES = ("1", "L")
_COLOUR_MODES = ("RGB", "RGBA", "P", "CMYK", "YCbCr", "LA")


def decode_images(
    encoded: Sequence[bytes | None], *, origin: str, mode: str | None = None
) -> tuple[npt.NDArray[np.uint8], str]:
    """Decode images of one size to uint8 (N, H, W, C).

    Args:
        encoded: The bytes of each image.
        origin: The file, for messages.
        mode: "L" or "RGB"; None takes that of the first image.

    Returns:
        The images, and the mode to decode the next ones with.
    """
    from PIL import Image, UnidentifiedImageError

    images: list[npt.NDArray[np.uint8]] = []
    for row, data in enumerate(encoded):
        if data is None:
            raise DataError(f"{origin}: row {row} holds no image", path=origin, row=row)
        try:
            with Image.open(io.BytesIO(data)) as image:
                mode = mode or _mode_for(image.mode, origin, row)
                pixels = np.asarray(image.convert(mode))
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            # Pillow reports damage to PNG files as SyntaxError.
            raise DataError(
                f"{origin}: the image in row {row} is corrupt ({_brief(error)}); "
                "get the file again from where it came",
                path=origin,
                row=row,
            ) from error
        if images and pixels.shape != images[0].shape:
            raise DataError(
                f"{origin}: the image in row {row} has shape {pixels.shape} and the first one "
                f"{images[0].shape}; bring all images to one size",
                path=origin,
                row=row,
            )
        images.append(pixels)
    stacked = np.stack(images) if images else np.empty((0, 0, 0), dtype=np.uint8)
    return (stacked[..., None] if stacked.ndim == 3 else stacked), mode or "RGB"


def _mode_for(mode: str, origin: str, row: int) -> str:
    if mode in _GREY_MODES:
        return "L"
    if mode in _COLOUR_MODES:
        return "RGB"
    raise DataError(
        f"{origin}: the image in row {row} has mode {mode}; only 8-bit grey and colour are read",
        path=origin,
        row=row,
    )


def _brief(error: Exception) -> str:
    return str(error).split(" <")[0]  # Pillow names the in-memory object, which says nothing
