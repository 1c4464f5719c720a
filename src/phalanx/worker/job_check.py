"""Check that a job's own parts work and fit each other: `python -m phalanx.worker.job_check`.

Reads a question on standard input and writes the answer as the last line of standard output. Runs
in a process of its own, because the command imports neither a framework nor the user's code. The
decoded data stays in the cache, where the workers find it. What a worker would accept is never
refused: the network is built and asked as a worker does it.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import torch

import phalanx
from phalanx.data.pipeline import Dataset, open_dataset
from phalanx.engine.optimizer_factory import factory_for
from phalanx.errors import DataError, PhalanxError
from phalanx.records.job_check import JobAnswer, JobQuestion
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.topology.sum_tree import plan_trees
from phalanx.worker.output_metrics import OutputMetrics
from phalanx.worker.rate import Rate
from phalanx.worker.replica import build_network, build_replica, first_batch

_FEW_SAMPLES = 8
_PACKAGE = Path(phalanx.__file__).parent
# A network of this size is built and asked in well under a second.
_MAX_PARAMETERS = 20_000_000


def examine(question: JobQuestion) -> JobAnswer:
    """Open the data, build the network, have it answer a few samples, and try the optimiser."""
    answer = JobAnswer()
    try:
        job = job_from_mapping(question.job)
        _check_topologies(job)
        dataset = open_dataset(
            job.data,
            data_root=Path(question.data_root),
            cache_root=Path(question.cache_root),
            whole_numbers=job.reads_whole_numbers,
        )
        answer.num_samples = dataset.train.num_samples
        answer.notes = _notes(dataset)
        answer.num_parameters = _count_parameters(job, dataset)
        # Owners of samples may see a part of each; only the workers know which.
        if answer.num_parameters <= _MAX_PARAMETERS and not job.data.owns_samples:
            _ask(job, dataset)
    except PhalanxError as error:
        answer.fault = str(error)
        # What a file holds is said in the sentence; where in the user's code it failed is not.
        if error.__cause__ is not None and not isinstance(error, DataError):
            answer.traceback = _traceback(error.__cause__)
    return answer


def _traceback(error: BaseException) -> str:
    """Format an error from the first call of foreign code on; empty if there was none."""
    found = traceback.TracebackException.from_exception(error)
    foreign = [one for one in found.stack if not _is_ours(one.filename)]
    if not foreign:
        return ""
    found.stack = traceback.StackSummary.from_list(foreign)
    return "".join(found.format(chain=False))


def _is_ours(file: str) -> bool:
    """Tell whether a call is one of Phalanx, or of the machinery of imports."""
    return "importlib" in file or Path(file).is_relative_to(_PACKAGE)


def _count_parameters(job: JobSpec, dataset: Dataset) -> int:
    """Count the parameters without memory for them; 0 if the network cannot be built so."""
    try:
        with torch.device("meta"):
            network = build_network(job, dataset)
    except Exception:  # user code may need real tensors; whether it works is seen when it is asked
        return 0
    return sum(one.numel() for one in network.parameters())


def _check_topologies(job: JobSpec) -> None:
    """Make the trees of topologies, of which another package's may be none."""
    for one in job.strategy.strategies():
        topology = getattr(one, "topology", "auto")
        if topology != "auto":
            plan_trees(topology, range(job.workers))


def _ask(job: JobSpec, dataset: Dataset) -> None:
    OutputMetrics(job.metrics)  # imports and makes them
    batch = first_batch(job, dataset, num_workers=1)
    targets = batch.targets[:_FEW_SAMPLES].copy()
    if dataset.is_classification:
        # The largest label of all: a few samples need not have it.
        targets[0] = dataset.num_classes - 1
    few = replace(batch, inputs=batch.inputs[:_FEW_SAMPLES], targets=targets)
    replica = build_replica(job, dataset, rank=0, precision="fp32", optimizer=False)
    replica.evaluate(few)
    if job.optimizer.kind.live is not None:
        factory_for(job.optimizer, replica.module, replica.layout).build(replica.parameters)
    rate = Rate(job, samples_per_epoch=dataset.epoch_samples)
    for epoch in range(job.epochs + 1):
        rate(epoch * dataset.epoch_samples)


def _notes(dataset: Dataset) -> list[str]:
    notes = []
    if dataset.is_classification and not dataset.class_names:
        counts = dataset.train.class_counts(dataset.num_classes)
        empty = int(np.count_nonzero(counts == 0))
        if empty > dataset.num_classes // 2:
            notes.append(
                f"the largest label is {dataset.num_classes - 1}, so the network has "
                f"{dataset.num_classes} outputs, but {empty} of these classes have no sample; "
                "number the classes from 0 without gaps"
            )
    if dataset.validation.num_samples == 0 or dataset.test.num_samples == 0:
        parts = [one.name for one in (dataset.validation, dataset.test) if one.num_samples == 0]
        notes.append(
            f"there are no {' and no '.join(parts)} samples: with {dataset.train.num_samples} "
            "training samples nothing is left to measure with"
        )
    return notes


def main() -> None:
    """Answer the question on standard input."""
    torch.set_num_threads(1)
    question = msgspec.json.decode(sys.stdin.buffer.readline(), type=JobQuestion)
    answer = msgspec.json.encode(examine(question))
    # What the user's code printed may stand before it.
    sys.stdout.flush()
    sys.stdout.buffer.write(b"\n" + answer + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
