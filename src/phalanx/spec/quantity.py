"""Parse sizes and speeds with units: `8GB`, `512MiB`, `100Mbit/s`.

Specs use the annotated types; filters of pools parse with the functions. `GB` is 10^9 bytes and
`GiB` 2^30, as in IEC 80000-13.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from phalanx.spec.base import Words, fault
from phalanx.spec.flow import quoted

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z/]*)")
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_BITS_PER_S = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def parse_bytes(text: str) -> int | None:
    """Return the bytes in `8GB`, `512 MiB` or `1000`; None if the text is no size."""
    return _parse(text, _BYTES)


def parse_bits_per_s(text: str) -> int | None:
    """Return the bits per second in `100Mbit/s` or `1 Gbit/s`; None if the text is no speed."""
    return _parse(text.lower().removesuffix("/s").removesuffix("ps"), _BITS_PER_S)


def _parse(text: str, factors: Mapping[str, int]) -> int | None:
    found = _NUMBER.fullmatch(text.strip())
    factor = factors.get(found.group(2).lower()) if found else None
    return None if found is None or factor is None else round(float(found.group(1)) * factor)


def _parsed(parse: Callable[[str], int | None], what: str, hint: str) -> BeforeValidator:
    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        found = parse(value)
        if found is None:
            raise fault(f"{quoted(value)} is no {what}", hint)
        return found

    return BeforeValidator(read)


Bytes = Annotated[
    int,
    _parsed(parse_bytes, "size", "; write 8GB or 512MiB"),
    Field(gt=0),
    Words("a size above 0 such as 8GB or 512MiB, or a number of bytes"),
]
"""A size; files may give it with a unit, inside it is a number of bytes."""

BitsPerSecond = Annotated[
    int,
    _parsed(parse_bits_per_s, "speed of a link", "; write 100Mbit/s or 1Gbit/s"),
    Field(gt=0),
    Words("a speed above 0 such as 100Mbit/s, or a number of bits per second"),
]
"""The speed of a link; files may give it with a unit, inside it is bits per second."""
