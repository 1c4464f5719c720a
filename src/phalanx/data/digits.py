"""Read the embedded default data set: 1,797 handwritten 8x8 digits from scikit-learn.

It needs no file and no network. scikit-learn is imported only when the cache has to be filled.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from phalanx.data.base import PartName, Samples, Source

_SCALE = 15  # stored values are 0..16; times 15 they fill a byte without overflowing it


class DigitsSource(Source):
    """scikit-learn's `load_digits` as grey images; a fifth of it becomes the test part."""

    test_share = 0.2
    num_classes = 10

    @property
    @override
    def name(self) -> str:
        return "digits"

    @property
    @override
    def location(self) -> str:
        return "scikit-learn"

    @override
    def fingerprint(self) -> str:
        return "digits-of-scikit-learn"  # the samples have not changed since they were published

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        if part == "test":
            return
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = np.asarray(digits.images * _SCALE, dtype=np.uint8)[..., None]
        yield Samples(inputs=images, targets=np.asarray(digits.target, dtype=np.int64))
