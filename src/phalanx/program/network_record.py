"""Record which tensor of a script's models lies where in a checkpoint."""

from __future__ import annotations

from phalanx.program.model import ScriptModel
from phalanx.records.events import NetworkBuilt
from phalanx.records.tensor_slot import TensorSlot
from phalanx.worker.context import WorkerContext


def record_script_network(context: WorkerContext, model: ScriptModel) -> None:
    """Let the chief record which tensor lies where, so that weights can be named."""
    if context.spec.rank != 0:
        return
    several = len(model.replicas) > 1
    slots, start = [], 0
    for index, replica in enumerate(model.replicas):
        prefix = f"{index}." if several else ""
        slots += [
            TensorSlot(prefix + one.name, one.shape, start + one.start, channels_last=False)
            for one in replica.layout.slots
        ]
        start += replica.layout.size
    buffers, place = [], 0
    for name, buffer in model.statistics():
        buffers.append(TensorSlot(name, tuple(buffer.shape), place, channels_last=False))
        place += buffer.numel()
    context.log.record(
        NetworkBuilt(
            parameters=slots, buffers=buffers, input_shape=(), num_outputs=0, scale=[], shift=[]
        )
    )
