"""Hold a script's model as servers need it: they make the steps of its optimiser.

The script computes as ever; in `optimizer.step()` its gradient leaves for the servers, together
with the options of the optimiser's groups, and the new parameters arrive in its module. The
script's own optimiser keeps nothing but these options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import override

from phalanx.data.stream import Batch
from phalanx.engine.flat import OnBucketReady
from phalanx.engine.layout import FlatLayout, Range
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.optimizer_factory import OptimizerFactory
from phalanx.engine.recipe import OptimizerRecipe
from phalanx.engine.result import StepResult
from phalanx.errors import EngineError, SpecError
from phalanx.program.model import SCRIPT, ScriptModel
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
    if len(declared.setups) > 1:
        raise SpecError(
            "the script has several optimisers, so that one batch is several updates, which "
            "parameter servers cannot count as one; use allreduce or local_sgd"
        )
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


class ServedModel(ScriptModel):
    """A script's one model, whose updates servers make (`engine.trained.WholeReplica`).

    Args:
        setups: What the script declared; one.
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
        (self._setup,) = setups
        self._turns = turns
        self._is_alone = is_alone
        self._flat = self.replicas[0].flat
        self.factory = make_factory(self._setup, self.layout)
        self.optimizer: FlatOptimizer | None = None
        if steps:
            self.optimizer = self.factory.build(self.parameters)
            self.replicas[0].step_by(self.optimizer)
            self._setup.apply = self._step_here
        self.schedule = UpdateSchedule(self._setup.scheduler)
        self.serves = True
        """Whether servers make the updates in this phase."""
        self.has_one_server = False
        """Whether one server holds all slices, so that it knows the norm of the gradient."""
        self.gradient_weight = 0.0
        self.update_options = b""
        self._clip_norm: float | None = None
        self._written: tuple[int, int] | None = None
        """Epoch, and writes of the script to its parameters when it began."""

    @property
    @override
    def is_served(self) -> bool:
        return self.serves

    @property
    def layout(self) -> FlatLayout:
        """Which parameter lies where."""
        return self._flat.layout

    @property
    def buckets(self) -> tuple[Range, ...]:
        """The ranges of `gradients` that are sent one by one."""
        return self._flat.buckets

    @property
    def gradients(self) -> Tensor:
        """What the script's backward passes found."""
        return self._flat.gradients

    @property
    def buffers(self) -> Tensor:
        """All running statistics."""
        return self.replicas[0].buffers

    def forward_backward(
        self, batch: Batch, on_bucket_ready: OnBucketReady | None = None, *, step: int
    ) -> StepResult:
        """Let the script compute a ticket, up to the step of its optimiser.

        No bucket is reported if it makes none.
        """
        assert isinstance(batch, TicketBatch)
        weights = self._turns.scale
        assert isinstance(weights, ServedWeights)
        self.gradient_weight = weights.total(batch)
        self._clip_norm = self._setup.clip_norm
        if self._compute(batch):
            self._take_gradient()
            options = PushOptions.of(self._setup.optimizer.param_groups, self._clip_norm)
            self.update_options = options.encode()
            self._flat.arm(on_bucket_ready)
            self._flat.finish(is_summed=False)
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
        if not self._flat.is_all(parameters):
            return False
        self._clip_norm = largest if self._clip_norm is None else min(self._clip_norm, largest)
        return True

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

    def _step_here(self) -> None:
        """Make the step of the script's optimiser in a phase without servers.

        By an optimiser in the servers' form, so that its state is carried over as any other.
        """
        setup, optimizer = self._setup, self.optimizer
        assert optimizer is not None
        if setup.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(setup.model.parameters(), setup.clip_norm)
        self._flat.bring_all_home()
        options = PushOptions.of(setup.optimizer.param_groups)
        optimizer.set_options(options.groups)
        optimizer.step(self.gradients, options.rate)

    def _compute(self, batch: TicketBatch) -> bool:
        turns = self._turns
        turns.epoch = batch.epoch
        turns.leave_only_step()
        self.schedule.begin(batch.epoch, batch.update)
        if self._written is None or self._written[0] != batch.epoch:
            self._written = (batch.epoch, self._flat.num_writes)
        made = turns.reach_step(batch, step=batch.update, rank=batch.part)
        if self._flat.num_writes != self._written[1]:
            raise _changed_by_hand()
        return made

    def check_kept(self, before: Tensor) -> None:
        """Refuse that the script goes on with other parameters than those before its evaluation.

        It may have taken others in between, such as an average that it evaluates.
        """
        if not torch.equal(before, self.parameters):
            raise _changed_by_hand()

    def _take_gradient(self) -> None:
        if not self._flat.is_changed(self._turns.gradient_version):
            return
        if not self._is_alone:
            raise EngineError(
                "the script changes its gradients between loss.backward() and optimizer.step(), "
                "where each worker has only its part of them under parameter servers; clip by "
                "session.setup(..., clip_norm=X), or use allreduce or local_sgd"
            )
        self._flat.bring_all_home()


def _changed_by_hand() -> EngineError:
    return EngineError(
        "the script changes its parameters by hand, of which parameter servers do not learn; "
        "leave updates to its optimiser, or use allreduce or local_sgd"
    )


def make_factory(setup: ModelSetup, layout: FlatLayout) -> OptimizerFactory:
    """Return what makes optimisers like the script's over slices of its parameters.

    Raises:
        SpecError: It cannot be used so; the reason is quoted.
    """
    recipe = OptimizerRecipe.of(setup.optimizer, setup.model.named_parameters())
    # Regulariser, average and limit of a job: a script has its own.
    spec = TorchOptimizerSpec(name="torch.optim:SGD", lr=1.0)
    factory = OptimizerFactory(spec, layout, recipe=recipe)
    if setup.clip_norm is not None:
        assert factory.recipe is not None
        factory.recipe = replace(factory.recipe, cuts="whole")
        factory.why_not_cut = "clip_norm needs the whole gradient"
    return factory
