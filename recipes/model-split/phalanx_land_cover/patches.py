"""Land-cover samples as a data set: patches of made-up scenes, packed row by row.

Training samples are the same number of every class, from one or more scenes; test samples lie on
a regular grid of another scene, so that what a network says about them is a map. Random pixels of
one scene would leak: neighbours share their patch. The scenes are made by `scene`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from typing_extensions import override

from phalanx.data.base import Array, PartName, Samples, Source
from phalanx.data.order import random_order, share_sizes
from phalanx.spec.data import DataSpec
from phalanx.spec.modality import Modality
from phalanx_land_cover.scene import (
    CLASSES,
    FINE_HEIGHT,
    FINE_VISIBLE,
    Bytes,
    Labels,
    Scene,
    make_scene,
)
from phalanx_land_cover.settings import ScenesSpec

_VERSION = 1  # of the recipe: a change of any number is another data set
_REGION = 32  # pixels along each side of the regions that samples are said to come from
_CHUNK = 512  # patches cut at once


def modalities_of(spec: ScenesSpec) -> tuple[Modality, ...]:
    """What a packed row consists of."""
    fine = FINE_HEIGHT * spec.patch
    return (
        Modality("hyperspectral", (spec.bands, spec.patch, spec.patch)),
        Modality("lidar", (5, fine, fine)),
        Modality("sar", (2, fine, fine)),
        Modality("visible", (3, spec.visible, spec.visible)),
    )


class LandCoverSource(Source):
    """The generator as a data set.

    Args:
        spec: Sizes, noise and seed.
    """

    num_classes = len(CLASSES)
    class_names = CLASSES
    metrics = ("accuracy", "mean_class_accuracy", "kappa")

    def __init__(self, spec: ScenesSpec) -> None:
        self._spec = spec
        self.modalities = modalities_of(spec)
        side = len(range(spec.margin, spec.size - spec.margin, spec.test_stride))
        self.test_map = (side, side)

    @property
    @override
    def name(self) -> str:
        return "land-cover"

    @property
    @override
    def location(self) -> str:
        return f"made from seed {self._spec.seed}"

    @override
    def fingerprint(self) -> str:
        settings = f"land-cover {_VERSION} {self._spec.model_dump_json()}"
        return hashlib.sha256(settings.encode()).hexdigest()

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        spec = self._spec
        if part == "test":
            places = np.arange(spec.margin, spec.size - spec.margin, spec.test_stride)
            rows, columns = np.repeat(places, len(places)), np.tile(places, len(places))
            yield self._cut(self._scene(0), rows, columns, number=0)
            return
        for number, count in enumerate(share_sizes(spec.per_class, spec.train_scenes), start=1):
            scene = self._scene(number)
            rows, columns = self._balanced(scene.labels, count, number)
            yield self._cut(scene, rows, columns, number=number)

    def _scene(self, number: int) -> Scene:
        spec = self._spec
        return make_scene((spec.seed, number), size=spec.size, bands=spec.bands, noise=spec.noise)

    def _balanced(self, labels: Labels, count: int, number: int) -> tuple[Labels, Labels]:
        """Pixels at random, the same number of each class where there are enough, shuffled."""
        spec, margin = self._spec, self._spec.margin
        inner = labels[margin:-margin, margin:-margin]
        chosen = []
        for label in range(len(CLASSES)):
            places = np.flatnonzero(inner == label)
            key = (spec.seed, number, 100 + label)
            # A small scene may have too few pixels of a class: some are then taken again.
            repeats = -(-count // max(1, len(places)))
            order = [random_order(len(places), (*key, again)) for again in range(repeats)]
            chosen.append(places[np.concatenate(order)[:count]] if len(places) else places)
        every = np.concatenate(chosen)
        every = every[random_order(len(every), (spec.seed, number, 99))]
        rows, columns = np.divmod(every, inner.shape[1])
        return rows + margin, columns + margin

    def _cut(self, scene: Scene, rows: Labels, columns: Labels, *, number: int) -> Samples:
        spec = self._spec
        packed = np.empty((len(rows), sum(one.size for one in self.modalities)), dtype=np.uint8)
        fine = FINE_HEIGHT * spec.patch
        half, half_visible = spec.patch // 2, spec.visible // 2
        height_rows, height_columns = (FINE_HEIGHT * (place - half) for place in (rows, columns))
        fine_rows, fine_columns = (
            FINE_VISIBLE * place + FINE_VISIBLE // 2 - half_visible for place in (rows, columns)
        )
        start = 0
        for image, size, top, left in (
            (scene.hyperspectral, spec.patch, rows - half, columns - half),
            (scene.lidar, fine, height_rows, height_columns),
            (scene.sar, fine, height_rows, height_columns),
            (scene.visible, spec.visible, fine_rows, fine_columns),
        ):
            start += _fill(packed[:, start:], image, size, top, left)
        region = rows // _REGION * -(-spec.size // _REGION) + columns // _REGION
        return Samples(
            inputs=packed,
            targets=scene.labels[rows, columns],
            features={
                "scene": np.full(len(rows), number, dtype=np.float32),
                "region": region.astype(np.float32),
            },
        )


def open_source(spec: DataSpec, *, root: Path) -> LandCoverSource:
    """Make the source that a job asks for; it reads no files."""
    settings = spec.settings
    assert isinstance(settings, ScenesSpec)
    return LandCoverSource(settings)


def _fill(packed: Bytes, image: Bytes, size: int, top: Labels, left: Labels) -> int:
    """Write the windows at these corners to the first columns; returns how many columns."""
    windows: npt.NDArray[np.uint8] = sliding_window_view(image, (size, size), axis=(1, 2))
    width = len(image) * size * size
    for first in range(0, len(top), _CHUNK):
        spot = slice(first, first + _CHUNK)
        cut: Array = windows[:, top[spot], left[spot]]  # (channels, rows, size, size)
        packed[spot, :width] = np.moveaxis(cut, 0, 1).reshape(cut.shape[1], width)
    return width
