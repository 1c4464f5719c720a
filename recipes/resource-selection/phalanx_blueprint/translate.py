"""Translate the published blueprint, a JSON list of connections, into machines of a pool.

As published it is not valid JSON, spells one key in two ways, writes booleans as bare words and
holds passwords. Each fault is repaired and reported in one sentence.
"""

from __future__ import annotations

from pathlib import Path

from phalanx.errors import SpecError
from phalanx.spec.document import Document, read_text
from phalanx.spec.flow import quoted
from phalanx.spec.machine import SECRET_KEYS
from phalanx.spec.pool_file import ReadInventory
from phalanx_blueprint.lenient_json import Mended, read_leniently

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


def read_blueprint(file: Path) -> ReadInventory:
    """Read a blueprint.

    Raises:
        SpecError: It is missing or cannot be repaired; one sentence with line.
    """
    source = str(file)
    read = read_leniently(read_text(file), source)
    connections = read.data.get("connections") if isinstance(read.data, dict) else None
    if not isinstance(connections, list):
        raise SpecError(f"{source}: 'connections' must be a list of machines", file=source)
    document = Document([], {(): read.marks[("connections",)]})
    document.data = [_machine(one, index, read, document) for index, one in enumerate(connections)]
    return ReadInventory(document, tuple(read.notes))


def _machine(connection: object, index: int, read: Mended, document: Document) -> object:
    path = ("connections", index)
    document.marks[(index,)] = read.marks[path]
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
        document.marks[index, _KEYS[name]] = where
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
