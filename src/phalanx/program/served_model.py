"""Hold a script's model as servers need it: they make the steps of its optimiser.

The script computes as ever; in `optimizer.step()` its gradient leaves for the servers, together
with the options of the optimiser's groups, and the new parameters arrive in its module. The
script's own optimiser keeps nothing but these options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import override

from phalanx.data.stream import Batch
from phalanx.engine.flat import OnBucketReady
from phalanx.engine.layout import FlatLayout, Range
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.optimizer_factory import OptimizerFactory
from phalanx.engine.recipe import Cuts, OptimizerRecipe
from phalanx.engine.result import StepResult
from phalanx.engine.torch_rule import TorchRule
from phalanx.errors import EngineError, SpecError
from phalanx.program.gradients import ScriptGradients
from phalanx.program.joint_optimizer import JointFactory, JointRule, join_layouts
from phalanx.program.model import SCRIPT, ScriptModel, ScriptReplica
from phalanx.program.own_stream import OwnStream
from phalanx.program.session import Declared, ModelSetup
from phalanx.program.tickets import TicketBatch
from phalanx.program.turn import ScriptBatch
from phalanx.program.turns import ScriptTurns
from phalanx.spec.torch_optimizer import TorchOptimizerSpec
from phalanx.wire.push_options import PushOptions


def check_served(declared: Declared) -> None:
    """Refuse what servers cannot do for a script.

    Raises:
        SpecError: It has declared something of that kind.
    """
    for setup in declared.setups:
        # Optimisers that are not made by a call of their class, such as a framework's, say so.
        reason = getattr(setup.optimizer, "why_not_served", None)
        if reason is not None:
            raise SpecError(str(reason))
    if isinstance(declared.source, OwnStream):
        raise SpecError(
            "session.data(own=True) needs one strategy under which all workers step together, such "
            "as allreduce or local_sgd"
        )
    data = declared.data
    counts = data is not None and data.count is not None
    counts = counts or declared.setups[0].loss == "update_mean"
    if counts and declared.accumulate > 1:
        raise SpecError(
            "session.data(count=) or setup(loss='update_mean') with setup(accumulate=) needs the "
            "counts of all workers before gradients are added up, which parameter servers do not "
            "have; use allreduce or local_sgd"
        )


def check_switched(declared: Declared) -> None:
    """Refuse data whose position phases with and without servers would count differently.

    Raises:
        SpecError: It is of that kind.
    """
    source = declared.source
    if source.counts_rows and not source.is_even:
        raise SpecError(
            "the updates of this script differ in their samples, so that a switch of strategy "
            "could not say where the data stands; give the DataLoader drop_last=True and batches "
            "of one size"
        )


class ServedWeights:
    """Weigh the losses of a ticket, so that servers find the gradient of the whole batch.

    Args:
        declared: By the script.
        in_rounds: Whether every update takes a part of every worker.
        is_alone: Whether there is no other worker, so that gradients stay as they are.
    """

    def __init__(self, declared: Declared, *, in_rounds: bool, is_alone: bool = False) -> None:
        assert declared.data is not None
        self._is_alone = is_alone
        self.loss = declared.setups[0].loss
        self._count = declared.data.count if self.loss != "sum" else None
        self._usual = declared.source.batch_size
        self._in_rounds = in_rounds

    def weights(self, batch: ScriptBatch) -> Callable[[int], float]:
        """Return the weight of each batch of an update."""
        return lambda index: self._weight(batch, index)

    def total(self, batch: TicketBatch) -> float:
        """Return what the gradient is weighed by, of the batch's `global_count`."""
        if self._is_alone:
            return float(batch.global_count)
        if self._count is not None:
            counted = sum(self._counted(one.payload) for one in batch.micro if one.num_rows)
            return counted / self._usual * batch.global_count
        return float(sum(one.num_rows for one in batch.micro))

    def _weight(self, batch: ScriptBatch, index: int) -> float:
        one = batch.micro[index]
        if not one.num_rows or self.loss == "sum" or self._is_alone:
            return float(one.num_rows > 0)
        if self._count is not None:
            # Servers divide by the sum of all workers' weights, whatever their unit.
            return self._counted(one.payload) / self._usual
        return one.num_rows / (one.global_rows if self._in_rounds else self._usual)

    def _counted(self, payload: object) -> float:
        assert self._count is not None
        return float(self._count(payload))


