"""Random changes to training images, on a whole batch at once: flip, and pad-and-crop.

What happens to a sample depends on seed, epoch and the sample alone, and not on the number of
workers, the batch or the shard policy: its random bits are a hash of the three. No Python loop runs
over samples. Called as a stage of `pipeline`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from phalanx.data.base import Array
from phalanx.data.order import Indices
from phalanx.spec.data import Augmentation

PAD = 4  # pixels on each side, as is customary for CIFAR-10
_OFFSETS = 2 * PAD + 1

# SplitMix64 (Steele, Lea and Flood 2014): a counter times the golden ratio, then a mixer.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def sample_bits(indices: Indices, start: np.uint64) -> npt.NDArray[np.uint64]:
    """64 random bits for each sample: a function of `start` and the sample's index alone."""
    bits: npt.NDArray[np.uint64] = (indices.astype(np.uint64) + np.uint64(1)) * _GOLDEN + start
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    bits ^= bits >> np.uint64(31)
    return bits


class Augmenter:
    """Changes the batches of one epoch; keeps the work space for the largest one.

    Args:
        changes: What to do, in any order.
        key: Seed and epoch, and under the shard policy `off` the worker too.
        max_rows: The largest batch.
        like: Any array of samples, for its shape and type.
    """

    def __init__(
        self, changes: Sequence[Augmentation], *, key: Sequence[int], max_rows: int, like: Array
    ) -> None:
        self._start = np.uint64(np.random.SeedSequence(list(key)).generate_state(1, np.uint64)[0])
        self._flips = "flip" in changes
        self._padded: Array | None = None
        if "pad-crop" in changes:
            height, width, channels = like.shape[1:]
            shape = (max_rows, height + 2 * PAD, width + 2 * PAD, channels)
            self._padded = np.zeros(shape, dtype=like.dtype)

    def __call__(self, images: Array, indices: Indices) -> Array:
        """Change the images of these samples; may write to `images` and may return a new array."""
        if len(images) == 0:
            return images
        bits = sample_bits(indices, self._start)
        if self._flips:
            _flip(images, np.flatnonzero(bits & np.uint64(1)))
        if self._padded is None:
            return images
        # Twice 31 bits times 9, shifted down: an offset of 0..8 each, uneven by less than 1e-8.
        rows = ((bits >> np.uint64(1)) & np.uint64(2**31 - 1)) * np.uint64(_OFFSETS)
        columns = (bits >> np.uint64(33)) * np.uint64(_OFFSETS)
        shift = np.uint64(31)
        return self._crop(
            images, (rows >> shift).astype(np.intp), (columns >> shift).astype(np.intp)
        )

    def _crop(
        self, images: Array, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]
    ) -> Array:
        """Put the images amid zeros and cut a window of the old size out of each at its offset."""
        assert self._padded is not None
        count, height, width, _ = images.shape
        padded = self._padded[:count]
        padded[:, PAD : PAD + height, PAD : PAD + width] = images
        by_image, by_row, by_pixel, by_channel = padded.strides
        # A view with every window of every image; indexing copies just the ones wanted.
        windows = as_strided(
            padded,
            shape=(count, _OFFSETS, _OFFSETS, *images.shape[1:]),
            strides=(by_image, by_row, by_pixel, by_row, by_pixel, by_channel),
            writeable=False,
        )
        cropped: Array = windows[np.arange(count), rows, columns]
        return cropped


def _flip(images: Array, chosen: npt.NDArray[np.intp]) -> None:
    """Mirror the chosen images in place."""
    mirrored = images[chosen][:, :, ::-1]
    flipped = np.empty(mirrored.shape, dtype=images.dtype)
    # Channel by channel: one long strided copy each, several times faster than pixel by pixel.
    for channel in range(images.shape[-1]):
        flipped[..., channel] = mirrored[..., channel]
    images[chosen] = flipped
