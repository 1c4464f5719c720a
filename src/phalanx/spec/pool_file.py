"""Load pool files and cluster files: read, validate, and report in one sentence what is wrong.

A pool lists its machines, or names a file of another format that does (`inventory`) or a scheduler
that lends some. Paths of keys and of the ssh config are resolved against the folder of the file.
Whether machines can be reached is checked in `pool`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from phalanx.spec.cluster import ClusterSpec
from phalanx.spec.document import Document, from_mapping, read_settings
from phalanx.spec.file_kinds import refuse_other_kind
from phalanx.spec.messages import validated
from phalanx.spec.pool import INVENTORIES, InventorySpec, PoolSpec
from phalanx.spec.registry import add_import_path, load
from phalanx.spec.scheduler import SCHEDULERS, SchedulerSpec


@dataclass(frozen=True)
class ReadInventory:
    """Machines of a file in another format."""

    machines: Document
    """A list of mappings as under `machines` of a pool, with their positions in the file."""
    notes: tuple[str, ...] = ()
    """One sentence per repaired fault of the file."""


@dataclass(frozen=True)
class PoolFile:
    """A pool, with a note for each repair."""

    spec: PoolSpec
    notes: tuple[str, ...] = ()
    """One sentence per repaired fault of its inventory."""


def load_pool(path: str | os.PathLike[str]) -> PoolFile:
    """Read a pool file. SpecError says file, line, value and what would be right."""
    folder = Path(path).parent
    document = read_settings(
        Path(path), "a pool is settings by name, such as 'machines: [{host: ...}]'"
    )
    assert isinstance(document.data, dict)
    refuse_other_kind(document.data, str(path), "pool")
    notes = _take_inventory(document, folder)
    _take_scheduler(document)
    spec = validated(document, PoolSpec)
    machines = tuple(
        one.model_copy(update={"key": _absolute(one.key, folder)}) for one in spec.machines
    )
    resolved = {"machines": machines, "ssh_config": _absolute(spec.ssh_config, folder)}
    return PoolFile(spec.model_copy(update=resolved), notes)


def load_cluster(path: str | os.PathLike[str]) -> ClusterSpec:
    """Read the file of an emulated cluster.

    Raises:
        SpecError: One sentence with file, line, value and what would be right.
    """
    such_as = "a cluster is settings by name, such as 'hosts: [{name: a}]'"
    return validated(read_settings(Path(path), such_as), ClusterSpec)


def cluster_from_mapping(mapping: Mapping[str, object]) -> ClusterSpec:
    """Build an emulated cluster from Python values, with the same checks as for a file.

    Raises:
        SpecError: One sentence with setting, value and what would be right.
    """
    return validated(from_mapping(mapping), ClusterSpec)


def _take_inventory(document: Document, folder: Path) -> tuple[str, ...]:
    """Fill in the machines of a pool's inventory; returns the notes about it."""
    assert isinstance(document.data, dict)
    if document.data.get("inventory") is None:
        return ()
    if "machines" in document.data:
        mark = document.mark(("machines",))
        raise mark.error("a pool has machines or an inventory; keep one of the two")
    spec = validated(document.part("inventory"), InventorySpec)
    add_import_path([str(folder / one) for one in spec.python_path])
    read = cast("Callable[[Path], ReadInventory]", load(INVENTORIES.find(spec.name).read))
    found = read(folder / spec.file)
    document.data["machines"] = found.machines.data
    for path, mark in found.machines.marks.items():
        document.marks["machines", *path] = mark
    return found.notes


class _Lender(Protocol):
    """What `pool.scheduler` defines and this module needs of it."""

    def machines(self, defaults: Mapping[str, object]) -> list[dict[str, object]]:
        """Return the lent machines."""


def _take_scheduler(document: Document) -> None:
    """Fill in the machines that a pool's scheduler has lent."""
    assert isinstance(document.data, dict)
    if document.data.get("scheduler") is None:
        return
    for other in ("machines", "inventory"):
        if document.data.get(other) is not None:
            mark = document.mark((other,))
            raise mark.error(f"a pool has {other} or a scheduler that lends some; keep one")
    # The other settings are checked first: a scheduler may take its time to answer.
    stand_in = {**document.data, "machines": [{"host": "lent"}]}
    spec = validated(Document(stand_in, document.marks), PoolSpec).scheduler
    assert spec is not None
    make = cast("Callable[[SchedulerSpec], _Lender]", load(SCHEDULERS.find(spec.name).scheduler))
    defaults = document.data.get("defaults") or {}
    assert isinstance(defaults, dict)
    document.data["machines"] = make(spec).machines(defaults)


def _absolute(path: str | None, folder: Path) -> str | None:
    return None if path is None else str(folder.absolute() / Path(path).expanduser())