class UpdateSchedule:
    """Step a scheduler that the script steps in every update for updates that others make."""

    def __init__(self, scheduler: Any) -> None:
        follows = isinstance(scheduler, LRScheduler) and not isinstance(
            scheduler, ReduceLROnPlateau
        )
        self._scheduler: LRScheduler | None = scheduler if follows else None
        self._last: tuple[int, int, int] | None = None
        """Epoch, update and count of the scheduler where this worker's last update began."""
        self._per_update: int | None = None
        self._missed = 0

    def start_at(self, update: int) -> None:
        """Note that the scheduler's state is that before an update."""
        if self._scheduler is not None:
            self._last = (-1, update - 1, self._scheduler.last_epoch)

    def begin(self, epoch: int, update: int) -> None:
        """Catch up with the updates that this worker has not seen."""
        scheduler = self._scheduler
        if scheduler is None:
            return
        if self._last is not None:
            before, last, count = self._last
            # Less than none where it computes two parts of one update.
            self._missed += update - last - 1
            if before == epoch:
                self._per_update = scheduler.last_epoch - count
        for _ in range(max(0, self._missed) * (self._per_update or 0)):
            scheduler.step()
        if self._per_update is not None:
            self._missed = min(0, self._missed)
        self._last = (epoch, update, scheduler.last_epoch)


class UpdateSchedules:
    """The schedulers of all models of a script."""

    def __init__(self, setups: Sequence[ModelSetup]) -> None:
        self._all = [UpdateSchedule(one.scheduler) for one in setups]

    def start_at(self, update: int) -> None:
        """Note that the schedulers' state is that before an update."""
        for one in self._all:
            one.start_at(update)

    def begin(self, epoch: int, update: int) -> None:
        """Catch up with the updates that this worker has not seen."""
        for one in self._all:
            one.begin(epoch, update)


