"""What the network for land cover consists of, and which data it can read; no framework.

The torch network and its Keras twin are both built from this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import SpecError
from phalanx.spec.modality import Modality
from phalanx_land_cover.settings import LandCoverSpec


@dataclass(frozen=True)
class BranchPlan:
    """What a branch reads and consists of: a number is a convolution of so many filters."""

    name: str
    takes: tuple[str, ...]
    layers: tuple[int | None, ...]
    """None: a pool."""
    embedding: int


BRANCHES = (
    BranchPlan("hyperspectral", ("hyperspectral",), (64, 128, None, 256), 512),
    BranchPlan("lidar", ("lidar", "sar"), (32, 64, None, 128, None), 256),
    BranchPlan("visible", ("visible",), (32, None, 64, None, 128, None, 256, None), 512),
)
TRUNK = (1024, 512)


def scaled(spec: LandCoverSpec, width: int) -> int:
    """The width of a layer that is `width` wide in the reference network."""
    return max(1, round(width * spec.width))


def check_rows(
    spec: LandCoverSpec,
    input_shape: tuple[int, ...],
    num_classes: int,
    modalities: Sequence[Modality],
) -> None:
    """Refuse rows that the network cannot read, in one sentence."""
    known = {one.name for one in modalities}
    missing = [name for name in spec.modalities if name not in known]
    if missing or input_shape != (sum(one.size for one in modalities),):
        raise SpecError(
            f"model 'land-cover' reads {', '.join(spec.modalities)} from packed rows, but the data "
            f"has samples of shape {input_shape} with {', '.join(sorted(known)) or 'no modalities'}"
            "; choose data such as phalanx_land_cover:SCENES, or set 'model.args.modalities'",
            model="land-cover",
        )
    if num_classes > spec.outputs:
        raise SpecError(
            f"model 'land-cover' has {spec.outputs} outputs, but the data has {num_classes} "
            f"classes; set 'model.args.outputs: {num_classes}'",
            model="land-cover",
        )
    shapes = {one.name: one.shape[1:] for one in modalities if one.name in spec.modalities}
    for plan in BRANCHES:
        grids = {shapes[name] for name in plan.takes if name in shapes}
        if len(grids) > 1:
            raise SpecError(
                f"model 'land-cover' reads {' and '.join(plan.takes)} in one branch, so both need "
                f"one height and width, not {' and '.join(str(grid) for grid in sorted(grids))}",
                model="land-cover",
            )
