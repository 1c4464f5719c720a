"""Evaluate a network on a part of the data with TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from phalanx.backends.tensorflow.input_pipeline import (
    StoredArrays,
    batches,
    eval_plan,
    hold,
    make_transform,
)
from phalanx.backends.tensorflow.step import StepMaker
from phalanx.data.pipeline import Dataset

_WORKER_BATCH = 256


class PartEvaluator:
    """Sum loss and correct predictions over the samples of a part; reuses arrays held already."""

    def __init__(
        self, maker: StepMaker, dataset: Dataset, stored: dict[str, StoredArrays] | None = None
    ) -> None:
        self._dataset = dataset
        self._measure = tf.function(maker.measure, reduce_retracing=True)
        self._transform = make_transform(dataset.train, ())
        self._stored = dict(stored or {})

    def sums(self, name: str, *, rank: int = 0, num_workers: int = 1) -> tuple[float, int, int]:
        """Return loss, correct predictions and samples of one process's share of a part, summed."""
        part = self._dataset.test if name == "test" else self._dataset.validation
        if name not in self._stored:
            self._stored[name] = hold(part)
        plan = eval_plan(part, rank=rank, num_workers=num_workers, worker_batch=_WORKER_BATCH)
        loss_sum, num_correct, num_samples = 0.0, 0, 0
        for inputs, targets, count in batches(
            self._stored[name], plan, self._transform, prefetch=2
        ):
            loss, correct = self._measure(inputs, targets)
            loss_sum += float(loss)
            num_correct += int(correct)
            num_samples += int(count)
        return loss_sum, num_correct, num_samples