class ServedModel(ScriptModel):
    """A script's models, whose updates servers make (`engine.trained.WholeReplica`).

    A batch is computed by as many calls of `forward_backward` as there are models: each returns
    where the script steps another optimiser, and reports the gradient of its model.

    Args:
        setups: What the script declared.
        turns: Takes turns with it.
        bucket_bytes: Of gradients that travel together; None chooses by model size.
        is_alone: Whether there is no other worker, so that the script may change its gradients.
        steps: Whether this process updates the parameters, too, in phases without servers.
    """

    def __init__(
        self,
        setups: Sequence[ModelSetup],
        turns: ScriptTurns,
        *,
        bucket_bytes: int | None,
        is_alone: bool,
        steps: bool = False,
    ) -> None:
        super().__init__(setups, turns, bucket_bytes=bucket_bytes)
        self._turns = turns
        self._is_alone = is_alone
        self.factory = make_factory(setups, [one.layout for one in self.replicas])
        self.optimizer: FlatOptimizer | None = None
        if steps:
            self.optimizer = self.factory.build(self.parameters)
            self._step_by(self.optimizer)
        self.schedule = UpdateSchedules(setups)
        self.serves = True
        """Whether servers make the updates in this phase."""
        self.has_one_server = False
        """Whether one server holds all slices, so that it knows the norm of the gradient."""
        self.gradient_weight = 0.0
        self.update_options = b""
        self._batch: TicketBatch | None = None
        self._stepped: set[int] = set()
        """Models whose optimisers have stepped in the present batch."""
        self._clip_norms: list[float | None] = []
        self._written: tuple[int, int] | None = None
        """Epoch, and writes of the script to its parameters when it began."""

    @property
    @override
    def is_served(self) -> bool:
        return self.serves

    @property
    def layout(self) -> FlatLayout:
        """Which parameter lies where."""
        layouts = [one.layout for one in self.replicas]
        return layouts[0] if len(layouts) == 1 else join_layouts(layouts)

    @cached_property
    def buckets(self) -> tuple[Range, ...]:
        """The ranges of `gradients` that are sent one by one."""
        found, start = [], 0
        for one in self.replicas:
            found += [Range(start + part.start, start + part.stop) for part in one.buckets]
            start += one.layout.size
        return tuple(found)

    @property
    def buffers(self) -> Tensor:
        """All running statistics."""
        return self.replicas[0].buffers

    def forward_backward(
        self, batch: Batch, on_bucket_ready: OnBucketReady | None = None, *, step: int
    ) -> StepResult:
        """Let the script compute a ticket, up to the next step of an optimiser.

        No bucket is reported if it makes none.
        """
        assert isinstance(batch, TicketBatch)
        weights = self._turns.scale
        assert isinstance(weights, ServedWeights)
        self.gradient_weight = weights.total(batch)
        index = self._compute(batch)
        if index is not None:
            self._report(index, on_bucket_ready)
        return self._turns.take_result(batch)

    def pass_over(self, batch: Batch, *, step: int) -> None:
        """Let the script compute rows that count nothing, as it counts its updates."""
        assert isinstance(batch, TicketBatch)
        self._compute(batch)
        self._turns.take_result(batch)

    @override
    def clips_elsewhere(self, parameters: Sequence[Tensor], largest: float) -> bool:
        if not self.serves or self._is_alone or not self.has_one_server:
            return False
        for index, replica in enumerate(self.replicas):
            if replica.flat.is_all(parameters):
                known = self._clip_norms[index]
                self._clip_norms[index] = largest if known is None else min(known, largest)
                return True
        return False

    def counts(self, batch: Batch) -> bool:
        """Return False: a script's losses are weighed before they are differentiated."""
        return False

    def apply(self, lr: float) -> None:
        """Refuse: the script calls its optimiser's step."""
        raise EngineError("a script makes its steps by itself")

    @override
    def state(self) -> dict[str, Tensor]:
        state = super().state()
        if self.optimizer is not None:
            state |= {f"optimizer/{key}": one for key, one in self.optimizer.state().items()}
        return state

    @staticmethod
    def script_state_names(prefix: str) -> list[str]:
        """Return how the names of state begin that neither servers nor other workers hold."""
        return [prefix + name for name in (SCRIPT, "buffer/", "frozen/")]

    def load_script_state(self, state: dict[str, Tensor]) -> None:
        """Restore the state of `script_state_names` alone."""
        own = self.state()
        self.load_state({name: state.get(name, own[name]) for name in own})

    def _step_by(self, optimizer: FlatOptimizer) -> None:
        """Make the steps of the script's optimisers in phases without servers.

        By optimisers in the servers' form, so that their state is carried over as any other.
        """
        rule = optimizer.rule
        for index, (setup, replica) in enumerate(zip(self.setups, self.replicas, strict=True)):
            if isinstance(rule, JointRule):
                own = rule.rules[index].rule
                replica.step_by(own)
            else:
                assert isinstance(rule, TorchRule)
                own = rule
                replica.step_by(optimizer)
            setup.apply = partial(_step_here, setup, replica, own)

    def _report(self, index: int, on_bucket_ready: OnBucketReady | None) -> None:
        """Report the gradient of a model whose optimiser steps."""
        flat = self.replicas[index].flat
        self._take_gradient(flat)
        groups = [group for one in self.setups for group in one.optimizer.param_groups]
        self.update_options = PushOptions.of(groups, self._clip_norms[index]).encode()
        first = sum(len(one.buckets) for one in self.replicas[:index])

        def report(bucket: int) -> None:
            if on_bucket_ready is not None:
                on_bucket_ready(first + bucket)

        flat.arm(report)
        flat.finish(is_summed=False)

    def _compute(self, batch: TicketBatch) -> int | None:
        """Let the script run to the next step of an optimiser; None: it makes no more."""
        turns = self._turns
        if batch is not self._batch:
            self._begin(batch)
            turns.reach_step(batch, step=batch.update, rank=batch.part)
        elif turns.entered is not None:
            turns.leave_step()
        assert self._written is not None
        if self._num_writes != self._written[1]:
            raise _changed_by_hand()
        index = turns.entered
        if index is not None and index in self._stepped:
            raise turns.second_step()
        self._stepped |= {index} if index is not None else set()
        return index

    def _begin(self, batch: TicketBatch) -> None:
        turns = self._turns
        turns.epoch = batch.epoch
        turns.leave_last_step()
        self.schedule.begin(batch.epoch, batch.update)
        for one in self.setups:
            # Of a framework, which counts updates by itself.
            follow = getattr(one.optimizer, "follow", None)
            if follow is not None:
                follow(batch.update)
        self._batch = batch
        self._stepped = set()
        self._clip_norms = [one.clip_norm for one in self.setups]
        if self._written is None or self._written[0] != batch.epoch:
            self._written = (batch.epoch, self._num_writes)

    @property
    def _num_writes(self) -> int:
        return sum(one.flat.num_writes for one in self.replicas)

    def check_kept(self, before: Tensor) -> None:
        """Refuse that the script goes on with other parameters than those before its evaluation.

        It may have taken others in between, such as an average that it evaluates.
        """
        if not torch.equal(before, self.parameters):
            raise _changed_by_hand()

    def _take_gradient(self, flat: ScriptGradients) -> None:
        if not flat.is_changed(self._turns.gradient_version):
            return
        if not self._is_alone:
            raise EngineError(
                "the script changes its gradients between loss.backward() and optimizer.step(), "
                "where each worker has only its part of them under parameter servers; clip by "
                "session.setup(..., clip_norm=X), or use allreduce or local_sgd"
            )
        flat.bring_all_home()


