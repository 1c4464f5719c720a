"""Estimate redshifts of galaxies from made-up spectra: data, network, metrics, chapter.

Job files name the first two as `phalanx_redshift:SPECTRA` and `phalanx_redshift:NETWORK`, study
files the part of the report as `phalanx_redshift:ERRORS`.
"""

from __future__ import annotations

from phalanx.report.parts.catalogue import ReportPart
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
ERRORS = ReportPart("redshift", make="phalanx_redshift.chapter:show_errors", order=45)
