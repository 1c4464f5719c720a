"""The job: everything that one training run is asked to do, with every default in one place."""

from __future__ import annotations

import os.path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from phalanx.spec.backend import Backend, check_backend
from phalanx.spec.base import ListOf, Spec, Words, fault
from phalanx.spec.data import BatchSpec, DataField, DataSpec
from phalanx.spec.infer import InferSpec
from phalanx.spec.inject import InjectSpec
from phalanx.spec.lockstep import AllreduceSpec, InProcessSpec
from phalanx.spec.model import MnistCnnSpec, ModelSpec
from phalanx.spec.observe import ObserveSpec, ProfileSpec
from phalanx.spec.optimize import (
    ConstantSpec,
    EarlyStopSpec,
    LossField,
    LossSpec,
    MilestonesSpec,
    OptimizerSpec,
    ScheduleSpec,
    SgdSpec,
)
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.registry import add_import_path
from phalanx.spec.split import SplitSpec
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import PhaseSpec, PhaseStrategy, SwitchSpec

Seconds = Annotated[float, Field(gt=0)]


class CheckpointSpec(Spec):
    """When the state is written down, and how much of it is kept."""

    every_epochs: Annotated[int, Field(gt=0)] | None = 1
    """Write after this many epochs; null: only `every_steps`."""
    every_steps: Annotated[int, Field(gt=0)] | None = None
    """Write after this many steps as well; null: only at epochs."""
    keep: Annotated[int, Field(gt=0)] = 2
    """The newest ones that are kept."""
    best: Literal["val_loss", "val_accuracy"] | None = "val_accuracy"
    """Keep the best by this measure too; null: keep none."""


class DeadlineSpec(Spec):
    """How long anything may take before it counts as failed."""

    start_s: Seconds = 120.0
    """From launch until every worker has joined."""
    exchange_s: Seconds = 60.0
    """One collective exchange."""
    heartbeat_s: Seconds = 7.0
    """Silence after which a worker counts as frozen."""
    stop_s: Seconds = 5.0
    """From asking a worker to end until it is killed."""


