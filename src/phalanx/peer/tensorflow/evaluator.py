"""The role of the evaluator: measures states that the chief hands it, while training goes on."""

from __future__ import annotations

import time

import tensorflow as tf

from phalanx.data.pipeline import Dataset
from phalanx.peer.tensorflow.messages import (
    EvaluatePart,
    EvaluatorPresent,
    PartEvaluated,
    decode_message,
    send_message,
)
from phalanx.peer.tensorflow.network import Network
from phalanx.peer.tensorflow.part_evaluator import PartEvaluator
from phalanx.peer.tensorflow.step import StepMaker
from phalanx.records.measures import Measures
from phalanx.store.numpy_tensors import NumpyAdapter
from phalanx.wire.messages import Done
from phalanx.wire.peers import Relayed
from phalanx.wire.serving import Finish
from phalanx.worker.context import WorkerContext

CHIEF = "chief-0"
STATE_FILE = "servers/evaluated.safetensors"


def run_evaluator(station: WorkerContext, dataset: Dataset) -> Done:
    """Measure when asked, until the phase is over."""
    store = station.open_store(NumpyAdapter())
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    network = Network(station.job, dataset, strategy, learns=False)
    maker = StepMaker(station.job, network, options=None, may_be_empty=False)
    parts = PartEvaluator(maker, dataset)
    station.record_start(station.job.precision, "as the job says")
    send_message(station, CHIEF, EvaluatorPresent())
    # Waits until Finish or the end of this process: the lifelines see to that.
    while not isinstance(order := station.control.inbox.get(), Finish):
        if isinstance(order, Relayed) and isinstance(ask := decode_message(order), EvaluatePart):
            station.metrics.activity = f"measuring {ask.part}"
            network.load_state(store.load(STATE_FILE).tensors, optimizer=False)
            begin = time.perf_counter()
            sums = parts.sums(ask.part)
            measures = Measures.from_sums(*sums, duration_s=time.perf_counter() - begin)
            send_message(station, CHIEF, PartEvaluated(number=ask.number, measures=measures))
    return Done()
