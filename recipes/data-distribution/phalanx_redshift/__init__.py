"""Estimate redshifts of galaxies from made-up spectra: a data source and a network.

Job files name the two kinds as `phalanx_redshift:SPECTRA` and `phalanx_redshift:NETWORK`.
"""

from __future__ import annotations

from phalanx.spec.data import SourceKind
from phalanx.spec.model import ModelKind
from phalanx_redshift.settings import RedshiftSpec, SpectraSpec

SPECTRA = SourceKind("redshift", open="phalanx_redshift.spectra:open_source", settings=SpectraSpec)
NETWORK = ModelKind(
    "redshift",
    build="phalanx_redshift.network:build_redshift",
    keras="phalanx_redshift.keras_network:build_redshift",
    settings=RedshiftSpec,
)
