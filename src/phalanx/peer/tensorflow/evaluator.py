"""The role of the evaluator: measures states that the chief hands it, while training goes on."""

from __future__ import annotations

import time

import tensorflow as tf

from phalanx.data.pipeline import Dataset
from phalanx.peer.tensorflow.feed import batches, eval_plan, hold, make_transform
from phalanx.peer.tensorflow.network import Network
from phalanx.peer.tensorflow.step import StepMaker
from phalanx.peer.tensorflow.talk import Answer, Ask, Present, tell, understand
from phalanx.store.numpy_tensors import NumpyAdapter
from phalanx.wire.messages import Done
from phalanx.wire.peers import Relayed
from phalanx.wire.serving import Finish
from phalanx.worker.station import Station

CHIEF = "chief-0"
LOOK_FILE = "servers/look.safetensors"
_BATCH = 256


def run_evaluator(station: Station, dataset: Dataset) -> Done:
    """Measure when asked, until the phase is over."""
    evaluator = _Evaluator(station, dataset)
    station.record_start(station.job.precision, "as the job says")
    tell(station, CHIEF, Present())
    # Waits until Finish or the end of this process: the lifelines see to that.
    while not isinstance(order := station.control.inbox.get(), Finish):
        if isinstance(order, Relayed) and isinstance(ask := understand(order), Ask):
            tell(station, CHIEF, evaluator.measure(ask))
    return Done()


class _Evaluator:
    def __init__(self, station: Station, dataset: Dataset) -> None:
        self._station = station
        self._dataset = dataset
        self._store = station.open_store(NumpyAdapter())
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        self._network = Network(station.job, dataset, strategy, learns=False)
        maker = StepMaker(station.job, self._network, options=None, may_be_empty=False)
        self._evaluate = tf.function(maker.measure, reduce_retracing=True)
        self._transform = make_transform(dataset.train, ())
        self._stored: dict[str, tuple[tf.Tensor, tf.Tensor]] = {}

    def measure(self, ask: Ask) -> Answer:
        self._station.tally.activity = f"measuring {ask.part}"
        found = self._store.load(LOOK_FILE)
        self._network.load_state(found.tensors, optimizer=False)
        begin = time.perf_counter()
        part = self._dataset.test if ask.part == "test" else self._dataset.validation
        plan = eval_plan(part, rank=0, num_workers=1, worker_batch=_BATCH)
        loss_sum, num_correct, num_samples = 0.0, 0, 0
        if ask.part not in self._stored:
            self._stored[ask.part] = hold(part)
        stored = self._stored[ask.part]
        for inputs, targets, count in batches(stored, plan, self._transform, prefetch=2):
            loss, correct = self._evaluate(inputs, targets)
            loss_sum += float(loss)
            num_correct += int(correct)
            num_samples += int(count)
        return Answer(
            look=ask.look,
            loss=loss_sum / max(1, num_samples),
            accuracy=num_correct / max(1, num_samples),
            num_samples=num_samples,
            duration_s=time.perf_counter() - begin,
        )
