"""Make malformed frames out of well-formed ones, knowing how they are built; all by a seed."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import msgspec

from phalanx.wire.bulk import HEADER, MAGIC, BulkOp, Header, Kind

# Where integers, lengths and indices break.
NUMBERS = (0, 1, -1, 127, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63)
WORDS = ("", "\0", "../../etc/passwd", "worker-99", "x" * 5000, "\N{GREEK SMALL LETTER PHI}" * 99)
Mutation = Callable[[random.Random, bytes], bytes]


def mutate_bytes(chance: random.Random, frame: bytes) -> bytes:
    """Flip, cut, double or replace bytes of a frame, whatever they mean."""
    data = bytearray(frame)
    match chance.randrange(6):
        case 0:
            for _ in range(chance.randrange(1, 9)):
                if data:
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 1:
            del data[chance.randrange(len(data) + 1) :]
        case 2:
            data += chance.randbytes(chance.randrange(1, 200))
        case 3:
            place = chance.randrange(len(data) + 1)
            data[place:place] = data[: chance.randrange(len(data) + 1)]
        case 4:
            data = bytearray(chance.randbytes(chance.randrange(300)))
        case _:
            place = chance.randrange(len(data) + 1)
            data[place : place + 8] = struct.pack(">Q", chance.choice(NUMBERS) % 2**64)
    return bytes(data)


def mutate_msgpack(chance: random.Random, frame: bytes) -> bytes:
    """Change a value, a type, a name or the depth somewhere in a message; at times its bytes."""
    if chance.random() < 0.3:
        return mutate_bytes(chance, frame)
    try:
        value = msgspec.msgpack.decode(frame)
        return msgspec.msgpack.encode(mutate_value(chance, value))
    except (msgspec.MsgspecError, OverflowError, UnicodeError, TypeError):
        return mutate_bytes(chance, frame)


def mutate_json(chance: random.Random, frame: bytes) -> bytes:
    """The same for a line or a body of JSON."""
    if chance.random() < 0.3:
        return mutate_bytes(chance, frame)
    return json.dumps(mutate_value(chance, json.loads(frame)), default=repr).encode()


def mutate_value(chance: random.Random, value: Any) -> Any:
    """Change something in a nested value."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        changed = dict(value)
        key = chance.choice(list(changed))
        match chance.randrange(5):
            case 0:
                del changed[key]
            case 1:
                changed[chance.choice(WORDS)] = changed.pop(key)
            case _:
                changed[key] = mutate_value(chance, changed[key])
        return changed
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        return [*value[:place], mutate_value(chance, value[place]), *value[place + 1 :]]
    return _another(chance, value)


def _another(chance: random.Random, value: Any) -> Any:
    deep: Any = value
    match chance.randrange(8):
        case 0 | 1:
            return chance.choice(NUMBERS)
        case 2:
            return chance.choice(WORDS)
        case 3:
            return chance.choice([None, True, [], {}, float("inf"), float("nan"), -0.5, 1e308])
        case 4:
            for _ in range(chance.choice([3, 40, 900])):
                deep = [deep] if chance.random() < 0.5 else {"a": deep}
            return deep
        case 5:
            return [value] * chance.randrange(50)
        case 6:
            return chance.randbytes(chance.randrange(40)).hex()
        case _:
            return value + 1 if isinstance(value, int | float) else str(value)


def mutate_header(chance: random.Random, frame: bytes) -> bytes:
    """Set some numbers of a bulk header to where they break; at times its bytes."""
    if len(frame) != HEADER.size or chance.random() < 0.3:
        return mutate_bytes(chance, frame)
    fields = list(HEADER.unpack(frame))
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(fields))
        if isinstance(fields[place], float):
            fields[place] = chance.choice([-1.0, 0.0, 1e308, float("inf"), float("nan")])
        else:
            bits = 8 * struct.calcsize("<" + HEADER.format[1:][place])
            fields[place] = chance.choice([*NUMBERS, chance.getrandbits(64)]) % 2**bits
    return HEADER.pack(*fields)


def is_bulk(frame: bytes) -> bool:
    """Whether a frame still has the form of a header."""
    return Header.unpack(frame) is not None


def sample_headers(chance: random.Random, **own: int) -> list[bytes]:
    """One header of every type, as a client would send it."""
    return [
        Header(op=op, kind=kind, clock=1, num_samples=4, num_bytes=size, **own).pack()  # type: ignore[arg-type]
        for op in BulkOp
        for kind, size in ((Kind.NOTHING, 0), (Kind.F32, 16), (Kind.INT8, 8))
    ]


def sample_of(kind: Any, chance: random.Random) -> Any:
    """A value of a type, made up; structures get all of their fields."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = {field.name: field.type for field in msgspec.structs.fields(kind)}
        return kind(**{name: sample_of(hint, chance) for name, hint in hints.items()})
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: sample_of(hint, chance) for name, hint in hints.items()})
    arguments = get_args(kind)
    origin = getattr(kind, "__origin__", None)
    if origin is tuple:
        some = [one for one in arguments if one is not Ellipsis]
        return tuple(sample_of(one, chance) for one in some)
    if origin is list:
        return [sample_of(arguments[0], chance)]
    if origin is dict:
        return {sample_of(arguments[0], chance): sample_of(arguments[1], chance)}
    if arguments:
        return sample_of(chance.choice(arguments), chance)
    plain: dict[Any, Any] = {
        int: chance.randrange(5),
        float: chance.random(),
        str: chance.choice(["worker-0", "a", ""]),
        bytes: chance.randbytes(8),
        bool: chance.random() < 0.5,
        type(None): None,
    }
    return plain.get(kind, chance.choice(arguments) if arguments else kind)


def raw_frames(chance: random.Random) -> bytes:
    """What a stranger may write to a port: ZeroMQ's greeting and more, nearly right or not at all.

    A third of them ends in the greeting, a third in the handshake, a third means nothing.
    """
    mechanism = chance.choice([b"CURVE", b"PLAIN", b"NULL", b"", b"X" * 20])
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)
    match chance.randrange(3):
        case 0:
            return mutate_bytes(chance, greeting)
        case 1:
            size = chance.choice([0, 1, 200, 255, 2**31, 2**63 - 1])
            head = bytes([chance.choice([0, 1, 2, 4, 6, 7])])
            head += struct.pack(">Q", size) if head[0] & 2 else bytes([size % 256])
            body = chance.choice([b"\x05HELLO", b"\x08INITIATE", b"\x05READY", b""])
            return greeting + head + body + chance.randbytes(chance.randrange(250))
        case _:
            return chance.randbytes(chance.randrange(1, 400)) + struct.pack("<H", MAGIC)
