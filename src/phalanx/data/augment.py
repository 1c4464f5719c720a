"""Augment training samples, a whole batch at once: flip, pad-and-crop, functions of other packages.

The flip and crop of a sample depend on seed, epoch and the sample alone, and not on the number of
workers, the batch or the shard policy: its random bits are a hash of the three. No Python loop runs
over samples. Functions of other packages get the batch and a generator, whose draws depend on
seed, epoch and the samples of the batch. Called as a stage of `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array
from phalanx.data.order import Indices
from phalanx.errors import DataError
from phalanx.spec.data import AUGMENTATIONS, Augmentation
from phalanx.spec.registry import load

PAD = 4  # pixels on each side, as is customary for CIFAR-10
NUM_OFFSETS = 2 * PAD + 1

# SplitMix64 (Steele, Lea and Flood 2014): a counter times the golden ratio, then a mixer.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def sample_bits(indices: Indices, start: np.uint64) -> npt.NDArray[np.uint64]:
    """Return 64 random bits per sample: a function of `start` and the sample's index alone."""
    bits: npt.NDArray[np.uint64] = (indices.astype(np.uint64) + np.uint64(1)) * _GOLDEN + start
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    bits ^= bits >> np.uint64(31)
    return bits


@dataclass(frozen=True)
class Changes:
    """Random changes of some samples, independent of what applies them."""

    flipped: npt.NDArray[np.bool_]
    rows: npt.NDArray[np.intp]
    """Offset of the window in the padded image, 0 to 8, from the top."""
    columns: npt.NDArray[np.intp]
    """The same from the left."""


def start_of(key: Sequence[int]) -> np.uint64:
    """Return the start of the random bits of a seed, an epoch and maybe a worker."""
    return np.uint64(np.random.SeedSequence(list(key)).generate_state(1, np.uint64)[0])


def draw_changes(indices: Indices, start: np.uint64) -> Changes:
    """Draw the changes of these samples in the epoch that starts there."""
    bits = sample_bits(indices, start)
    # Twice 31 bits times 9, shifted down: an offset of 0..8 each, uneven by less than 1e-8.
    shift = np.uint64(31)
    rows = ((bits >> np.uint64(1)) & np.uint64(2**31 - 1)) * np.uint64(NUM_OFFSETS) >> shift
    columns = (bits >> np.uint64(33)) * np.uint64(NUM_OFFSETS) >> shift
    return Changes(
        flipped=(bits & np.uint64(1)).astype(np.bool_),
        rows=rows.astype(np.intp),
        columns=columns.astype(np.intp),
    )


class Augmenter:
    """Augment the batches of one epoch, in a buffer that it owns.

    `key` is seed and epoch, and under the shard policy `off` the worker too; `like` gives shape and
    type of the samples.
    """

    def __init__(
        self, changes: Sequence[Augmentation], *, key: Sequence[int], max_rows: int, like: Array
    ) -> None:
        self._start = start_of(key)
        paths = [AUGMENTATIONS.find(name).function for name in changes]
        self._outside = [
            cast("Callable[[Array, np.random.Generator], Array]", load(path))
            for path in paths
            if path is not None
        ]
        self._flips = "flip" in changes
        self._cropper = Cropper(max_rows, like) if "pad-crop" in changes else None
        self.images: Array
        """Buffer that the caller fills with a batch before the call."""
        if self._cropper is not None:
            self.images = self._cropper.images
        else:
            self.images = np.empty((max_rows, *like.shape[1:]), dtype=like.dtype)

    def __call__(self, indices: Indices) -> Array:
        """Change the first `len(indices)` images, which are these samples; the result is a copy."""
        drawn = draw_changes(indices, self._start)
        count = len(indices)
        if self._flips:
            _flip(self.images[:count], np.flatnonzero(drawn.flipped))
        if self._cropper is None:
            images = self.images[:count].copy()
        else:
            images = self._cropper(drawn.rows, drawn.columns)
        return self._changed_by_others(images, indices) if self._outside else images

    def _changed_by_others(self, images: Array, indices: Indices) -> Array:
        """Apply functions of other packages; their draws depend on seed, epoch and the samples."""
        drawn = int(sample_bits(indices, self._start).sum(dtype=np.uint64))
        rng = np.random.default_rng([int(self._start), drawn])
        for change in self._outside:
            changed = change(images, rng)
            if changed.shape != images.shape or changed.dtype != images.dtype:
                raise DataError(
                    f"data.augment: {change.__name__} made {changed.dtype} {changed.shape} of "
                    f"{images.dtype} {images.shape}; it must keep both"
                )
            images = changed
        return images


