"""Describe how gradients are shortened on their way: the one table of compressions.

All-reduce and parameter servers choose from it. A compression of another package is one more
`CompressionKind`, named in a job file as `package.module:NAME` or by an entry point of the group
`phalanx.compressions`. What a compression leaves out of a gradient is kept by the worker and added
to its next one (error feedback).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field
from typing_extensions import override

from phalanx.spec.base import Spec, fault, name_only
from phalanx.spec.registry import ByName, Registry
from phalanx.spec.strategy import Effect

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec

Shape = tuple[int, ...]
CompressionEffect = Literal["exact", "rounded", "lossy"]
"""In rising order."""
_FLOAT = 4
_INDEX = 4
# One scale of 4 bytes per block follows layers of different magnitude at little cost.
INT8_BLOCK, INT4_BLOCK = 1024, 128


def num_entries(shape: Shape) -> int:
    """Count the entries of a tensor."""
    return math.prod(shape)


class CompressionSpec(Spec):
    """Settings of a compression. Subclass it for a new one."""

    name: str
    """Which kind: its name in the table, or `package.module:NAME`."""

    passes: ClassVar[float] = 0.0
    """How often packing and unpacking walk through the whole gradient, for predictions."""

    @property
    def kind(self) -> CompressionKind:
        """Its entry in the table."""
        return COMPRESSIONS.find(self.name)

    @property
    def effect(self) -> Effect:
        """Effect on the result."""
        return self.kind.effect

    @property
    def whole_steps(self) -> int:
        """Steps at the start of the run in which gradients are sent whole."""
        return 0

    def label(self) -> str:
        """Name it with the settings that tell it from others: `powersgd rank 2`."""
        return self.name.rpartition(":")[2]

    def summed_bytes(self, shapes: Sequence[Shape], num_workers: int) -> float:
        """Return the size of the plain all-reduce that sends as many bytes per step.

        Args:
            shapes: Of the tensors that lie one after another in a bucket of gradients.
            num_workers: Of the group.
        """
        return float(_FLOAT * sum(map(num_entries, shapes)))

    def check(self, job: JobSpec) -> None:
        """Refuse what does not go with the rest of the job.

        Raises:
            PydanticCustomError: A `fault` with the place, seen from the job.
        """


class _DelayedSpec(CompressionSpec):
    start_after: Annotated[int, Field(ge=0)] = 0
    """Steps at the start of the run in which gradients are sent whole; early ones change fast."""

    @property
    @override
    def whole_steps(self) -> int:
        return self.start_after


class WholeSpec(CompressionSpec):
    """Gradients as they are."""

    name: Literal["none"] = "none"


class Bf16Spec(CompressionSpec):
    """Half of the bytes: sums in bf16."""

    name: Literal["bf16"] = "bf16"
    passes: ClassVar[float] = 2.0

    @override
    def summed_bytes(self, shapes: Sequence[Shape], num_workers: int) -> float:
        return super().summed_bytes(shapes, num_workers) / 2


class Int8Spec(CompressionSpec):
    """A quarter of the bytes: 8 bits per entry and a scale per block of 1,024.

    Under all-reduce every worker sums one piece of the gradient in full precision, and sends the
    sum in 8 bits again.
    """

    name: Literal["int8"] = "int8"
    passes: ClassVar[float] = 7.5

    @override
    def summed_bytes(self, shapes: Sequence[Shape], num_workers: int) -> float:
        return _quantised_bytes(shapes, num_workers, bits=8, block=INT8_BLOCK)


class Int4Spec(_DelayedSpec):
    """An eighth of the bytes: 4 bits per entry and a scale per block of 128, sent as int8 is."""

    name: Literal["int4"] = "int4"
    passes: ClassVar[float] = 10.5

    @override
    def summed_bytes(self, shapes: Sequence[Shape], num_workers: int) -> float:
        return _quantised_bytes(shapes, num_workers, bits=4, block=INT4_BLOCK)


class PowerSgdSpec(_DelayedSpec):
    """Two factors of low rank per matrix, often a hundredth of the bytes (PowerSGD).

    Biases, scales and small kernels, which factors would not halve, are sent whole.
    """

    name: Literal["powersgd"] = "powersgd"
    rank: Annotated[int, Field(gt=0)] = 2
    """Of the factors; more is closer to the exact gradient and sends more."""
    passes: ClassVar[float] = 6.0

    @override
    def label(self) -> str:
        return f"powersgd rank {self.rank}"

    def factors(self, shape: Shape) -> int | None:
        """Count the entries of a tensor's two factors; None: they would not halve it."""
        size = num_entries(shape)
        if len(shape) < 2 or size == 0:
            return None
        factors = self.rank * (shape[0] + size // shape[0])
        return factors if 2 * factors <= size else None

    @override
    def summed_bytes(self, shapes: Sequence[Shape], num_workers: int) -> float:
        entries = 0
        for shape in shapes:
            factors = self.factors(shape)
            entries += num_entries(shape) if factors is None else factors
        return float(_FLOAT * entries)


class TopKSpec(_DelayedSpec):
    """The largest entries of each bucket with their places; the rest waits (top-k)."""

    name: Literal["topk"] = "topk"
    share: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the entries that are sent in a step."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum before the choice of entries instead of after the sum (momentum correction): entries
    that wait gather theirs meanwhile. Goes with an optimiser without a momentum of its own."""
    passes: ClassVar[float] = 13.0

    @override
    def label(self) -> str:
        return f"topk {self.share:g}"

    def num_kept(self, size: int) -> int:
        """Count the entries of a bucket that are sent."""
        return min(size, max(1, math.ceil(self.share * size)))

    @override
    def summed_bytes(self, shapes: Sequence[Shape], num_workers: int) -> float:
        size = sum(map(num_entries, shapes))
        # Everybody sends its entries to everybody: (N - 1) times, of which a ring takes 2 / N.
        return num_workers / 2 * (_FLOAT + _INDEX) * self.num_kept(size)

    @override
    def check(self, job: JobSpec) -> None:
        kept = job.optimizer.slots
        if self.momentum and any(slot in kept for slot in job.optimizer.momentum_slots):
            raise fault(
                f"compression topk with a momentum replaces that of optimizer "
                f"'{job.optimizer.name}'",
                "; set 'optimizer: {name: sgd, momentum: 0}', or leave 'momentum' of topk out",
                at=("strategy", "compression", "momentum"),
            )


class AutoCompressionSpec(CompressionSpec):
    """The fastest of none, bf16, int8 and powersgd, as measured in the first steps of the run.

    The choice is told, and kept in checkpoints.
    """

    name: Literal["auto"] = "auto"
    accept: CompressionEffect = "rounded"
    """Greatest effect on the result that may be chosen."""
    steps: Annotated[int, Field(gt=0)] = 5
    """Steps that are measured of each."""

    @property
    @override
    def effect(self) -> Effect:
        return self.accept

    def candidates(self) -> tuple[CompressionSpec, ...]:
        """Return what is tried, in the order of its effect."""
        order = get_args(CompressionEffect)
        tried = (WholeSpec(), Bf16Spec(), Int8Spec(), PowerSgdSpec())
        return tuple(
            one for one in tried if order.index(one.kind.effect) <= order.index(self.accept)
        )

    @override
    def label(self) -> str:
        return f"auto up to {self.accept}"

    @override
    def summed_bytes(self, shapes: Sequence[Shape], num_workers: int) -> float:
        return min(one.summed_bytes(shapes, num_workers) for one in self.candidates())


def _quantised_bytes(shapes: Sequence[Shape], num_workers: int, *, bits: int, block: int) -> float:
    size = sum(map(num_entries, shapes))
    blocks = num_workers * piece_blocks(size, num_workers, block)
    return float(blocks * (_FLOAT + block * bits // 8))


def piece_blocks(size: int, num_workers: int, block: int) -> int:
    """Count the blocks in each worker's piece of a quantised bucket."""
    return -(-size // (num_workers * block))


@dataclass(frozen=True, kw_only=True)
class CompressionKind:
    """One compression: its settings, its effect, and who implements it.

    Paths are text (`package.module:name`), imported by `registry.load` in the process that uses
    them.
    """

    name: str
    spec: type[CompressionSpec]
    effect: CompressionEffect
    """`exact`: nothing is left out; `rounded`: every entry is sent in fewer bits; `lossy`: a part
    of each gradient is sent in later steps."""
    exchange: str
    """`(spec, replica, collective) -> strategy.exchange.base.GradientExchange`."""
    pushed_bytes: int | None = None
    """Bytes per entry on the way to a parameter server, whose frames have the formats of built-in
    kinds only; None: servers do not take it."""


COMPRESSIONS = Registry(
    "compression",
    CompressionKind,
    group="phalanx.compressions",
    built_in={
        kind.name: kind
        for kind in (
            CompressionKind(
                name="none",
                spec=WholeSpec,
                effect="exact",
                exchange="phalanx.strategy.exchange.whole:WholeExchange",
                pushed_bytes=4,
            ),
            CompressionKind(
                name="bf16",
                spec=Bf16Spec,
                effect="rounded",
                exchange="phalanx.strategy.exchange.bf16:Bf16Exchange",
                pushed_bytes=2,
            ),
            CompressionKind(
                name="int8",
                spec=Int8Spec,
                effect="rounded",
                exchange="phalanx.strategy.exchange.quantised:Int8Exchange",
                pushed_bytes=1,
            ),
            CompressionKind(
                name="int4",
                spec=Int4Spec,
                effect="lossy",
                exchange="phalanx.strategy.exchange.quantised:Int4Exchange",
            ),
            CompressionKind(
                name="powersgd",
                spec=PowerSgdSpec,
                effect="lossy",
                exchange="phalanx.strategy.exchange.powersgd:PowerSgdExchange",
            ),
            CompressionKind(
                name="topk",
                spec=TopKSpec,
                effect="lossy",
                exchange="phalanx.strategy.exchange.topk:TopKExchange",
            ),
            CompressionKind(
                name="auto",
                spec=AutoCompressionSpec,
                effect="lossy",
                exchange="phalanx.strategy.exchange.auto:AutoExchange",
            ),
        )
    },
)

CompressionField = Annotated[
    CompressionSpec,
    ByName(
        tuple(COMPRESSIONS.find(name).spec for name in COMPRESSIONS.built_in),
        table=lambda: COMPRESSIONS,
    ),
    BeforeValidator(name_only),
]
"""The type of `compression` in a strategy."""
