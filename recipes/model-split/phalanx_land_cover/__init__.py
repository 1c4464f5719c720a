"""Classify land cover from four sensors in made-up scenes: a data source and a branched network.

Job files name the two kinds as `phalanx_land_cover:SCENES` and `phalanx_land_cover:NETWORK`.
"""

from __future__ import annotations

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
