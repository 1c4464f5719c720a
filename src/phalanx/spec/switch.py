"""The strategy `switch`: a list of phases, each another strategy, and the moments between them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from phalanx.spec.base import ListOf, Spec, fault, name_only
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec, SingleSpec
from phalanx.spec.parameter_server import ParameterServerSpec

InnerShare = Annotated[float, Field(gt=0, lt=1)]
AtLeastOne = Annotated[float, Field(ge=1)]
PositiveInt = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]

PhaseStrategy = Annotated[
    Annotated[
        SingleSpec | AllreduceSpec | LocalSgdSpec | ParameterServerSpec,
        Field(discriminator="name"),
    ],
    BeforeValidator(name_only),
]


class _Moment(Spec):
    at: InnerShare | Literal["auto"] | None = None
    """Share of all samples after which it begins, or auto: when it pays and does no harm."""
    epoch: Annotated[float, Field(gt=0)] | None = None
    """Epochs after which it begins."""
    lr_drop: PositiveInt | None = None
    """Begin at this decay of the learning rate, counted from 1; needs schedule milestones."""

    @property
    def is_given(self) -> bool:
        """Whether any moment was named."""
        return any(one is not None for one in (self.at, self.epoch, self.lr_drop))

    @model_validator(mode="after")
    def _one_moment(self) -> _Moment:
        given = [key for key in ("at", "epoch", "lr_drop") if getattr(self, key) is not None]
        if len(given) > 1:
            raise fault(
                f"{given[0]} and {given[1]} both say when the phase begins",
                "; give one of at, epoch and lr_drop",
                at=(given[1],),
            )
        return self


class PhaseSpec(_Moment):
    """One phase: a strategy, and when it begins."""

    strategy: PhaseStrategy
    """Any strategy but switch, with its settings."""


class AutoSpec(Spec):
    """When `at: auto` switches: the learning rate has fallen, gradients are mostly noise, it pays.

    Every threshold must hold in `windows` windows in a row.
    """

    rel_lr: Annotated[float, Field(gt=0, le=1)] = 0.2
    """The learning rate is at most this share of its peak."""
    noise: Annotated[float, Field(ge=0)] = 2.0
    """The gradient noise scale is at least this many global batches."""
    gain: AtLeastOne = 1.1
    """The next phase is expected to process at least this many times the samples per second."""
    amortise: Annotated[float, Field(ge=0)] = 3.0
    """The time saved is at least this many times the time that the switch takes."""
    after: Annotated[float, Field(ge=0, lt=1)] = 0.03
    """Share of all samples before which nothing is decided."""
    every: PositiveInt = 10
    """Steps per window: how often gradients are measured and workers agree."""
    windows: PositiveInt = 3
    """Windows in a row that must agree."""
    canary: Annotated[float, Field(gt=1)] | None = 1.5
    """Roll back when the training loss rises above this many times its value at the switch; null:
    never."""
    canary_after: InnerShare = 0.05
    """Share of the samples left at the switch after which the canary looks."""
    max_rollbacks: Count = 2
    """How often a job may go back; each time the gain required for the next switch doubles."""


class StragglerSpec(Spec):
    """What is done when a machine turns slow during a synchronous phase."""

    slow: Annotated[float, Field(gt=1)] = 1.3
    """A worker counts as slow above this many times the median time per sample."""
    window_s: Annotated[float, Field(gt=0)] = 1.0
    """Seconds over which workers are compared; shorter ones see every hiccup."""
    windows: PositiveInt = 3
    """Windows in a row before anything is done, and before it is undone."""
    reshare: bool = True
    """Answer first with uneven batches: each worker gets samples in proportion to its speed."""
    loosen_above: Annotated[float, Field(gt=1)] | None = 3.0
    """Beyond this slowness uneven batches are not enough: go to `loosen_to` until it recovers;
    null: never."""
    loosen_to: PhaseStrategy = ParameterServerSpec(servers="colocated", dispatch="dynamic")
    """The looser strategy."""
    max_changes: Annotated[int, Field(ge=2)] = 4
    """Changes per job, so that it never flaps; the last one is kept for undoing."""


class SwitchSpec(_Moment):
    """Start with one strategy and finish with another, inside the living processes."""

    name: Literal["switch"] = "switch"
    phases: ListOf[PhaseSpec] = ()
    """What follows what; default: allreduce, then an asynchronous parameter_server on the workers'
    machines at the moment given by `at`, `epoch` or `lr_drop`."""
    momentum: Literal["keep", "zero", "scale"] = "keep"
    """What becomes of the optimiser's momentum at a switch; scale: divided by the workers when
    going to an asynchronous phase."""
    ramp_steps: Count = 50
    """Global batches over which the rate climbs after a switch to an asynchronous phase."""
    ramp_from: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the rate at which that climb starts."""
    handover: Literal["live", "restart"] = "live"
    """live: the same processes change roles; restart: through a checkpoint and new processes, as
    others do it, to compare with."""
    auto: AutoSpec = AutoSpec()
    """Thresholds of `at: auto`."""
    straggler: StragglerSpec | None = None
    """React to machines that turn slow; null: do not."""

    @model_validator(mode="after")
    def _restart_is_plain(self) -> SwitchSpec:
        if self.handover == "live":
            return self
        others = {
            "at: auto": any(phase.at == "auto" for phase in self.resolved),
            "straggler": self.straggler is not None,
            f"momentum: {self.momentum}": self.momentum != "keep",
        }
        for words, is_set in others.items():
            if is_set:
                raise fault(
                    f"handover: restart is there to compare with and does not go with '{words}'",
                    "; use 'handover: live'",
                    at=("handover",),
                )
        return self

    @model_validator(mode="after")
    def _phases_have_moments(self) -> SwitchSpec:
        if not self.phases:
            return self
        if self.is_given:
            key = next(key for key in ("at", "epoch", "lr_drop") if getattr(self, key) is not None)
            raise fault(
                f"strategy.{key} is for the two default phases",
                "; with 'phases', give each phase but the first a moment of its own",
                at=(key,),
            )
        if len(self.phases) < 2:
            raise fault("strategy.phases takes at least two phases", at=("phases",))
        if self.phases[0].is_given:
            raise fault("the first phase begins at once and takes no moment", at=("phases",))
        for number, phase in enumerate(self.phases[1:], start=2):
            if not phase.is_given:
                raise fault(
                    f"phase {number} does not say when it begins",
                    "; give it at, epoch or lr_drop",
                    at=("phases",),
                )
            before = self.phases[number - 2].strategy
            if phase.at == "auto" and not isinstance(before, AllreduceSpec):
                raise fault(
                    f"phase {number} begins by itself, which needs the gradients of an allreduce "
                    f"phase before it, not of {before.name}",
                    "; give it at, epoch or lr_drop",
                    at=("phases",),
                )
        return self

    @property
    def resolved(self) -> tuple[PhaseSpec, ...]:
        """The phases, with those that the short form stands for."""
        if self.phases:
            return self.phases
        at = self.at if self.is_given else 0.5
        second = ParameterServerSpec(servers="colocated", dispatch="dynamic")
        return (
            PhaseSpec(strategy=AllreduceSpec()),
            PhaseSpec(strategy=second, at=at, epoch=self.epoch, lr_drop=self.lr_drop),
        )
