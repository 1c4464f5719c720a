"""Context of a process: spec, control channel, log, metrics and data of its role.

Imports no framework: processes of every backend have a context.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.consistency.shards import ShardLayout, plan_shards
from phalanx.data.distribution import describe_distribution, distribute
from phalanx.data.pipeline import Dataset, open_dataset
from phalanx.errors import SpecError
from phalanx.observe.sampler import Sampler
from phalanx.records import events
from phalanx.records.log import EventLog
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.worker import WorkerSpec
from phalanx.store.base import CheckpointStore
from phalanx.store.local import LocalStore
from phalanx.store.remote import RemoteStore
from phalanx.store.tensors import TensorAdapter, TensorT
from phalanx.wire.control_client import ControlClient
from phalanx.wire.keys import KeyPair
from phalanx.wire.messages import Heartbeat
from phalanx.worker.metrics import WorkerMetrics

if TYPE_CHECKING:
    from phalanx.worker.checkpoint.torch_tensors import TorchStore
    from phalanx.worker.profile import EpochProfiler


@dataclass(frozen=True)
class WorkerContext:
    """Spec, channels and data of one process; passed to its role."""

    spec: WorkerSpec
    control: ControlClient
    log: EventLog
    metrics: WorkerMetrics
    started: float
    sampler: Sampler

    @property
    def job(self) -> JobSpec:
        """The job of the run."""
        return self.spec.job

    @property
    def run(self) -> RunDir:
        """The run directory."""
        return RunDir(Path(self.spec.run_dir))

    @property
    def store(self) -> TorchStore:
        """The store of checkpoints and server state, for processes that use torch."""
        from phalanx.worker.checkpoint.torch_tensors import TorchAdapter

        return self.open_store(TorchAdapter())

    def open_store(self, adapter: TensorAdapter[TensorT]) -> CheckpointStore[TensorT]:
        """Open the store of this run for the tensors of a framework."""
        if self.spec.shared_run_dir:
            return LocalStore(self.run.path, adapter)
        return RemoteStore.for_process(self.spec, adapter)

    @cached_property
    def profiler(self) -> EpochProfiler:
        """The profiler of torch's operators; inactive unless the job asks for profiling."""
        from phalanx.worker.profile import EpochProfiler

        return EpochProfiler(self.job.profile, run=self.run, process=self.spec.process)

    @property
    def keys(self) -> KeyPair:
        """This process's own keys."""
        return KeyPair(public=self.spec.public_key, secret=self.spec.secret_key)

    @property
    def serving(self) -> ParameterServerSpec:
        """The strategy's settings; valid only under `parameter_server`."""
        assert isinstance(self.job.strategy, ParameterServerSpec)
        return self.job.strategy

    def open_data(self) -> Dataset:
        """Open the job's data set, partitioned as the job asks; the chief records the partition."""
        dataset = open_dataset(
            self.job.data,
            data_root=Path(self.spec.data_root),
            cache_root=Path(self.spec.cache_root),
            whole_numbers=self.job.reads_whole_numbers,
        )
        self._check_form(dataset)
        self.metrics.has_classes = dataset.has_labels
        dataset = distribute(dataset, self.job)
        if self.spec.role == "worker" and self.spec.rank == 0:
            dealt = describe_distribution(dataset, self.job)
            if dealt is not None:
                self.run.write_distribution(dealt)
        return dataset

    def _check_form(self, dataset: Dataset) -> None:
        """Refuse samples that only whole networks of our own engine take."""
        one_input = self.job.backend != "native" or self.job.strategy.name == "split"
        who = f"backend {self.job.backend}" if self.job.backend != "native" else "split"
        if dataset.fields and one_input:
            names = ", ".join(field.name for field in dataset.fields)
            raise SpecError(f"{who} takes samples of one input, and these have {names}")
        if one_input and dataset.has_labels and not dataset.is_classification:
            raise SpecError(f"{who} takes one label per sample, and these have one per position")

    def record_start(self, precision: str, reason: str) -> float:
        """Record that this worker has joined; return the seconds since the process started.

        Args:
            precision: The number format that it computes in.
            reason: Why this one.
        """
        self.metrics.is_starting = False
        # At once: until the controller knows, silence counts as a slow start.
        self.control.send(Heartbeat(self.metrics.progress()))
        startup_s = time.monotonic() - self.started
        self.log.record(
            events.Started(
                rank=self.spec.rank,
                role=self.spec.role,
                pid=os.getpid(),
                host=self.spec.host or socket.gethostname(),
                attempt=self.spec.attempt,
                threads=self.spec.threads,
                cpus=sorted(os.sched_getaffinity(0)),
                precision=precision,
                precision_reason=reason,
                startup_s=startup_s,
            )
        )
        self.log.flush()
        return startup_s

    def layout(
        self, num_parameters: int, cut_at: Sequence[int] | None, borders: Sequence[int] = ()
    ) -> ShardLayout:
        """Return the slices of the model over servers; equal on every process of the run.

        Args:
            num_parameters: Of the model.
            cut_at: Where the optimiser allows cuts; None: anywhere.
            borders: Between parameters of several optimisers.
        """
        serving = self.serving
        return plan_shards(
            num_parameters,
            num_servers=serving.num_servers(self.job.workers),
            min_shard_bytes=serving.min_shard_bytes,
            max_shards=serving.max_shards,
            cut_at=cut_at,
            borders=borders,
        )
