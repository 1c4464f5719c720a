"""Translate the published blueprint, a JSON list of connections, into the form of a pool file.

As published it is not valid JSON, spells one key in two ways, writes booleans as bare words and
holds passwords. Each fault is repaired and reported in one sentence. Called by `pool_file`.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import SpecError
from phalanx.spec.document import Document, Path
from phalanx.spec.flow import quoted
from phalanx.spec.leniency import Mended, read_leniently
from phalanx.spec.machine import SECRET_KEYS

_KEYS = {
    "ip": "host",
    "host": "host",
    "username": "user",
    "user": "user",
    "port": "port",
    "gpus": "gpu",
    "energy efficient": "energy_efficient",
    "energy_efficient": "energy_efficient",
}
_ANSWERS = {"yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True)
class Blueprint:
    """A blueprint as a pool document, with a note for each repair."""

    document: Document
    notes: tuple[str, ...]


def is_blueprint(text: str) -> bool:
    """Return whether a file is a blueprint rather than a pool: JSON with connections."""
    start = text.lstrip("\ufeff \t\r\n")
    return start.startswith("{") and "connections" in start.partition("[")[0]


def read_blueprint(text: str, source: str) -> Blueprint:
    """Translate a blueprint.

    Raises:
        SpecError: It cannot be repaired; one sentence with line.
    """
    read = read_leniently(text.lstrip("\ufeff"), source)
    connections = read.data.get("connections") if isinstance(read.data, dict) else None
    if not isinstance(connections, list):
        raise SpecError(f"{source}: 'connections' must be a list of machines", file=source)
    document = Document({"pool": "blueprint"}, {(): read.marks[()]})
    document.marks[("machines",)] = read.marks[("connections",)]
    machines = [
        _machine(one, ("connections", index), read, document)
        for index, one in enumerate(connections)
    ]
    document.data = {"pool": "blueprint", "machines": machines}
    return Blueprint(document, tuple(read.notes))


def _machine(connection: object, path: Path, read: Mended, document: Document) -> object:
    target: Path = ("machines", path[-1])
    document.marks[target] = read.marks[path]
    if not isinstance(connection, dict):
        return connection
    machine: dict[str, object] = {}
    for key, value in connection.items():
        where = read.marks[*path, key]
        name = " ".join(key.lower().split())
        if name in SECRET_KEYS:
            read.notes.append(
                f"{where}: left out the {name}; Phalanx logs in with a key or the ssh agent"
            )
            continue
        if name not in _KEYS:
            read.notes.append(f"{where}: left out '{key}', which a blueprint does not have")
            continue
        if name == "energy efficient":
            read.notes.append(f"{where}: took '{key}' for 'energy_efficient'")
        document.marks[*target, _KEYS[name]] = where
        machine[_KEYS[name]] = _translated(_KEYS[name], value, f"{where}: ", read)
    return machine


def _translated(key: str, value: object, where: str, read: Mended) -> object:
    if key == "energy_efficient" and isinstance(value, str):
        answer = _ANSWERS.get(value.strip().lower())
        if answer is None:
            raise SpecError(f"{where}energy_efficient must be yes or no, not {quoted(value)}")
        return answer
    if key in ("gpu", "port") and isinstance(value, str) and value.strip().isdecimal():
        read.notes.append(f"{where}took the text {quoted(value)} for a number")
        return int(value)
    return value
