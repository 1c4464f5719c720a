"""Rest-frame spectra of the user's own, for the generator of `redshift`. Reads files only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phalanx.data.base import Array
from phalanx.data.portable_random import Floats, interpolate
from phalanx.errors import DataError

NEEDED_A = (3930.0, 10_000.0)
"""What of the rest frame comes into the band between redshift 1.0 and 1.8."""
_REFERENCE_A = 6562.80


@dataclass(frozen=True)
class Templates:
    """Continua, each 1 at H-alpha."""

    wavelength_a: Floats
    flux: Floats
    """One row per template."""
    digest: str

    @property
    def num_templates(self) -> int:
        """How many there are."""
        return len(self.flux)


def read_templates(path: Path, *, root: Path) -> Templates:
    """Read a .npz file (`wavelength`, `flux`) or a text file of columns.

    Raises:
        DataError: The file is not there, or does not hold rising wavelengths and positive fluxes
            over the range that is needed.
    """
    found = next((one for one in (path.expanduser(), root / path) if one.is_file()), None)
    if found is None:
        raise DataError(f"data.args.templates: there is no file {path}", path=path)
    wavelength, flux = _read(found)
    problem = _problem(wavelength, flux)
    if problem:
        raise DataError(f"{found}: {problem}", path=found)
    levels = np.array([interpolate(np.array([_REFERENCE_A]), wavelength, one)[0] for one in flux])
    if (levels <= 0).any():
        raise DataError(
            f"{found}: template {int(levels.argmin()) + 1} has no flux at H-alpha "
            f"({_REFERENCE_A} angstrom), by which it is scaled",
            path=found,
        )
    return Templates(
        wavelength_a=wavelength,
        flux=flux / levels[:, None],
        digest=hashlib.sha256(found.read_bytes()).hexdigest(),
    )


def _read(path: Path) -> tuple[Floats, Floats]:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return _as_rows(arrays["wavelength"], arrays["flux"])
        table = np.loadtxt(path, dtype=np.float64, ndmin=2)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} cannot be read as templates ({error}); give a .npz file with 'wavelength' and "
            "'flux', or a text file with a column of wavelengths and columns of fluxes",
            path=path,
        ) from error
    return _as_rows(table[:, 0], table[:, 1:].T)


def _as_rows(wavelength: Array, flux: Array) -> tuple[Floats, Floats]:
    return np.asarray(wavelength, np.float64), np.atleast_2d(np.asarray(flux, np.float64))


def _problem(wavelength: Floats, flux: Floats) -> str:
    low, high = NEEDED_A
    if wavelength.ndim != 1 or flux.ndim != 2 or flux.shape[1] != len(wavelength) or not len(flux):
        return (
            f"wavelengths of shape {wavelength.shape} do not go with fluxes of shape {flux.shape}"
        )
    if len(wavelength) < 2 or not (np.diff(wavelength) > 0).all():
        return "the wavelengths must rise"
    if wavelength[0] > low or wavelength[-1] < high:
        return (
            f"the wavelengths reach from {wavelength[0]:g} to {wavelength[-1]:g} angstrom; "
            f"redshifts from 1.0 to 1.8 need {low:g} to {high:g}"
        )
    if not np.isfinite(flux).all():
        return "a flux is not finite"
    return ""
