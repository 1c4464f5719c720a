"""Describe a job: all settings of one training run, with every default in one place."""

from __future__ import annotations

import os.path
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from phalanx.spec.backend import Backend, check_backend
from phalanx.spec.base import ListOf, Spec, Words, fault
from phalanx.spec.data import METRICS, BatchSpec, DataField, DataSpec
from phalanx.spec.elastic import ElasticSpec, check_elastic
from phalanx.spec.kinds import StrategyField
from phalanx.spec.lockstep import AllreduceSpec
from phalanx.spec.loss import LOSSES, LossField, LossSpec
from phalanx.spec.metrics import MetricField, Monitor, check_monitor
from phalanx.spec.model import MnistCnnSpec, ModelSpec
from phalanx.spec.observe import InferSpec, ObserveSpec, ProfileSpec
from phalanx.spec.optimize import (
    EarlyStopSpec,
    OptimizerField,
    SgdSpec,
)
from phalanx.spec.program import EXCHANGE_S, ProgramSpec, check_program
from phalanx.spec.registry import add_import_path
from phalanx.spec.schedule import ConstantSpec, ScheduleField
from phalanx.spec.strategy import FailureLimit, ProcessCounts

InnerShare = Annotated[float, Field(ge=0, le=1)]


class InjectSpec(Spec):
    """Slow one worker down, as if its machine were slower."""

    rank: Annotated[int, Field(ge=0)]
    """Which worker."""
    slow: Annotated[float, Field(gt=1)] = 2.0
    """Its steps take this many times as long."""
    begin: InnerShare = 0.0
    """Share of all samples after which it turns slow."""
    end: InnerShare = 1.0
    """Share of all samples after which it has recovered."""

    @model_validator(mode="after")
    def _in_order(self) -> InjectSpec:
        if self.end <= self.begin:
            raise fault(
                f"inject.end ({self.end:g}) is not after inject.begin ({self.begin:g})",
                at=("end",),
            )
        return self


Seconds = Annotated[float, Field(gt=0)]


