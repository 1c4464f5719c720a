"""Write and read the checkpoints of a TensorFlow run: arrays by the names of variables.

A run can only be resumed under the backend that began it.
"""

from __future__ import annotations

import time

import msgspec

from phalanx.backends.tensorflow.network import Network
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.store.numpy_tensors import Arrays, NumpyAdapter
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.context import WorkerContext
from phalanx.worker.run_state import RecordEvent, ResumePoint


class NetworkCheckpoints:
    """The checkpoints of one network; `record` notes that one was written."""

    def __init__(self, context: WorkerContext, network: Network, *, record: RecordEvent) -> None:
        self._network = network
        self._record = record
        self._files = Checkpoints(context.open_store(NumpyAdapter()), context.job.checkpoint)

    def save(
        self, position: Position, state: Arrays, *, best: bool = False, pin: bool = False
    ) -> None:
        """Write a checkpoint; called by the chief alone. `pin` keeps it for the rest of the run."""
        begin = time.perf_counter()
        # In the order of the model's variables, for those who load it into Keras.
        variables = msgspec.json.encode(self._network.order).decode()
        metadata = {"backend": "tensorflow", "variables": variables}
        written = self._files.write(position, state, metadata=metadata)
        if best:
            self._files.mark_best(written.name)
        if pin:
            self._files.pin(written.name)
        self._record(
            events.Checkpoint(
                path=written.name,
                epoch=position.epoch,
                samples=position.samples,
                size_bytes=written.size_bytes,
                duration_s=time.perf_counter() - begin,
            )
        )

    def restore(self, name: str) -> ResumePoint | None:
        """Load a checkpoint into the network; None: there is none."""
        found = self._files.load(name)
        if found is None:
            return None
        self._network.load_state(found.tensors)
        return ResumePoint(found.position, found.name)
