"""Define the settings of the made-up spectra and of the network that reads them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from phalanx.spec.base import Spec

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class SpectraSpec(Spec):
    """Spectra of distant galaxies as a slitless infrared survey sees them."""

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


class RedshiftSpec(Spec):
    """Convolutions along a spectrum: 2,242,192 parameters on 1,780 bins with 800 classes."""

    convolutions: Positive = 3
    """Convolutions, each followed by a pool that halves the length."""
    filters: Positive = 16
    """Filters of each convolution."""
    kernel: Positive = 8
    """Length of each filter, in bins."""
    batch_norm: bool = True
    """Normalise after each pool."""
    dense: Positive = 512
    """Width of the dense layer."""
    dropout: Share = 0.5
    """Share of units dropped before and after the dense layer."""
