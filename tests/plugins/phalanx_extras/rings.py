"""Make points on rings, each ring a class, and move them a little at random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from phalanx.data.base import PartName, Samples, Source


class Rings(Source):
    """Points in the plane; the class is the ring that they lie on."""

    def __init__(self, *, rings: int = 3, samples: int = 600, seed: int = 1) -> None:
        self.num_classes = rings
        self._samples = samples
        self._seed = seed

    @property
    def name(self) -> str:
        """The name that people know it by."""
        return "rings"

    @property
    def location(self) -> str:
        """Where the samples come from."""
        return f"made from seed {self._seed}"

    def fingerprint(self) -> str:
        """Change whenever a sample would."""
        return f"rings 1 {self.num_classes} {self._samples} {self._seed}"

    def chunks(self, part: PartName) -> Iterator[Samples]:
        """Make all samples of a part at once."""
        chance = np.random.Generator(np.random.Philox([self._seed, part == "test"]))
        targets = chance.integers(self.num_classes or 1, size=self._samples)
        angle = chance.random(self._samples) * 2 * np.pi
        radius = 1 + targets + 0.2 * chance.random(self._samples)
        points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        yield Samples(inputs=points.astype(np.float32), targets=targets.astype(np.int64))


def jitter(points: npt.NDArray[np.float32], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Move every point of a batch a little."""
    return points + 0.02 * rng.standard_normal(points.shape, dtype=np.float32)
