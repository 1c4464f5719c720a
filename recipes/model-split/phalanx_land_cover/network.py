"""The branched network for land cover: one branch per kind of sensor, and a trunk that joins them.

    hyperspectral   48 x 11 x 11   c64 c128 pool c256 dense512                     5,115,840
    lidar            7 x 22 x 22   c32 c64 pool c128 pool dense256                 1,274,304
    visible          3 x 64 x 64   c32 pool c64 pool c128 pool c256 pool dense512  2,486,080
    trunk                  1,280   dense1024 dense512 classes20                    1,846,804
                                                                                  10,723,028

All convolutions are 3x3 with ReLU and keep the size, all pools 2x2 rounded up. The branch `lidar`
reads height, intensities and radar, which lie on the same grid. Most weights are in one branch and
most of the work in another, which makes it worth thinking where each is placed.

It is a `PartedNetwork`: its parts are named `hyperspectral.conv1`, `visible.pool3`, `trunk.dense2`
and the like, each reads the one before, `trunk.dense1` reads the embeddings of all branches, and
its inputs are the modalities' columns of a packed row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from phalanx.model.initial import initialise
from phalanx.model.parts import Columns, PartedNetwork
from phalanx.spec.modality import Modality, columns_of
from phalanx_land_cover.layout import BRANCHES, TRUNK, BranchPlan, check_rows, scaled
from phalanx_land_cover.settings import LandCoverSpec


def build_land_cover(
    spec: LandCoverSpec,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    modalities: Sequence[Modality] = (),
) -> nn.Module:
    """10,723,028 parameters on the reference shapes with 20 outputs."""
    check_rows(spec, input_shape, num_classes, modalities)
    shapes = {one.name: one.shape for one in modalities if one.name in spec.modalities}
    builder = _Builder(spec)
    ends: list[str] = []
    width = 0
    for plan in BRANCHES:
        taken = tuple(name for name in plan.takes if name in shapes)
        if taken:
            end, embedding = builder.add_branch(plan, taken, [shapes[name] for name in taken])
            ends.append(end)
            width += embedding
    builder.add_trunk(ends, width)
    columns = columns_of(modalities)
    model = PartedNetwork(
        builder.parts,
        reads=builder.reads,
        inputs={
            name: Columns(columns[name].start, columns[name].stop, shape)
            for name, shape in shapes.items()
        },
    )
    initialise(model, convolutions="he-normal", dense="glorot-uniform")
    return model


@dataclass
class _Builder:
    """Collects the parts, each after those that it reads."""

    spec: LandCoverSpec
    parts: dict[str, nn.Module] = field(default_factory=dict)
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add_branch(
        self, plan: BranchPlan, takes: tuple[str, ...], shapes: Sequence[tuple[int, int, int]]
    ) -> tuple[str, int]:
        """Add the layers of a branch; the name of its last part, and how wide that is."""
        channels = sum(shape[0] for shape in shapes)
        _, height, width = shapes[0]
        convolutions = pools = 0
        for layer in plan.layers:
            if layer is None:
                pools += 1
                part = f"{plan.name}.pool{pools}"
                self._add(part, nn.MaxPool2d(2, ceil_mode=True), takes)
                height, width = -(-height // 2), -(-width // 2)
            else:
                convolutions += 1
                part = f"{plan.name}.conv{convolutions}"
                filters = scaled(self.spec, layer)
                convolution = nn.Conv2d(channels, filters, 3, padding=1)
                self._add(part, nn.Sequential(convolution, nn.ReLU(inplace=True)), takes)
                channels = filters
            takes = (part,)
        embedding = scaled(self.spec, plan.embedding)
        dense = self._dense(channels * height * width, embedding)
        self._add(f"{plan.name}.dense", nn.Sequential(nn.Flatten(), *dense), takes)
        return f"{plan.name}.dense", embedding

    def add_trunk(self, takes: Sequence[str], width: int) -> None:
        """Add what joins the branches."""
        reads = tuple(takes)
        for number, full in enumerate(TRUNK, start=1):
            hidden = scaled(self.spec, full)
            self._add(f"trunk.dense{number}", nn.Sequential(*self._dense(width, hidden)), reads)
            reads, width = (f"trunk.dense{number}",), hidden
        self._add("trunk.classes", nn.Linear(width, self.spec.outputs), reads)

    def _add(self, name: str, module: nn.Module, reads: tuple[str, ...]) -> None:
        self.parts[name] = module
        self.reads[name] = reads

    def _dense(self, num_in: int, num_out: int) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Linear(num_in, num_out), nn.ReLU(inplace=True)]
        if self.spec.dropout > 0:
            layers.append(nn.Dropout(self.spec.dropout))
        return layers
