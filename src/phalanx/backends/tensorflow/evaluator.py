"""Run the evaluator: evaluate the chief's states, while training goes on."""

from __future__ import annotations

import time

import tensorflow as tf

from phalanx.backends.tensorflow.input_pipeline import (
    StoredArrays,
    batches,
    eval_plan,
    hold,
    make_transform,
)
from phalanx.backends.tensorflow.messages import (
    EvaluatePart,
    EvaluatorPresent,
    PartEvaluated,
    decode_message,
    send_message,
)
from phalanx.backends.tensorflow.network import Network
from phalanx.backends.tensorflow.step import StepMaker
from phalanx.data.pipeline import Dataset
from phalanx.records.measures import Measures
from phalanx.store.numpy_tensors import NumpyAdapter
from phalanx.wire.messages import Done
from phalanx.wire.parameter_server import Finish
from phalanx.wire.relay import FromProcess
from phalanx.worker.context import WorkerContext

CHIEF = "chief-0"
STATE_FILE = "servers/evaluated.safetensors"


def run_evaluator(context: WorkerContext, dataset: Dataset) -> Done:
    """Evaluate on request, until the phase is over."""
    store = context.open_store(NumpyAdapter())
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    network = Network(context.job, dataset, strategy, learns=False)
    maker = StepMaker(context.job, network, options=None, may_be_empty=False)
    parts = PartEvaluator(maker, dataset)
    context.record_start(context.job.precision, "as the job says")
    send_message(context, CHIEF, EvaluatorPresent())
    # Waits until Finish or the end of this process: the lifelines end it.
    while not isinstance(order := context.control.inbox.get(), Finish):
        if isinstance(order, FromProcess) and isinstance(
            ask := decode_message(order), EvaluatePart
        ):
            context.metrics.activity = f"measuring {ask.part}"
            network.load_state(store.load(STATE_FILE).tensors, optimizer=False)
            begin = time.perf_counter()
            sums = parts.sums(ask.part)
            measures = Measures.from_sums(
                *sums,
                duration_s=time.perf_counter() - begin,
                has_classes=dataset.is_classification,
            )
            send_message(context, CHIEF, PartEvaluated(number=ask.number, measures=measures))
    return Done()


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
