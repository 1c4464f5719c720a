"""Write what was read from the servers as a checkpoint."""

from __future__ import annotations

import hashlib
import time

import msgspec
import torch

from phalanx.records.position import Position
from phalanx.wire.parameter_server import Save, Saved
from phalanx.worker.checkpoint import Checkpoints, pinned
from phalanx.worker.checkpoint.state import served_state
from phalanx.worker.trainable import Trainable


def save_served(
    checkpoints: Checkpoints[torch.Tensor],
    order: Save,
    replica: Trainable,
    optimizer: dict[str, torch.Tensor],
) -> Saved:
    """Write a checkpoint of a run with servers; returns the answer to the coordinator.

    Args:
        checkpoints: Where it goes.
        order: Asks for it.
        replica: Holds the parameters that were read.
        optimizer: The state of the optimiser of all servers, joined.
    """
    begin = time.perf_counter()
    position = msgspec.json.decode(order.position, type=Position)
    written = checkpoints.write(position, served_state(replica, optimizer, position))
    if order.best:
        checkpoints.mark_best(written.name)
    if order.pin:
        checkpoints.pin(written.name)
    parameters = replica.parameters
    return Saved(
        look=order.look,
        path=written.name,
        size_bytes=written.size_bytes,
        duration_s=time.perf_counter() - begin,
        parameters=parameters.numel(),
        parameters_sha256=hashlib.sha256(parameters.numpy().data).hexdigest(),
        pinned=pinned(written.name) if order.pin else "",
    )
