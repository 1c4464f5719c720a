"""Describe the strategy `switch`: phases, each another strategy, their moments and their jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import override

from phalanx.spec.base import ListOf, Spec, fault, name_only
from phalanx.spec.data import BatchSpec
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec, SingleSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.registry import ByName, Registry
from phalanx.spec.strategy import FailureLimit, ProcessCounts, StrategySpec

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec

InnerShare = Annotated[float, Field(gt=0, lt=1)]
AtLeastOne = Annotated[float, Field(ge=1)]
PositiveInt = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]

MOMENTS = ("at", "epoch", "lr_drop")
"""Keys of the moment at which a phase begins."""


def _table() -> Registry[Any]:
    # The table lists this strategy too, so it cannot be imported before.
    from phalanx.spec.kinds import STRATEGIES

    return STRATEGIES


PhaseStrategy = Annotated[
    StrategySpec,
    ByName((SingleSpec, AllreduceSpec, LocalSgdSpec, ParameterServerSpec), _table),
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
        given = [key for key in MOMENTS if getattr(self, key) is not None]
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
    """Share of the samples left at the switch after which the canary compares."""
    max_rollbacks: Count = 2
    """How often a job may go back; each time the gain required for the next switch doubles."""


class StragglerSpec(Spec):
    """Reaction to a machine that turns slow during a synchronous phase."""

    slow: Annotated[float, Field(gt=1)] = 1.3
    """A worker counts as slow above this many times the median time per sample."""
    window_s: Annotated[float, Field(gt=0)] = 1.0
    """Seconds over which workers are compared; shorter ones see every hiccup."""
    windows: PositiveInt = 3
    """Windows in a row before anything is done, and before it is undone."""
    reshare: bool = True
    """React first with uneven batches: each worker gets samples in proportion to its speed."""
    loosen_above: Annotated[float, Field(gt=1)] | None = 3.0
    """Beyond this slowness uneven batches are not enough: go to `loosen_to` until it recovers;
    null: never."""
    loosen_to: PhaseStrategy = ParameterServerSpec(servers="colocated", dispatch="dynamic")
    """The looser strategy."""
    max_changes: Annotated[int, Field(ge=2)] = 4
    """Changes per job, so that it never flaps; the last one is kept for undoing."""


class SwitchSpec(_Moment, StrategySpec):
    """Start with one strategy and finish with another, inside the same processes."""

    name: Literal["switch"] = "switch"
    phases: ListOf[PhaseSpec] = ()
    """Strategies in order, each but the first with its moment, or the moments beside the list (one,
    or a list of them). Default: allreduce, then an asynchronous parameter_server on the
    workers' machines."""
    momentum: Literal["keep", "zero", "scale"] = "keep"
    """Treatment of the optimiser's momentum at a switch; scale: divided by the workers when going
    to an asynchronous phase."""
    ramp_steps: Count = 50
    """Global batches over which the rate climbs after a switch to an asynchronous phase."""
    ramp_from: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the rate at which that climb starts."""
    handover: Literal["live", "restart"] = "live"
    """live: the same processes change roles; restart: through a checkpoint and new processes,
    for comparison."""
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

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, value: object) -> object:
        return spelled_out(value) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _phases_have_moments(self) -> SwitchSpec:
        if not self.phases:
            return self
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
            if phase.at == "auto" and not before.measures_gradient_noise:
                raise fault(
                    f"phase {number} begins by itself, which needs the gradients of an allreduce "
                    f"phase before it, not of {before.name}",
                    "; give it at, epoch or lr_drop",
                    at=("phases",),
                )
        return self

    @property
    def decides(self) -> bool:
        """Whether the run itself may end a phase early: `at: auto`, or stragglers."""
        return self.straggler is not None or any(phase.at == "auto" for phase in self.resolved)

    def ends_early(self, strategy: StrategySpec) -> bool:
        """Return whether a phase of this strategy can end before its moment.

        Its processes then agree on the end, which costs those that rarely exchange too much.
        """
        if self.handover == "restart":
            return False
        agrees = strategy.updates_on_servers or strategy.measures_gradient_noise
        return agrees or self.decides

    @property
    @override
    def resolved(self) -> tuple[PhaseSpec, ...]:
        if self.phases:
            return self.phases
        at = self.at if self.is_given else 0.5
        second = ParameterServerSpec(servers="colocated", dispatch="dynamic")
        return (
            PhaseSpec(strategy=AllreduceSpec()),
            PhaseSpec(strategy=second, at=at, epoch=self.epoch, lr_drop=self.lr_drop),
        )

    @override
    def strategies(self) -> tuple[StrategySpec, ...]:
        looser = () if self.straggler is None else (self.straggler.loosen_to,)
        return (*(phase.strategy for phase in self.resolved), *looser)

    @property
    @override
    def synchronous(self) -> bool:
        return all(one.synchronous for one in self.strategies())

    @property
    @override
    def bucket_size(self) -> int | None:
        # The gradient is cut once for all phases.
        sizes = [one.bucket_size for one in self.strategies()]
        return next((size for size in sizes if size is not None), None)

    @property
    @override
    def tolerated_failures(self) -> FailureLimit:
        return max(one.tolerated_failures for one in self.strategies())

    @override
    def processes(self, num_workers: int) -> ProcessCounts:
        # Servers and evaluators of a later phase are started with the run and wait for it.
        counts = [one.processes(num_workers) for one in self.strategies()]
        return ProcessCounts(
            workers=num_workers,
            servers=max(one.servers for one in counts),
            evaluators=max(one.evaluators for one in counts),
        )

    @override
    def label(self) -> str:
        return "switch " + " to ".join(phase.strategy.phase_label() for phase in self.resolved)

    @override
    def check(self, job: JobSpec) -> None:
        for phase in self.resolved:
            phase.strategy.check(job)
            _check_moment(phase, job)
        self._check_order(job)
        if self.straggler is not None:
            self.straggler.loosen_to.check(job)
        self.refuse_shards(job, "cuts batches by sample, not by")

    @override
    def check_distribution(self, job: JobSpec) -> None:
        if job.data.owns_samples:
            raise fault(
                "strategy switch cuts every batch over the workers, so no worker owns samples",
                "; leave distribution out, or set stream",
                at=("data", "distribution"),
            )

    def _check_order(self, job: JobSpec) -> None:
        """Check that each phase begins after the one before; those with `at: auto` fit anywhere."""
        before, number_before = 0.0, 1
        for number, phase in enumerate(self.resolved[1:], start=2):
            if phase.at == "auto":
                continue
            share = _share_at(phase, job)
            if share <= before:
                raise fault(
                    f"phase {number} begins after {share:.4g} of the samples, but phase "
                    f"{number_before} after {before:.4g}",
                    "; phases come in the order of their moments",
                    at=("strategy",),
                )
            before, number_before = share, number


def spelled_out(settings: Mapping[str, object]) -> dict[str, object]:
    """Write the short forms of `phases` out: strategies as phases, moments with their phase.

    What has another form is left as it is, for the validators behind this one.

    Raises:
        PydanticCustomError: Moments beside the list do not go with the phases in it.
    """
    found = dict(settings)
    raw = found.get("phases")
    if not isinstance(raw, list | tuple) or not raw:
        return found
    phases = [_as_phase(one) for one in raw]
    for key in MOMENTS:
        if found.get(key) is not None:
            _hand_out(key, found.pop(key), phases)
    return {**found, "phases": phases}


def _as_phase(value: object) -> object:
    """Let a strategy stand for the phase, with or without its moment."""
    if isinstance(value, str):
        return {"strategy": value}
    if not isinstance(value, Mapping) or "strategy" in value or "name" not in value:
        return value
    moments = {key: value[key] for key in MOMENTS if key in value}
    return {"strategy": {k: v for k, v in value.items() if k not in moments}, **moments}


def _hand_out(key: str, given: object, phases: list[object]) -> None:
    """Give each phase but the first its moment from those beside the list."""
    moments: Sequence[object] = given if isinstance(given, list | tuple) else [given]
    needed = len(phases) - 1
    if len(moments) != needed:
        have = "1 moment" if len(moments) == 1 else f"{len(moments)} moments"
        raise fault(
            f"strategy.{key} has {have}, but {len(phases)} phases need {needed}, one for each but "
            "the first",
            at=(key,),
        )
    for number, moment in enumerate(moments, start=2):
        phase = phases[number - 1]
        if not isinstance(phase, Mapping):
            continue
        own = [name for name in MOMENTS if phase.get(name) is not None]
        if own:
            raise fault(
                f"strategy.{key} and {own[0]} of phase {number} both say when it begins",
                "; give one of them",
                at=(key,),
            )
        phases[number - 1] = {**phase, key: moment}


def _check_moment(phase: PhaseSpec, job: JobSpec) -> None:
    if phase.epoch is not None and phase.epoch >= job.epochs:
        raise fault(
            f"a phase is to begin after epoch {phase.epoch:g}, but the job ends after {job.epochs}",
            at=("strategy",),
        )
    if phase.lr_drop is None:
        return
    if job.schedule.name != "milestones":
        raise fault(
            f"lr_drop needs a schedule with decays, not '{job.schedule.name}'",
            "; set 'schedule: {name: milestones, at: [0.5, 0.75]}' or use 'at'",
            at=("strategy",),
        )
    num_drops = len(job.schedule.drops(job.epochs))
    if phase.lr_drop > num_drops:
        raise fault(
            f"lr_drop {phase.lr_drop} never comes: the schedule has {num_drops} decays",
            at=("strategy",),
        )


def _share_at(phase: PhaseSpec, job: JobSpec) -> float:
    """Return the share of all samples after which a phase begins."""
    if phase.epoch is not None:
        return phase.epoch / job.epochs
    if phase.lr_drop is not None:
        return job.schedule.drops(job.epochs)[phase.lr_drop - 1]
    assert isinstance(phase.at, float)
    return phase.at


LOOSENED = -1
"""Stands for the looser strategy of the straggler reaction among the numbers of phases."""


def strategy_of(job: JobSpec, phase: int) -> StrategySpec:
    """Return the strategy of a phase of a job that switches."""
    switch = job.strategy
    assert isinstance(switch, SwitchSpec)
    if phase == LOOSENED:
        assert switch.straggler is not None
        return switch.straggler.loosen_to
    return switch.resolved[phase].strategy


def phase_job(job: JobSpec, phase: int, shares: Sequence[float] = ()) -> JobSpec:
    """Return the job of a phase.

    Args:
        job: One that switches.
        phase: Which.
        shares: Relative share of the global batch per worker; empty: as the job says.
    """
    changes: dict[str, object] = {"strategy": strategy_of(job, phase)}
    if shares:
        changes["batch"] = BatchSpec.model_validate(
            {"global": job.global_batch, "shares": tuple(shares)}
        )
    return job.model_copy(update=changes)
