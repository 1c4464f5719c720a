"""Check which data the network for redshifts can read; no framework."""

from __future__ import annotations

from phalanx.errors import SpecError


def num_bins(input_shape: tuple[int, ...]) -> int:
    """The length of a spectrum, or a SpecError if the data has none."""
    if len(input_shape) != 1:
        raise SpecError(
            f"model 'redshift' reads spectra of shape (bins,), but the data has samples of shape "
            f"{input_shape}; choose another model, or data such as phalanx_redshift:SPECTRA",
            model="redshift",
        )
    return input_shape[0]
