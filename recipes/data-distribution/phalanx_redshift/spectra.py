"""Made-up spectra of galaxies at redshifts 1.0 to 1.8, as a slitless infrared survey sees them.

Notation: F flux of the H-alpha line in 1e-16 erg/s/cm2, z redshift, W equivalent width of the line
in angstrom. A spectrum is flux per bin: a continuum of level F / (W (1+z)) at H-alpha, fourteen
emission lines as Gaussians integrated over the bins, and white noise, divided by its own root mean
square. Laws of fluxes, ratios and widths follow published emission-line galaxies; below z = 1.197
only the complex around H-alpha is in the band, as in the real problem.

Class = place of z among equal ranges. Bit-identical from the seed on every machine: see
`phalanx.data.portable_random`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from phalanx.data.base import Array, PartName, Samples, Scale, Source
from phalanx.data.portable_random import (
    Draws,
    Floats,
    exp,
    interpolate,
    log,
    normal_cdf,
    power_of_ten,
    sum_rows,
)
from phalanx.spec.data import DataSpec
from phalanx_redshift.settings import SpectraSpec
from phalanx_redshift.templates import Templates, read_templates

START_A = 11_000.0
Z_LOW, Z_HIGH = 1.0, 1.8
H_ALPHA_A = 6562.80
# H-gamma, H-beta, [OIII] 2x, HeI, [OI], [NII], H-alpha, [NII], [SII] 2x, [ArIII], [SIII] 2x.
LINES_A = (
    *(4340.46, 4861.36, 4958.91, 5006.84, 5875.6, 6300.3, 6548.05),
    *(H_ALPHA_A, 6583.45, 6716.44, 6730.82, 7135.8, 9068.6, 9530.6),
)
LIGHT_KM_S = 2.998e5
_REACH = 5.5  # deviations from a line's centre beyond which nothing of it is drawn
_CHUNK = 1000  # spectra made at once; also the unit of the shard policy `file`
_VERSION = 1  # of the recipe: a change of any number is another data set
_PARTS: dict[PartName, int] = {"train": 0, "test": 1}


@dataclass(frozen=True)
class _Galaxies:
    """One row per galaxy."""

    flux: Floats
    """H-alpha."""
    lines: Floats
    """Of all lines."""
    width_a: Floats
    slope: Floats
    speed_km_s: Floats
    template: npt.NDArray[np.int64]


class RedshiftSource(Source):
    """The generator as a data set.

    Args:
        spec: Sizes, noise and seed.
        root: Where a relative path of templates is looked for, besides the current directory.
    """

    metrics = (
        *("accuracy", "within_one"),
        *(f"phalanx_redshift.metrics:{name}" for name in ("NMAD", "OUTLIERS", "CATASTROPHIC")),
    )

    def __init__(self, spec: SpectraSpec, *, root: Path) -> None:
        self._spec = spec
        self._root = root
        self.num_classes = spec.classes
        self._class_width = (Z_HIGH - Z_LOW) / spec.classes
        self.scale = Scale(low=Z_LOW, width=self._class_width, name="redshift")

    @property
    @override
    def name(self) -> str:
        return "redshift"

    @property
    @override
    def location(self) -> str:
        return f"made from seed {self._spec.seed}"

    @override
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"redshift {_VERSION} {self._spec.model_dump_json()}".encode())
        if self._templates is not None:
            digest.update(self._templates.digest.encode())
        return digest.hexdigest()

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        count = self._spec.samples if part == "train" else self._spec.test
        galaxies = self._galaxies(part, self._spec.parents or count)
        for number, first in enumerate(range(0, count, _CHUNK)):
            rows = min(_CHUNK, count - first)
            draws = Draws(self._spec.seed, _PARTS[part], 1, number)
            if self._spec.parents is None:
                own = np.arange(first, first + rows)
            else:
                own = draws.whole(len(galaxies.flux), rows)
            yield self._samples(galaxies, own, draws)

    @cached_property
    def _templates(self) -> Templates | None:
        path = self._spec.templates
        return None if path is None else read_templates(Path(path), root=self._root)

    @cached_property
    def _edges(self) -> Floats:
        places = np.arange(self._spec.bins + 1, dtype=np.float64)
        return START_A + self._spec.bin_width * places

    def _galaxies(self, part: PartName, count: int) -> _Galaxies:
        draws = Draws(self._spec.seed, _PARTS[part], 0)

        def ratio(mean: float, deviation: float) -> Floats:
            return power_of_ten(mean + deviation * draws.normal(count))

        flux = power_of_ten(np.minimum(0.28 * draws.exponential(count), 1.2))
        dust = draws.whole(6, count) / 10
        h_beta = flux / 2.86 * power_of_ten(-0.4 * 1.27 * dust)
        oxygen, nitrogen = h_beta * ratio(0, 0.35), flux * ratio(-0.6, 0.2)
        sulphur, infrared = flux * ratio(-0.6, 0.15), flux * ratio(-1.1, 0.2)
        h_gamma = 0.468 * h_beta * power_of_ten(-0.2 * dust)
        faint = flux * ratio(-1.4, 0.2)
        columns = (
            *(h_gamma, h_beta, oxygen / 2.98, oxygen, 0.04 * flux, faint, nitrogen / 3),
            *(
                flux,
                nitrogen,
                0.57 * sulphur,
                0.43 * sulphur,
                0.02 * flux,
                infrared,
                2.47 * infrared,
            ),
        )
        lines = np.stack(columns, axis=1)
        lines[draws.uniform(count) < self._spec.without_lines] = 0.0
        num_templates = self._templates.num_templates if self._templates else 1
        return _Galaxies(
            flux=flux,
            lines=lines,
            width_a=ratio(2.0, 0.3),
            slope=-0.8 + 0.5 * draws.normal(count),
            speed_km_s=np.clip(ratio(2.05, 0.15), 60, 300),
            template=draws.whole(num_templates, count),
        )

    def _samples(self, galaxies: _Galaxies, own: npt.NDArray[np.int64], draws: Draws) -> Samples:
        spec = self._spec
        z = Z_LOW + (Z_HIGH - Z_LOW) * draws.uniform(len(own))
        spectra = self._continuum(galaxies, own, z)
        self._add_lines(spectra, galaxies, own, z)
        if spec.snr > 0:
            # The reference bin of 5 angstrom; noise of a wider one adds up in squares.
            deviation = np.sqrt(spec.bin_width / 5.0) / (spec.snr * np.sqrt(3.0))
            spectra += deviation * draws.normal(*spectra.shape)
        power = sum_rows(spectra * spectra) / spec.bins
        spectra /= np.sqrt(power)[:, None]
        labels = ((z - Z_LOW) / self._class_width).astype(np.int64)
        return Samples(
            inputs=spectra.astype(np.float32),
            targets=np.minimum(labels, spec.classes - 1),
            features=_features(z=z, flux=galaxies.flux[own], parent=own),
        )

    def _continuum(self, galaxies: _Galaxies, own: npt.NDArray[np.int64], z: Floats) -> Floats:
        """Flux per bin without lines."""
        centres = (self._edges[:-1] + self._edges[1:]) * 0.5
        level = galaxies.flux[own] / (galaxies.width_a[own] * (1 + z)) * self._spec.bin_width
        if self._templates is not None:
            rest = centres / (1 + z)[:, None]
            shapes = np.empty_like(rest)
            for row, which in enumerate(galaxies.template[own]):
                flux = self._templates.flux[which]
                shapes[row] = interpolate(rest[row], self._templates.wavelength_a, flux)
            return shapes * level[:, None]
        reach = log(centres)[None, :] - log(H_ALPHA_A * (1 + z))[:, None]
        return exp(galaxies.slope[own][:, None] * reach) * level[:, None]

    def _add_lines(
        self, spectra: Floats, galaxies: _Galaxies, own: npt.NDArray[np.int64], z: Floats
    ) -> None:
        spec, rows = self._spec, np.arange(len(own))[:, None]
        for number, rest_a in enumerate(LINES_A):
            centre = rest_a * (1 + z)
            own_width = centre * galaxies.speed_km_s[own] / LIGHT_KM_S
            width = np.sqrt(own_width * own_width + spec.blur * spec.blur)
            middle = ((centre - START_A) / spec.bin_width).astype(np.int64)
            reach = int(_REACH * float(width.max()) / spec.bin_width) + 1
            bins = middle[:, None] + np.arange(-reach, reach + 1)
            inside = (bins >= 0) & (bins < spec.bins)
            bins = np.clip(bins, 0, spec.bins - 1)
            share = normal_cdf((self._edges[bins + 1] - centre[:, None]) / width[:, None])
            share -= normal_cdf((self._edges[bins] - centre[:, None]) / width[:, None])
            light = np.where(inside, galaxies.lines[own, number][:, None] * share, 0.0)
            # Clipped bins repeat within a row, and only a loop over columns adds each of them.
            for column in range(bins.shape[1]):
                spectra[rows[:, 0], bins[:, column]] += light[:, column]


def open_source(spec: DataSpec, *, root: Path) -> RedshiftSource:
    """Make the source that a job asks for."""
    settings = spec.settings
    assert isinstance(settings, SpectraSpec)
    return RedshiftSource(settings, root=root)


def _features(**columns: Array) -> dict[str, npt.NDArray[np.float32]]:
    return {name: column.astype(np.float32) for name, column in columns.items()}
