"""Evaluate a model on the validation or test part, shared out over all workers.

Counts are summed over workers, so an accuracy can never exceed 1. For metrics beyond loss and
accuracy, predictions of all samples are gathered on all workers. Targets that are values have no
accuracy but errors, which are sums as well.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from phalanx.comm.base import Collective
from phalanx.data.metrics import Predictions, compute_metrics, value_metrics
from phalanx.data.order import share_sizes
from phalanx.data.pipeline import Dataset, Part, eval_batches
from phalanx.engine.result import EvaluationSums
from phalanx.records.measures import Measures
from phalanx.records.predictions import PartPredictions
from phalanx.spec.metrics import MetricSpec
from phalanx.worker.output_metrics import OutputMetrics
from phalanx.worker.trainable import OutputGiver, Predictor, Trainable

_WORKER_BATCH = 256


@dataclass(frozen=True)
class EvaluationShare:
    """The share of samples that a worker evaluates: that of `rank` among `num_workers`."""

    rank: int
    num_workers: int


def evaluate(
    replica: Trainable,
    collective: Collective,
    part: Part,
    share: EvaluationShare | None = None,
    *,
    judge: Dataset | None = None,
    metrics: Sequence[MetricSpec] = (),
) -> Measures:
    """Evaluate the replica; all workers call it together, after `synchronize`.

    Args:
        replica: The model.
        collective: The workers.
        part: The samples.
        share: Which of them this worker takes; None: that of its rank.
        judge: The data set of `part`, if its own metrics are wanted as well.
        metrics: Of outputs and targets; the replica must give its outputs.
    """
    share = share or EvaluationShare(collective.rank, collective.size)
    speaker = replica if judge is not None and isinstance(replica, Predictor) else None
    # Classes are counted from 1 here: 0 marks samples that no worker has measured.
    said = np.zeros(part.num_samples if speaker is not None else 0, dtype=np.int64)
    row = first_row = sum(share_sizes(part.num_samples, share.num_workers)[: share.rank])
    judges = OutputMetrics(metrics) if metrics and isinstance(replica, OutputGiver) else None
    begin = time.perf_counter()
    totals = np.zeros(len(EvaluationSums._fields))
    batches = eval_batches(
        part, rank=share.rank, num_workers=share.num_workers, worker_batch=_WORKER_BATCH
    )
    for batch in batches:
        if judges is not None and isinstance(replica, OutputGiver):
            found, outputs = replica.evaluate_outputs(batch)
            judges.update(outputs, torch.from_numpy(np.array(batch.targets)))
            if speaker is not None:
                classes = outputs.argmax(dim=1).numpy() if outputs.ndim == 2 else -1
                said[row : row + len(batch)] = classes + 1
                row += len(batch)
        elif speaker is None:
            found = replica.evaluate(batch)
        else:
            classes = np.full(len(batch), -1, dtype=np.int64)
            found = speaker.evaluate_into(batch, classes)
            said[row : row + len(batch)] = classes + 1
            row += len(batch)
        totals += found.row()
    sums = torch.from_numpy(totals)
    collective.all_reduce(sums)
    loss_sum, num_correct, num_samples, absolute_error, squared_error, weight = sums.tolist()
    measures = Measures.from_sums(
        loss_sum,
        num_correct,
        num_samples,
        weight=weight,
        duration_s=time.perf_counter() - begin,
        has_classes=part.targets.dtype == np.int64,
    )
    own: dict[str, float] = {}
    if judges is not None and num_samples > 0 and measures.loss is not None:
        targets = torch.from_numpy(np.array(part.targets[part.rows]))
        own = judges.compute(collective, targets, first_row=first_row, loss=measures.loss)
        measures = replace(measures, metrics=own)
    if measures.accuracy is None:
        errors = value_metrics(part.targets[part.rows], absolute_error, squared_error)
        return replace(measures, metrics=errors | own)
    if speaker is None or judge is None:
        return measures
    return _judged(measures, judge, part, _gather_predictions(said, collective))


def judge_of(dataset: Dataset) -> Dataset | None:
    """Return the data set if it defines metrics beyond loss and accuracy, else None."""
    return dataset if set(dataset.metrics) - {"accuracy"} else None


def _gather_predictions(
    own: npt.NDArray[np.int64], collective: Collective
) -> npt.NDArray[np.int64]:
    """Gather the predictions of all workers, each about its own samples."""
    together = torch.from_numpy(own).double()
    collective.all_reduce(together)
    return together.long().numpy() - 1


def _judged(
    measures: Measures, judge: Dataset, part: Part, predicted: npt.NDArray[np.int64]
) -> Measures:
    if (predicted < 0).any():
        return measures  # a part of the network that predicts no classes
    actual = np.asarray(part.targets[part.rows], dtype=np.int64)
    predictions = Predictions(actual, predicted, judge.num_classes, judge.scale)
    scale = judge.scale
    return replace(
        measures,
        metrics=compute_metrics(judge.metrics, predictions) | dict(measures.metrics),
        verdicts=PartPredictions(
            part=part.name,
            num_classes=judge.num_classes,
            class_names=list(judge.class_names),
            scale=(scale.low, scale.width) if scale is not None else None,
            scale_name=scale.name if scale is not None else "",
            grid=judge.test_map if part.name == "test" else None,
            actual=actual.tolist(),
            predicted=predicted.tolist(),
        ),
    )
