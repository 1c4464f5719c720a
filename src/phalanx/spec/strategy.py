"""Who exchanges what, when: one spec per strategy, told apart by name."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from phalanx.spec.base import name_only
from phalanx.spec.lockstep import AllreduceSpec, InProcessSpec, LocalSgdSpec, SingleSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.split import SplitSpec
from phalanx.spec.switch import SwitchSpec

StrategySpec = Annotated[
    Annotated[
        SingleSpec
        | AllreduceSpec
        | LocalSgdSpec
        | ParameterServerSpec
        | SwitchSpec
        | SplitSpec
        | InProcessSpec,
        Field(discriminator="name"),
    ],
    BeforeValidator(name_only),
]