class JobSpec(Spec):
    """One training run."""

    name: Annotated[
        str,
        # The name becomes a directory: no slash, no leading dot or dash, and one byte a letter.
        Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=80),
        Words("up to 80 of a-z, A-Z, 0-9, '_', '.' and '-', not starting with '.' or '-'"),
    ] = "job"
    """Names the run directory."""
    model: ModelSpec = MnistCnnSpec()
    """A built-in network or `package.module:function`."""
    data: DataField = DataSpec(name="digits")
    """What to learn from."""
    batch: BatchSpec = BatchSpec.model_validate({"global": 128})
    """Samples per step, over all workers or on each."""
    optimizer: OptimizerSpec = SgdSpec()
    """The update rule."""
    schedule: ScheduleSpec = ConstantSpec()
    """The learning rate over the run, indexed by samples seen."""
    loss: LossField = LossSpec()
    """What is minimised."""
    epochs: Annotated[int, Field(gt=0)] = 1
    """Passes over the training data."""
    early_stop: EarlyStopSpec | None = None
    """End early when validation stops improving."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    """Decides initial weights, sample order, augmentation and dropout."""
    workers: Annotated[int, Field(gt=0, le=4096)] = 1
    """Processes that compute gradients."""
    threads: Annotated[int, Field(gt=0)] | Literal["auto"] = "auto"
    """Compute threads per worker; auto: cores divided by workers, at least one."""
    pin: bool = True
    """Give each worker cores of its own when there are enough."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """auto: bf16 where the CPU has it and a short measurement shows that it is faster."""
    strategy: StrategySpec = AllreduceSpec()
    """Who exchanges what, when."""
    backend: Backend = "native"
    """Whose engine runs it: native (this system on PyTorch), tensorflow (tf.distribute and Keras 3)
    or ddp (torch's DistributedDataParallel); the last two to compare with, and for Keras models."""
    evaluate: Literal["epoch", "end", "never"] = "epoch"
    """When the validation set is measured; the test set once at the end, unless never."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """What is written down, and when."""
    observe: ObserveSpec = ObserveSpec()
    """How processes and machines are watched."""
    profile: ProfileSpec | None = None
    """Take the times of operators in some epochs; null: in none."""
    infer: InferSpec | None = None
    """Measure how fast the trained network answers, at the end; null: do not."""
    deadlines: DeadlineSpec = DeadlineSpec()
    """How long anything may take."""
    inject: ListOf[InjectSpec] = ()
    """Workers that are slowed down on purpose, for studies and tests."""
    python_path: ListOf[Annotated[str, AfterValidator(os.path.abspath)]] = ()
    """Folders from which `package.module:name` is imported, besides the one where `phalanx` is
    called; seen from the job file. Their code is sent to other machines."""

    @model_validator(mode="before")
    @classmethod
    def _make_importable(cls, data: object) -> object:
        # Before any part is validated: its kind may have to be imported for that.
        if isinstance(data, dict):
            add_import_path(data.get("python_path"))
        return data

    @model_validator(mode="after")
    def _combinations(self) -> JobSpec:
        shares = self.batch.shares
        if shares is not None and len(shares) != self.workers:
            raise fault(
                f"batch.shares takes one entry per worker ({self.workers}), not {len(shares)}",
                at=("batch", "shares"),
            )
        if isinstance(self.strategy, SwitchSpec):
            self._check_switch(self.strategy)
        elif isinstance(self.strategy, SplitSpec):
            self._check_split(self.strategy)
        elif not isinstance(self.strategy, InProcessSpec):
            self._check_strategy(self.strategy)
        self._check_profile()
        self._check_distribution()
        for one in self.inject:
            if one.rank >= self.workers:
                raise fault(
                    f"inject names rank {one.rank}, but the {self.workers} workers have ranks up "
                    f"to {self.workers - 1}",
                    at=("inject",),
                )
        if self.evaluate == "never" and self.early_stop is not None:
            raise fault("early_stop needs evaluation", "; set 'evaluate: epoch'", at=("evaluate",))
        if self.evaluate == "end" and self.early_stop is not None and self.early_stop.bar:
            raise fault("early_stop.bar needs 'evaluate: epoch'", at=("evaluate",))
        served = isinstance(self.strategy, ParameterServerSpec | SwitchSpec)
        if self.infer is not None and (served or self.backend != "native"):
            raise fault(
                f"infer measures single, allreduce, local_sgd and split, not '{self.strategy.name}'"
                f"{'' if self.backend == 'native' else f' on {self.backend}'}",
                "; use `phalanx infer` on the finished run",
                at=("infer",),
            )
        check_backend(self)
        return self

    def _check_strategy(self, strategy: PhaseStrategy) -> None:
        if strategy.name == "single" and self.workers != 1:
            raise fault(
                f"strategy 'single' takes 1 worker, not {self.workers}",
                "; set 'workers: 1' or a strategy such as allreduce",
                at=("workers",),
            )
        if not isinstance(strategy, ParameterServerSpec):
            return
        strategy.check_workers(self.workers)
        if self.optimizer.clip_norm is not None and strategy.servers != 1:
            raise fault(
                "optimizer.clip_norm needs the whole gradient in one place",
                "; set 'strategy.servers: 1' or leave it out",
                at=("optimizer", "clip_norm"),
            )
        if self.data.shard in ("file", "off"):
            raise fault(
                f"parameter_server hands batches out by sample, not by '{self.data.shard}'",
                "; set 'shard: auto'",
                at=("data", "shard"),
            )

    def _check_split(self, split: SplitSpec) -> None:
        split.check_workers(self.workers)
        if self.batch.shares is not None:
            raise fault(
                "split has no shares of the batch: every worker sees all of it",
                "; leave 'batch.shares' away, or set 'strategy.replicate'",
                at=("batch", "shares"),
            )
        if self.data.shard in ("file", "off"):
            raise fault(
                f"split gives every worker all samples, not those of '{self.data.shard}'",
                "; set 'shard: auto'",
                at=("data", "shard"),
            )
        if self.precision == "auto":
            raise fault(
                "split does not measure precisions",
                "; set 'precision: fp32' or 'bf16'",
                at=("precision",),
            )

    def _check_switch(self, switch: SwitchSpec) -> None:
        for phase in switch.resolved:
            self._check_strategy(phase.strategy)
            self._check_moment(phase)
        self._check_order(switch)
        if switch.straggler is not None:
            self._check_strategy(switch.straggler.loosen_to)
        if self.data.shard in ("file", "off"):
            raise fault(
                f"switch cuts batches by sample, not by '{self.data.shard}'",
                "; set 'shard: auto'",
                at=("data", "shard"),
            )

    def _check_moment(self, phase: PhaseSpec) -> None:
        if phase.epoch is not None and phase.epoch >= self.epochs:
            raise fault(
                f"a phase is to begin after epoch {phase.epoch:g}, but the job ends after "
                f"{self.epochs}",
                at=("strategy",),
            )
        if phase.lr_drop is None:
            return
        if not isinstance(self.schedule, MilestonesSpec):
            raise fault(
                f"lr_drop needs a schedule with decays, not '{self.schedule.name}'",
                "; set 'schedule: {name: milestones, at: [0.5, 0.75]}' or use 'at'",
                at=("strategy",),
            )
        num_drops = len(self.schedule.at or self.schedule.at_epochs)
        if phase.lr_drop > num_drops:
            raise fault(
                f"lr_drop {phase.lr_drop} never comes: the schedule has {num_drops} decays",
                at=("strategy",),
            )

    def _check_order(self, switch: SwitchSpec) -> None:
        """Each phase begins after the one before; those that begin by themselves fit anywhere."""
        before, number_before = 0.0, 1
        for number, phase in enumerate(switch.resolved[1:], start=2):
            if phase.at == "auto":
                continue
            share = self._share_at(phase)
            if share <= before:
                raise fault(
                    f"phase {number} begins after {share:.4g} of the samples, but phase "
                    f"{number_before} after {before:.4g}",
                    "; phases come in the order of their moments",
                    at=("strategy",),
                )
            before, number_before = share, number

    def _share_at(self, phase: PhaseSpec) -> float:
        """Share of all samples after which a phase begins."""
        if phase.epoch is not None:
            return phase.epoch / self.epochs
        if phase.lr_drop is not None:
            assert isinstance(self.schedule, MilestonesSpec)
            if self.schedule.at:
                return self.schedule.at[phase.lr_drop - 1]
            return self.schedule.at_epochs[phase.lr_drop - 1] / self.epochs
        assert isinstance(phase.at, float)
        return phase.at

    def _check_distribution(self) -> None:
        distribution = self.data.distribution
        if distribution is None:
            return
        capacity = distribution.capacity
        if capacity is not None and len(capacity) != self.workers:
            raise fault(
                f"distribution.capacity takes one entry per worker ({self.workers}), not "
                f"{len(capacity)}",
                at=("data", "distribution", "capacity"),
            )
        at = ("data", "distribution")
        if isinstance(self.strategy, ParameterServerSpec):
            dynamic = self.strategy.dispatch == "dynamic"
            if dynamic == self.data.owns_samples:
                needed = "static" if dynamic else "dynamic"
                raise fault(
                    f"distribution {distribution.name} and 'dispatch: {self.strategy.dispatch}' "
                    "contradict each other",
                    f"; set 'strategy.dispatch: {needed}'",
                    at=at,
                )
        if self.strategy.name == "split" and distribution.name != "by_modality":
            raise fault(
                "strategy split shows every batch to all workers, so nobody owns samples",
                "; leave distribution out, or set by_modality",
                at=at,
            )
        if isinstance(self.strategy, SwitchSpec) and self.data.owns_samples:
            raise fault(
                "strategy switch cuts every batch over the workers, so nobody owns samples",
                "; leave distribution out, or set stream",
                at=at,
            )
        if self.backend != "native" and self.data.owns_samples:
            raise fault(
                f"backend {self.backend} has no data.distribution",
                "; leave it out, or set 'backend: native'",
                at=at,
            )

    def _check_profile(self) -> None:
        last = max((last for _, last in self.profile.ranges()), default=0) if self.profile else 0
        if last > self.epochs:
            raise fault(
                f"profile.epochs names epoch {last}, but the job has {self.epochs}",
                "; raise 'epochs' or profile earlier ones",
                at=("profile", "epochs"),
            )

    @property
    def worker_processes(self) -> int:
        """Processes that the workers live in."""
        return 1 if isinstance(self.strategy, InProcessSpec) else self.workers

    @property
    def global_batch(self) -> int:
        """Samples per step over all workers together."""
        return self.batch.global_size(self.workers)
