"""Run the evaluator: evaluate the chief's states, while training goes on."""

from __future__ import annotations

import time

import tensorflow as tf

from phalanx.backends.tensorflow.messages import (
    EvaluatePart,
    EvaluatorPresent,
    PartEvaluated,
    decode_message,
    send_message,
)
from phalanx.backends.tensorflow.network import Network
from phalanx.backends.tensorflow.part_evaluator import PartEvaluator
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
