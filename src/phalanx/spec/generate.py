"""Data that is made instead of read: the settings of the two generators."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from phalanx.spec.base import Spec, fault

Positive = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class SpectraSpec(Spec):
    """Spectra of distant galaxies as a slitless infrared survey sees them; for `redshift`."""

    samples: Positive = 10_000
    """Training spectra, before the validation split."""
    test: Positive = 1_000
    """Test spectra; of other galaxies than those trained on."""
    bins: Annotated[int, Field(ge=16)] = 1_780
    """Bins of a spectrum, from 11,000 angstrom on."""
    bin_width: Annotated[float, Field(gt=0)] = 5.0
    """Width of a bin in angstrom."""
    classes: Positive = 800
    """Equal ranges of redshift from 1.0 to 1.8 that are told apart."""
    snr: Annotated[float, Field(ge=0)] = 6.0
    """Signal to noise of a line of 1e-16 erg/s/cm2 over three bins of 5 angstrom: 3.5 is a wide
    survey, 8 a deep one; 0: no noise."""
    blur: Annotated[float, Field(ge=0)] = 0.0
    """Width (one deviation) in angstrom that the instrument adds to every line."""
    without_lines: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of galaxies without emission lines."""
    parents: Positive | None = None
    """Galaxies of which all spectra are copies at different redshifts; null: one each."""
    templates: str | None = None
    """A .npz file with arrays `wavelength` and `flux`, or a text file with a column of wavelengths
    and one or more of fluxes: rest-frame continua to draw from instead of power laws."""
    seed: Seed = 1
    """Decides every spectrum; the job's seed does not."""


class ScenesSpec(Spec):
    """Made-up land seen by four sensors; for `land-cover`."""

    per_class: Positive = 300
    """Training samples of each of the 12 classes, from all training scenes together."""
    train_scenes: Positive = 1
    """Scenes that training samples come from."""
    size: Annotated[int, Field(ge=48, le=2048)] = 256
    """Pixels along each side of a scene."""
    test_stride: Positive = 4
    """The test scene, another one, is sampled at every so manyth pixel of a regular grid."""
    bands: Annotated[int, Field(ge=3)] = 48
    """Bands of the hyperspectral sensor from 0.38 to 1.05 micrometres."""
    patch: Annotated[int, Field(ge=3)] = 11
    """Pixels along each side of a hyperspectral patch; odd. LiDAR and radar have twice as many."""
    visible: Annotated[int, Field(ge=8)] = 64
    """Pixels along each side of a visible patch, which are four times finer; a multiple of 4."""
    noise: Annotated[float, Field(ge=0)] = 1.0
    """Factor for the noise of all sensors."""
    seed: Seed = 1
    """Decides every scene; the job's seed does not."""

    @model_validator(mode="after")
    def _fits(self) -> ScenesSpec:
        if self.patch % 2 == 0:
            raise fault(f"scenes.patch must be odd, not {self.patch}", at=("patch",))
        if self.visible % 4:
            raise fault(
                f"scenes.visible must be a multiple of 4, not {self.visible}", at=("visible",)
            )
        if 2 * self.margin + 16 > self.size:
            raise fault(
                f"scenes.size of {self.size} pixels leaves no room for patches",
                f"; it takes at least {2 * self.margin + 16}",
                at=("size",),
            )
        return self

    @property
    def margin(self) -> int:
        """Pixels at each border around which no patch is cut."""
        return max(self.patch // 2 + 1, self.visible // 8 + 1)
