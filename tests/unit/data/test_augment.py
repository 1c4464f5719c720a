from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import data_files
from phalanx.data.augment import PAD, Augmenter, sample_bits


def _augmented(changes, images, indices, key=(1, 0)):
    augmenter = Augmenter(changes, key=key, max_rows=len(images) + 1, like=images)
    augmenter.images[: len(images)] = images
    return augmenter(indices)


def _all_windows(image: np.ndarray) -> list[bytes]:
    """Every crop that there can be of one image, cut out the slow way."""
    padded = np.pad(image, ((PAD, PAD), (PAD, PAD), (0, 0)))
    height, width, _ = image.shape
    return [
        padded[top : top + height, left : left + width].tobytes()
        for top in range(2 * PAD + 1)
        for left in range(2 * PAD + 1)
    ]


def test_flip_mirrors_half_of_the_images():
    images = data_files.images(400, (5, 7, 3))
    result = _augmented(("flip",), images, np.arange(400))
    mirrored = [np.array_equal(new, old[:, ::-1]) for new, old in zip(result, images, strict=True)]
    kept = [np.array_equal(new, old) for new, old in zip(result, images, strict=True)]
    assert all(m != k for m, k in zip(mirrored, kept, strict=True))
    assert 140 < sum(mirrored) < 260


def test_crop_takes_every_window_about_equally_often():
    image = data_files.images(1, (6, 8, 2))[0]
    images = np.repeat(image[None], 8100, axis=0)
    result = _augmented(("pad-crop",), images, np.arange(8100))
    windows = {window: number for number, window in enumerate(_all_windows(image))}
    counts = np.bincount([windows[crop.tobytes()] for crop in result], minlength=81)
    # 100 are expected of each; 5 deviations of a binomial is 50.
    assert counts.min() > 50
    assert counts.max() < 150


def test_both_changes_on_floats():
    images = data_files.images(50, (6, 6, 1)).astype(np.float32)
    result = _augmented(("pad-crop", "flip"), images, np.arange(50))
    assert result.dtype == np.float32
    for new, old in zip(result, images, strict=True):
        assert new.tobytes() in _all_windows(old) + _all_windows(old[:, ::-1])


@given(
    indices=st.lists(st.integers(0, 10_000), min_size=1, max_size=40, unique=True),
    cut=st.integers(0, 40),
)
def test_a_sample_changes_alike_in_any_batch(indices, cut):
    order = np.array(indices)
    images = data_files.images(len(order), seed=1)
    changes = ("flip", "pad-crop")
    together = _augmented(changes, images, order)
    halves = [
        _augmented(changes, images[part], order[part])
        for part in (slice(None, cut), slice(cut, None))
    ]
    assert np.array_equal(together, np.concatenate(halves))


def test_epochs_differ():
    images = data_files.images(50)
    first, second = (
        _augmented(("pad-crop",), images, np.arange(50), key=(1, epoch)) for epoch in range(2)
    )
    assert not np.array_equal(first, second)


def test_an_empty_batch_passes():
    images = data_files.images(0)
    assert _augmented(("flip", "pad-crop"), images, np.arange(0)).shape == (0, 4, 4, 3)


def test_bits_are_even():
    bits = sample_bits(np.arange(20_000), np.uint64(7))
    for position in range(64):
        share = ((bits >> np.uint64(position)) & np.uint64(1)).mean()
        assert 0.48 < share < 0.52
