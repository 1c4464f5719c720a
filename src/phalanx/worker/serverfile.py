"""What a server writes down: its optimiser's memory, for a successor and for checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from phalanx.records.rundir import RunDir
from phalanx.store.atomic import write_atomically


def server_file(run: RunDir, server: int) -> Path:
    """Where a server's state lies."""
    return run.path / "servers" / f"server-{server}.safetensors"


def write_server_file(path: Path, tensors: dict[str, torch.Tensor], *, version: int) -> None:
    """Replace the file in one stroke."""
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, save(tensors, {"version": str(version)}))


def read_server_file(path: Path) -> tuple[int, dict[str, torch.Tensor]] | None:
    """The version and the tensors, or nothing if there is no whole file."""
    try:
        with safe_open(path, framework="pt") as file:
            version = int((file.metadata() or {})["version"])
            return version, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
