"""Take the weights out of a run: tensors by name, with the preparation of inputs.

Checkpoints hold parameters and statistics in flat buffers, optimiser state and sums of an epoch;
people want the named tensors of a network. Backends that keep tensors by name pass through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.errors import StoreError
from phalanx.records.events import NetworkBuilt
from phalanx.records.log import read_events
from phalanx.records.position import CHECKPOINT_PATTERN
from phalanx.records.rundir import RunDir
from phalanx.records.tensor_slot import TensorSlot
from phalanx.store.atomic import write_atomically

WEIGHTS = "model.safetensors"
_BEST = "best.safetensors"
_REPLICA, _NAMED = "replica.", "model/"
_OTHERS = ("buffer/", "frozen/")
# What was evaluated, where the optimiser keeps it.
_AVERAGE = "replica.optimizer/ema"


@dataclass(frozen=True)
class NamedWeights:
    """Weights of a trained network by the names that its framework gives them."""

    tensors: Mapping[str, npt.NDArray[Any]]
    checkpoint: Path
    network: NetworkBuilt | None
    """None for backends whose networks are not torch's."""

    def write(self, path: Path) -> None:
        """Write the tensors as safetensors; the header tells where they come from."""
        from safetensors.numpy import save

        header = {"format": "pt", "checkpoint": self.checkpoint.name}
        if self.network is not None:
            header["network"] = msgspec.json.encode(self.network).decode()
        write_atomically(path, save(dict(self.tensors), metadata=header))


def read_weights(run: RunDir, *, best: bool | None = None) -> NamedWeights:
    """Read the weights of a run's checkpoint.

    Args:
        run: The run.
        best: True: of the best checkpoint, False: of the newest; None: of the best if there is one.

    Raises:
        StoreError: There is no such checkpoint, or it does not say what it holds.
    """
    path = _find_checkpoint(run, best=best)
    network = find_network_record(run)
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, npt.NDArray[Any]] = {}
    try:
        with safe_open(path, framework="np") as file:
            order = (file.metadata() or {}).get("variables")
            names = list(file.keys())
            if order is not None:
                wanted = msgspec.json.decode(order, type=list[str])
                return NamedWeights({one: file.get_tensor(one) for one in wanted}, path, None)
            for name in names:
                if name == f"{_REPLICA}parameters":
                    flat = file.get_tensor(_AVERAGE if _AVERAGE in names else name)
                    tensors |= _cut(flat, _slots(network, run).parameters)
                elif name == f"{_REPLICA}buffers":
                    tensors |= _cut(file.get_tensor(name), _slots(network, run).buffers)
                else:
                    own = _own_name(name)
                    if own is not None:
                        renamed = network.renamed if network is not None else {}
                        tensors[renamed.get(own, own)] = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise StoreError(f"cannot read the checkpoint {path}: {error}", path=str(path)) from error
    return NamedWeights(tensors, path, network)


def write_weights(run: RunDir) -> Path | None:
    """Write `model.safetensors` of a run from its best or newest checkpoint; None without one."""
    try:
        weights = read_weights(run)
    except StoreError:
        return None
    path = run.path / WEIGHTS
    weights.write(path)
    return path


def find_network_record(run: RunDir) -> NetworkBuilt | None:
    """Return what worker-0 last recorded of the network."""
    found = None
    for event in read_events(run.events_path("worker-0"), NetworkBuilt):
        if isinstance(event, NetworkBuilt):
            found = event
    return found


def prepare_inputs(samples: npt.NDArray[Any], network: NetworkBuilt) -> npt.NDArray[Any]:
    """Prepare stored samples as they were in training; images become (N, C, H, W)."""
    scale = np.asarray(network.scale, dtype=np.float32)
    shift = np.asarray(network.shift, dtype=np.float32)
    if samples.shape[1:] != network.input_shape:
        raise StoreError(
            f"samples of shape {samples.shape[1:]} do not fit the network, which was trained on "
            f"{network.input_shape}"
        )
    if network.whole_numbers:
        return samples.astype(np.int64)
    prepared = samples.astype(np.float32) * scale + shift
    return prepared.transpose(0, 3, 1, 2) if prepared.ndim == 4 else prepared


def _find_checkpoint(run: RunDir, *, best: bool | None) -> Path:
    path = run.checkpoints / _BEST
    if best is not False and path.exists():
        return path
    newest = sorted(run.checkpoints.glob(CHECKPOINT_PATTERN))
    if best is True or not newest:
        which = "best checkpoint" if best else "checkpoint"
        raise StoreError(
            f"run {run.name} has no {which}; set 'checkpoint' in its job", path=str(run.checkpoints)
        )
    return newest[-1]


def _slots(network: NetworkBuilt | None, run: RunDir) -> NetworkBuilt:
    if network is None:
        raise StoreError(f"the records of run {run.name} do not name the tensors of its network")
    return network


def _cut(flat: npt.NDArray[Any], slots: Sequence[TensorSlot]) -> dict[str, npt.NDArray[Any]]:
    found = {}
    for slot in slots:
        part = flat[slot.start : slot.start + int(np.prod(slot.shape))]
        if slot.channels_last:
            out, channels, height, width = slot.shape
            part = part.reshape(out, height, width, channels).transpose(0, 3, 1, 2)
        found[slot.name] = np.ascontiguousarray(part.reshape(slot.shape))
    return found


def _own_name(name: str) -> str | None:
    """Return the name of a tensor in its network; None: it belongs to the optimiser or the run."""
    own = name.removeprefix(_REPLICA)
    for prefix in (_NAMED, *_OTHERS):
        if own.startswith(prefix):
            return own.removeprefix(prefix)
    return None