class Cropper:
    """Pad images with zeros and crop a window of the old size, without a padded copy.

    A window that is moved by whole rows and pixels is, in memory, the image moved by some bytes:
    one straight copy. What it takes from beyond the edges (the pixels of the next row or image) is
    then masked out. This is twice as fast as cutting windows out of padded images.
    """

    def __init__(self, max_rows: int, like: Array) -> None:
        _, height, width, channels = like.shape
        self._pixel_bytes = channels * like.itemsize
        self._row_bytes = width * self._pixel_bytes
        self._image_bytes = height * self._row_bytes
        # Room for the windows that begin before the first image or end after the last one.
        guard = PAD * (self._row_bytes + self._pixel_bytes)
        room = np.zeros(guard + max_rows * self._image_bytes + guard, dtype=np.uint8)
        self.images: Array = np.ndarray(
            (max_rows, height, width, channels), dtype=like.dtype, buffer=room, offset=guard
        )
        """Buffer that the caller fills with a batch before the call."""
        # Element i is the whole window that begins at byte i.
        self._windows: Array = np.ndarray(
            (room.size - self._image_bytes + 1,),
            dtype=np.dtype((np.void, self._image_bytes)),
            buffer=room,
            strides=(1,),
        )
        self._masks = _masks(height, width, self._pixel_bytes)
        self._chosen_masks = np.empty((max_rows, self._image_bytes), dtype=np.uint8)

    def __call__(self, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]) -> Array:
        """Return the windows at these offsets (0 to 8) of the first images."""
        count = len(rows)
        starts = np.arange(count) * self._image_bytes
        starts += rows * self._row_bytes + columns * self._pixel_bytes
        cropped = self._windows[starts].view(np.uint8).reshape(count, self._image_bytes)
        masks = self._chosen_masks[:count]
        np.take(self._masks, rows * NUM_OFFSETS + columns, axis=0, out=masks, mode="clip")
        np.bitwise_and(cropped, masks, out=cropped)
        images: Array = cropped.view(self.images.dtype)
        return images.reshape(count, *self.images.shape[1:])


def _masks(height: int, width: int, pixel_bytes: int) -> npt.NDArray[np.uint8]:
    """Return for each pair of offsets 255 for the bytes of a window inside the image, else 0."""
    moves = np.arange(NUM_OFFSETS)[:, None] - PAD
    row_inside = (moves + np.arange(height) >= 0) & (moves + np.arange(height) < height)
    column_inside = (moves + np.arange(width) >= 0) & (moves + np.arange(width) < width)
    inside = row_inside[:, None, :, None] & column_inside[None, :, None, :]
    masks = np.repeat(inside.reshape(NUM_OFFSETS**2, height * width), pixel_bytes, axis=1)
    return masks.astype(np.uint8) * np.uint8(255)


def _flip(images: Array, chosen: npt.NDArray[np.intp]) -> None:
    """Mirror the chosen images in place."""
    mirrored = images[chosen][:, :, ::-1]
    flipped = np.empty(mirrored.shape, dtype=images.dtype)
    # Channel by channel: one long strided copy each, several times faster than pixel by pixel.
    for channel in range(images.shape[-1]):
        flipped[..., channel] = mirrored[..., channel]
    images[chosen] = flipped