def _below(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise fault(f"'{value}' is not below the folder", "; name a file or folder in it")
    return str(path)


CodePath = Annotated[str, AfterValidator(_below), Words("a file or folder, such as 'helpers'")]


class CheckpointSpec(Spec):
    """When checkpoints are written, and how many are kept."""

    every_epochs: Annotated[int, Field(gt=0)] | None = 1
    """Write after this many epochs; null: only `every_steps`."""
    every_steps: Annotated[int, Field(gt=0)] | None = None
    """Write after this many steps as well; null: only at epochs."""
    keep: Annotated[int, Field(gt=0)] = 2
    """Number of newest checkpoints kept."""
    best: Monitor | None = "val_accuracy"
    """Keep the best by this figure too: val_loss, val_accuracy, or `val_` and the name of a metric;
    values have no accuracy, so theirs is val_loss; null: keep none."""


class DeadlineSpec(Spec):
    """Deadlines of waits; after one has passed, the wait counts as failed."""

    start_s: Seconds = 120.0
    """From launch, or since another process joined or was up, until a process has joined; also the
    silence of a process that starts."""
    exchange_s: Seconds = 60.0
    """Time in which nothing moves between a process and servers; one collective exchange."""
    heartbeat_s: Seconds = 7.0
    """Silence after which a worker that is up counts as frozen."""
    controller_s: Seconds = 60.0
    """Silence of the controller's machine, suspended or cut off, after which another machine ends
    its processes of the run."""
    progress_s: Seconds = 600.0
    """Time without any step, message or processor time in the whole run, after which it ends;
    processor time alone counts for 36 times as long."""
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
    """Name of the run directory."""
    program: ProgramSpec | None = None
    """The user's own training script, instead of model, data, optimizer, loss, epochs and batch;
    null: those are trained."""
    model: ModelSpec = MnistCnnSpec()
    """A built-in network or `package.module:function`."""
    data: DataField = DataSpec(name="digits")
    """Training data."""
    batch: BatchSpec = BatchSpec.model_validate({"global": 128})
    """Samples per step, over all workers or on each."""
    optimizer: OptimizerField = SgdSpec()
    """The update rule."""
    schedule: ScheduleField = ConstantSpec()
    """The learning rate over the run, indexed by samples seen."""
    loss: LossField = LossSpec()
    """Loss function."""
    metrics: ListOf[MetricField] = ()
    """Metrics of outputs and targets besides those of the data: perplexity, or your own."""
    epochs: Annotated[int, Field(gt=0)] = 1
    """Passes over the training data."""
    early_stop: EarlyStopSpec | None = None
    """End early when validation stops improving."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    """Decides initial weights, sample order, augmentation and dropout."""
    workers: Annotated[int, Field(gt=0, le=4096)] = 1
    """Processes that compute gradients."""
    threads: Annotated[int, Field(gt=0)] | Literal["auto"] = "auto"
    """Compute threads per worker; auto: cores divided by workers, at least one. If other programs
    use cores of this machine when a run starts, auto counts the free ones, and the run keeps that
    number, also when it is resumed; runs of studies and plans do not look."""
    pin: bool = True
    """Bind each worker to separate cores when there are enough."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """auto: bf16 where the CPU has it and a short measurement shows that it is faster."""
    strategy: StrategyField = AllreduceSpec()
    """Distribution strategy: how workers exchange gradients or parameters."""
    backend: Backend = "native"
    """Framework that runs it: native (Phalanx on PyTorch), tensorflow (tf.distribute, Keras 3) or
    ddp (torch's DistributedDataParallel); the last two for comparison, and for Keras models."""
    evaluate: Literal["epoch", "end", "never"] = "epoch"
    """When the validation set is measured; the test set once at the end, unless never."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Checkpoints: when they are written and which are kept."""
    observe: ObserveSpec = ObserveSpec()
    """Sampling of processes and machines."""
    profile: ProfileSpec | None = None
    """Profile operators in some epochs; null: in none."""
    infer: InferSpec | None = None
    """Measure inference latency and throughput at the end; null: do not."""
    elastic: ElasticSpec | None = None
    """Go on after losses of workers, with successors; null: a lost worker of a synchronous strategy
    ends the run."""
    deadlines: DeadlineSpec = DeadlineSpec()
    """Deadlines of waits."""
    inject: ListOf[InjectSpec] = ()
    """Workers to slow down, for studies and tests."""
    python_path: ListOf[Annotated[str, AfterValidator(os.path.abspath)]] = ()
    """Folders from which `package.module:name` is imported, besides the one where `phalanx` is
    called; seen from the job file. Unless given: the job file's own folder, if the module is
    there."""
    code: ListOf[CodePath] = ()
    """Further files and folders of code for other machines, seen from where `phalanx` is called or
    from `python_path`. The packages that the job names, and what they import there, are sent
    anyway; nothing else is."""
    trust_network: bool = False
    """Allow ports on the network that anyone who reaches them can use: TensorFlow's."""

    @model_validator(mode="before")
    @classmethod
    def _make_importable(cls, data: object) -> object:
        # Before any part is validated: its kind may have to be imported for that.
        if isinstance(data, dict):
            add_import_path(data.get("python_path"))
        return data

    @model_validator(mode="before")
    @classmethod
    def _judge_values_by_loss(cls, data: object) -> object:
        # The default of a setting that depends on another one: values have no accuracy.
        if not isinstance(data, dict):
            return data
        loss, checkpoint = data.get("loss"), data.get("checkpoint", {})
        name = loss.get("name") if isinstance(loss, dict) else getattr(loss, "name", loss)
        known = name in LOSSES.built_in and LOSSES.find(name).of_values
        if not known or not isinstance(checkpoint, dict):
            return data
        return data | {"checkpoint": {"best": "val_loss"} | checkpoint}

    @model_validator(mode="before")
    @classmethod
    def _give_scripts_time(cls, data: object) -> object:
        if not isinstance(data, dict) or data.get("program") is None:
            return data
        deadlines = data.get("deadlines", {})
        if not isinstance(deadlines, dict):
            return data
        return data | {"deadlines": {"exchange_s": EXCHANGE_S} | deadlines}

    @model_validator(mode="before")
    @classmethod
    def _count_shares(cls, data: object) -> object:
        # One entry per worker says how many there are, also where a pool would decide.
        if isinstance(data, dict) and "workers" not in data:
            for name in ("batch", "program"):
                part = data.get(name)
                shares = part.get("shares") if isinstance(part, dict) else None
                if isinstance(shares, list | tuple) and shares:
                    return {**data, "workers": len(shares)}
        return data

    @model_validator(mode="after")
    def _combinations(self) -> JobSpec:
        shares = self.batch.shares
        if shares is not None and len(shares) != self.workers:
            raise fault(
                f"batch.shares takes one entry per worker ({self.workers}), not {len(shares)}",
                at=("batch", "shares"),
            )
        check_program(self)
        self._check_accumulation()
        if self.optimizer.ema is not None and (
            self.backend != "native" or self.strategy.name == "split"
        ):
            who = "split" if self.backend == "native" else f"backend {self.backend}"
            raise fault(
                f"{who} keeps no average of weights", "; leave it out", at=("optimizer", "ema")
            )
        self.strategy.check(self)
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
        monitor = self.early_stop.monitor if self.early_stop is not None else None
        if self.loss.is_built_in and self.loss.kind.of_values and monitor == "val_accuracy":
            raise fault(
                f"early_stop.monitor: loss '{self.loss.name}' is for values, which have no "
                "accuracy",
                "; set 'val_loss'",
                at=("early_stop", "monitor"),
            )
        self._check_metrics()
        if self.evaluate == "end" and self.early_stop is not None and self.early_stop.bar:
            raise fault("early_stop.bar needs 'evaluate: epoch'", at=("evaluate",))
        # Only workers that hold the final parameters, and are still there at the end, can answer.
        leaves = self.strategy.uses_servers or bool(self.strategy.resolved)
        if self.infer is not None and (leaves or self.backend != "native"):
            raise fault(
                f"infer measures single, allreduce, local_sgd and split, not '{self.strategy.name}'"
                f"{'' if self.backend == 'native' else f' on {self.backend}'}",
                "; use `phalanx bench-inference` on the finished run",
                at=("infer",),
            )
        check_backend(self)
        check_elastic(self)
        return self

    def _check_accumulation(self) -> None:
        if self.batch.accumulate == 1:
            return
        if self.backend != "native":
            raise fault(
                f"backend {self.backend} computes a batch in one pass",
                "; leave 'batch.accumulate' out",
                at=("batch", "accumulate"),
            )
        if self.strategy.name == "split":
            raise fault(
                "split computes a batch in micro_batches passes already",
                "; set 'strategy.micro_batches' instead",
                at=("batch", "accumulate"),
            )

    def _check_metrics(self) -> None:
        if self.metrics and (self.backend == "tensorflow" or self.strategy.name == "split"):
            who = "split" if self.backend == "native" else f"backend {self.backend}"
            raise fault(f"{who} has no metrics of outputs", "; leave them out", at=("metrics",))
        labels = [one.label for one in self.metrics]
        twice = next((one for one in labels if labels.count(one) > 1), None)
        if twice is not None:
            raise fault(f"metrics names '{twice}' twice", at=("metrics",))
        own = () if self.data.metrics == "auto" else self.data.metrics
        of_data = [*METRICS.names(), *(name.rpartition(":")[2] for name in own)]
        if self.early_stop is not None:
            at = ("early_stop", "monitor")
            check_monitor(self.early_stop.monitor, self.metrics, of_data, at=at)
        if self.checkpoint.best is not None:
            check_monitor(self.checkpoint.best, self.metrics, of_data, at=("checkpoint", "best"))

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
        self.strategy.check_distribution(self)
        if self.backend != "native" and self.data.owns_samples:
            raise fault(
                f"backend {self.backend} has no data.distribution",
                "; leave it out, or set 'backend: native'",
                at=("data", "distribution"),
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
    def model_name(self) -> str:
        """Name of what is trained, for tables: the network, or the script."""
        return self.model.name if self.program is None else self.program.name

    @property
    def data_name(self) -> str:
        """Name of what it is trained on; a script's own data have no other name than the script."""
        return self.data.name if self.program is None else self.program.name

    @property
    def processes(self) -> ProcessCounts:
        """The processes that the strategy needs, by role."""
        counts = self.strategy.processes(self.workers)
        # A script's workers evaluate.
        return counts if self.program is None else replace(counts, evaluators=0)

    @property
    def tolerated_failures(self) -> FailureLimit:
        """How often processes may be lost and replaced."""
        elastic = self.elastic
        return (elastic or self.strategy).tolerated_failures

    @property
    def worker_processes(self) -> int:
        """Number of worker processes."""
        return self.processes.workers

    @property
    def reads_whole_numbers(self) -> bool:
        """Whether rows of whole numbers reach the network as they are, not as quantities.

        The built-in networks compute with quantities only.
        """
        return self.model.user_args is not None

    @property
    def global_batch(self) -> int:
        """Samples per step over all workers together."""
        return self.batch.global_size(self.workers)
