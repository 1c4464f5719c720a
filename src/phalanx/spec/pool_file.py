"""Load pool files and cluster files: read, validate, and report in one sentence what is wrong.

A pool is YAML, or the published JSON blueprint, which is repaired with a note for each fault. Paths
of keys and of the ssh config are resolved against the folder of the file. Whether machines can be
reached is checked in `pool`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from phalanx.errors import SpecError
from phalanx.spec.base import Spec
from phalanx.spec.blueprint import is_blueprint, read_blueprint
from phalanx.spec.cluster import ClusterSpec
from phalanx.spec.document import Document, from_mapping, read
from phalanx.spec.messages import spec_error
from phalanx.spec.pool import PoolSpec

Kind = TypeVar("Kind", bound=Spec)


@dataclass(frozen=True)
class PoolFile:
    """A pool, with a note for each repair."""

    spec: PoolSpec
    notes: tuple[str, ...] = ()
    """One sentence per repaired fault of a blueprint."""


def load_pool(path: str | os.PathLike[str]) -> PoolFile:
    """Read a pool file or a published blueprint.

    Raises:
        SpecError: One sentence with file, line, value and what would be right.
    """
    file = Path(path)
    text = _text(file)
    if text is not None and is_blueprint(text):
        blueprint = read_blueprint(text, str(file))
        return PoolFile(_pool(blueprint.document, file.parent), blueprint.notes)
    return PoolFile(_pool(_settings(file, "a pool", "'machines: [{host: ...}]'"), file.parent))


def load_cluster(path: str | os.PathLike[str]) -> ClusterSpec:
    """Read the file of an emulated cluster.

    Raises:
        SpecError: One sentence with file, line, value and what would be right.
    """
    return _validated(_settings(Path(path), "a cluster", "'hosts: [{name: a}]'"), ClusterSpec)


def cluster_from_mapping(mapping: Mapping[str, object]) -> ClusterSpec:
    """Build an emulated cluster from Python values, with the same checks as for a file.

    Raises:
        SpecError: One sentence with setting, value and what would be right.
    """
    return _validated(from_mapping(mapping), ClusterSpec)


def _pool(document: Document, folder: Path) -> PoolSpec:
    spec = _validated(document, PoolSpec)
    machines = tuple(
        one.model_copy(update={"key": _absolute(one.key, folder)}) for one in spec.machines
    )
    return spec.model_copy(
        update={"machines": machines, "ssh_config": _absolute(spec.ssh_config, folder)}
    )


def _validated(document: Document, kind: type[Kind]) -> Kind:
    try:
        return kind.model_validate(document.data, by_alias=True, by_name=False)
    except ValidationError as error:
        raise spec_error(error, document, kind) from None


def _settings(file: Path, what: str, such_as: str) -> Document:
    document = read(file)
    if not isinstance(document.data, dict):
        raise SpecError(f"{file}: {what} is settings by name, such as {such_as}", file=str(file))
    return document


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None  # the strict reader says what is wrong


def _absolute(path: str | None, folder: Path) -> str | None:
    return None if path is None else str(folder.absolute() / Path(path).expanduser())
