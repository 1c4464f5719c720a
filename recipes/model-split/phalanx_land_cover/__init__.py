"""Classify land cover from four sensors in made-up scenes: data, branched network, maps.

Job files name the first two as `phalanx_land_cover:SCENES` and `phalanx_land_cover:NETWORK`, study
files the part of the report as `phalanx_land_cover:MAPS`.
"""

from __future__ import annotations

from phalanx.report.parts.catalogue import ReportPart
from phalanx.spec.data import SourceKind
from phalanx.spec.model import ModelKind
from phalanx_land_cover.settings import LandCoverSpec, ScenesSpec

SCENES = SourceKind(
    "land-cover", open="phalanx_land_cover.patches:open_source", settings=ScenesSpec
)
NETWORK = ModelKind(
    "land-cover",
    build="phalanx_land_cover.network:build_land_cover",
    keras="phalanx_land_cover.keras_network:build_land_cover",
    takes_modalities=True,
    settings=LandCoverSpec,
)
MAPS = ReportPart("maps", make="phalanx_land_cover.maps:show_maps", order=45)
