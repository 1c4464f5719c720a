"""Strategies whose workers step together: alone, by all-reduce, or averaging now and then."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from phalanx.spec.base import Spec


class SingleSpec(Spec):
    """One worker, no exchange: the reference that every other strategy is checked against."""

    name: Literal["single"] = "single"


class AllreduceSpec(Spec):
    """Every worker has the whole model; gradients are summed over all workers in every step."""

    name: Literal["allreduce"] = "allreduce"
    compression: Literal["none", "bf16"] = "none"
    """bf16 halves the traffic; what rounding takes away is kept and added to the next gradient."""
    bucket_bytes: Annotated[int, Field(gt=0)] | Literal["auto"] = "auto"
    """Gradient bytes that travel together while backward goes on; auto: a quarter of the model,
    at least 512 KiB and at most 25 MiB."""


class OuterStepSpec(Spec):
    """The outer optimiser of DiLoCo: a Nesterov step along the averaged change of parameters."""

    lr: Annotated[float, Field(gt=0)] = 0.7
    """Outer learning rate; 1 with momentum 0 is plain averaging."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Outer Nesterov momentum."""


class LocalSgdSpec(Spec):
    """Workers step alone and average their parameters every few steps."""

    name: Literal["local_sgd"] = "local_sgd"
    every: Annotated[int, Field(gt=0)] = 8
    """Steps between averagings (H)."""
    average_moments: bool = True
    """Average the optimiser's moments with the parameters; false keeps each worker's own, which
    saves traffic and is what DiLoCo does."""
    outer: OuterStepSpec | None = None
    """An outer Nesterov step instead of plain averaging."""


class MirroredSpec(Spec):
    """One process with a replica per worker: TensorFlow's MirroredStrategy."""

    name: Literal["mirrored"] = "mirrored"


class CentralStorageSpec(Spec):
    """The same with variables kept once: TensorFlow's CentralStorageStrategy."""

    name: Literal["central_storage"] = "central_storage"


InProcessSpec = MirroredSpec | CentralStorageSpec
"""All workers are replicas in one process; for `backend: tensorflow`."""
LockstepSpec = SingleSpec | AllreduceSpec | LocalSgdSpec
"""`parameter_server` has a loop of its own."""
