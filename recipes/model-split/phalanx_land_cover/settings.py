"""Define the settings of the made-up land and of the network that reads it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from phalanx.spec.base import ListOf, Spec, fault

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class ScenesSpec(Spec):
    """Made-up land seen by four sensors."""

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
            raise fault(f"patch must be odd, not {self.patch}", at=("patch",))
        if self.visible % 4:
            raise fault(f"visible must be a multiple of 4, not {self.visible}", at=("visible",))
        if 2 * self.margin + 16 > self.size:
            raise fault(
                f"size of {self.size} pixels leaves no room for patches",
                f"; it takes at least {2 * self.margin + 16}",
                at=("size",),
            )
        return self

    @property
    def margin(self) -> int:
        """Pixels at each border around which no patch is cut."""
        return max(self.patch // 2 + 1, self.visible // 8 + 1)


SensorName = Literal["hyperspectral", "lidar", "sar", "visible"]


class LandCoverSpec(Spec):
    """Three branches and a trunk: 10,723,028 parameters on the shapes of the scenes."""

    modalities: ListOf[SensorName] = ("hyperspectral", "lidar", "sar", "visible")
    """What is read; a branch without a modality is left out. lidar and sar share a branch."""
    width: Annotated[float, Field(gt=0, le=4)] = 1.0
    """Factor for the width of every layer but the last."""
    dropout: Share = 0.0
    """Share of units dropped after each dense layer but the last."""
    outputs: Positive = 20
    """Classes that can be told apart; the data may have fewer."""

    @model_validator(mode="after")
    def _some_modality(self) -> LandCoverSpec:
        if not self.modalities or len(set(self.modalities)) < len(self.modalities):
            raise fault(
                "modalities takes at least one name, each once",
                ", such as [hyperspectral, lidar]",
                at=("modalities",),
            )
        return self