def _step_here(setup: ModelSetup, replica: ScriptReplica, rule: TorchRule) -> None:
    if setup.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(setup.model.parameters(), setup.clip_norm)
    replica.flat.bring_all_home()
    options = PushOptions.of(setup.optimizer.param_groups)
    rule.set_options(options.groups)
    rule.update(replica.gradients, options.rate)


def _changed_by_hand() -> EngineError:
    return EngineError(
        "the script changes its parameters by hand, of which parameter servers do not learn; "
        "leave updates to its optimiser, or use allreduce or local_sgd"
    )


def make_factory(setups: Sequence[ModelSetup], layouts: Sequence[FlatLayout]) -> OptimizerFactory:
    """Return what makes optimisers like the script's over slices of its parameters.

    Raises:
        SpecError: They cannot be used so; the reason is quoted.
    """
    # Regulariser, average and limit of a job: a script has its own.
    spec = TorchOptimizerSpec(name="torch.optim:SGD", lr=1.0)
    made = [_factory_of(one, layout, spec) for one, layout in zip(setups, layouts, strict=True)]
    return made[0] if len(made) == 1 else JointFactory(spec, layouts, made)


def _factory_of(
    setup: ModelSetup, layout: FlatLayout, spec: TorchOptimizerSpec
) -> OptimizerFactory:
    # Frameworks' optimisers name one of which copies can be made.
    served_as = getattr(setup.optimizer, "served_as", None)
    optimizer = setup.optimizer if served_as is None else served_as()
    cuts: Cuts | Literal["auto"] = getattr(optimizer, "cuts", "auto")
    recipe = OptimizerRecipe.of(optimizer, setup.model.named_parameters(), cuts=cuts)
    factory = OptimizerFactory(spec, layout, recipe=recipe)
    if setup.clip_norm is not None:
        assert factory.recipe is not None
        factory.recipe = replace(factory.recipe, cuts="whole")
        factory.why_not_cut = "clip_norm needs the whole gradient"
    return factory
