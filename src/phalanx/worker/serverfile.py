"""What a server writes down: its state, for a successor and for checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from phalanx.errors import StoreError
from phalanx.protocol.shards import Layout
from phalanx.records.rundir import RunDir
from phalanx.worker.tensorfile import write_tensors

_PARAMETERS, _OPTIMIZER = "parameters", "optimizer/"


def server_file(run: RunDir, server: int) -> Path:
    """Where a server's state lies."""
    return run.path / "servers" / f"server-{server}.safetensors"


@dataclass(frozen=True)
class ServerState:
    """A server's slice at one version."""

    version: int
    samples_seen: int
    parameters: torch.Tensor
    optimizer: dict[str, torch.Tensor]
    tickets: dict[int, int]
    """Which segments of which batches it has taken; see `paramserver.ledger`."""


def write_server_file(path: Path, state: ServerState) -> None:
    """Replace the file in one stroke."""
    path.parent.mkdir(exist_ok=True)
    tensors = {_PARAMETERS: state.parameters}
    tensors |= {_OPTIMIZER + name: tensor for name, tensor in state.optimizer.items()}
    metadata = {
        "version": str(state.version),
        "samples_seen": str(state.samples_seen),
        "tickets": msgspec.json.encode(state.tickets).decode(),
    }
    write_tensors(path, tensors, metadata)


def read_server_file(path: Path) -> ServerState | None:
    """What was written last, or nothing if there is no whole file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return ServerState(
            version=int(metadata["version"]),
            samples_seen=int(metadata["samples_seen"]),
            parameters=tensors.pop(_PARAMETERS),
            optimizer={name.removeprefix(_OPTIMIZER): one for name, one in tensors.items()},
            tickets=msgspec.json.decode(metadata["tickets"], type=dict[int, int]),
        )
    except (OSError, SafetensorError, KeyError, ValueError, msgspec.DecodeError):
        return None


def read_optimizer(run: RunDir, layout: Layout) -> dict[str, torch.Tensor]:
    """The optimiser's memory of all servers, put together as one optimiser would have it."""
    parts: list[dict[str, torch.Tensor]] = []
    for server in range(layout.num_servers):
        path = server_file(run, server)
        found = read_server_file(path)
        if found is None:
            raise StoreError(f"the state that server {server} wrote cannot be read: {path}")
        parts.append(found.optimizer)
    return {
        name: torch.cat([part[name] for part in parts])
        if parts[0][name].ndim
        else torch.stack([part[name] for part in parts]).amax()
        for name in parts[0]
    }
