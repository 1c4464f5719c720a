"""Parse a selection of machines: a policy, and free filters such as `cpus: 4+`.

`pool.selection` applies it to an inventory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from phalanx.errors import SpecError
from phalanx.spec.flow import quoted
from phalanx.spec.names import did_you_mean
from phalanx.spec.quantity import parse_bytes

PolicyName = Literal["all", "cpu", "gpu", "energy", "fastest", "cheapest"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
_RANKED = ("fastest", "cheapest")
_PUBLISHED = {"cpus": "cpu", "gpus": "gpu"}

SIZES = ("memory", "disk")
"""Keys of filters whose value is a size."""
NUMBERS = ("cpus", "gpus", "slots", "speed", "price", "watts")
"""Keys of filters whose value is a plain number."""
WORDS = ("label", "name", "model")
"""Keys of filters whose value is text."""
_SYNONYMS = {"cores": "cpus", "cpu": "cpus", "gpu": "gpus", "ram": "memory", "labels": "label"}

_FILTER = re.compile(r"\s*([A-Za-z_]+)\s*[:=]\s*(.+?)\s*", re.DOTALL)
_RANGE = re.compile(r"(.+?)\s*\.\.\s*(.+)")


@dataclass(frozen=True)
class Policy:
    """One of the policies; those that rank take the first `count` machines."""

    name: PolicyName
    count: int | None = None
    """How many; None for the policies that do not rank."""

    def __str__(self) -> str:
        return self.name if self.count in (None, 1) else f"{self.name}:{self.count}"


@dataclass(frozen=True)
class Filter:
    """One condition; either bounds of a number or a word."""

    key: str
    low: float = -math.inf
    high: float = math.inf
    word: str | None = None
    text: str = ""
    """As it was written."""


def parse_policy(text: str) -> Policy:
    """Read `gpu`, `fastest` or `fastest:3`; the published names `-gpus` and `-cpus` are known too.

    Raises:
        SpecError: There is no such policy, or the number does not fit it.
    """
    word, colon, number = text.strip().lstrip("-").partition(":")
    name = _PUBLISHED.get(word, word)
    known = next((policy for policy in POLICIES if policy == name), None)
    if known is None:
        raise SpecError(
            f"unknown policy {quoted(text)}{did_you_mean(name, POLICIES)} "
            f"(valid: {', '.join(POLICIES)})"
        )
    if known not in _RANKED:
        if colon:
            raise SpecError(f"policy '{known}' takes no number; write '{known}'")
        return Policy(known)
    if colon and (not number.isdecimal() or int(number) < 1):
        raise SpecError(f"{quoted(text)}: write a whole number above 0, such as '{known}:2'")
    return Policy(known, int(number) if colon else 1)


def parse_filters(texts: Iterable[str]) -> tuple[Filter, ...]:
    """Read filters such as `cpus: 4+`, `memory: 8GB+`, `price: 0..0.5` and `label=rack-a`.

    Raises:
        SpecError: One is no filter; the sentence says what would be.
    """
    return tuple(_filter(text) for text in texts)


def _filter(text: str) -> Filter:
    found = _FILTER.fullmatch(text)
    if found is None:
        raise SpecError(f"{quoted(text)} is no filter; write 'cpus: 4+' or 'label=rack-a'")
    written, value = found.group(1).lower(), found.group(2)
    key = _SYNONYMS.get(written, written)
    valid = (*NUMBERS, *SIZES, *WORDS)
    if key not in valid:
        raise SpecError(
            f"unknown filter {quoted(written)}{did_you_mean(written, valid)} "
            f"(valid: {', '.join(valid)})"
        )
    if key in WORDS:
        return Filter(key, word=value, text=text.strip())
    low, high = _bounds(key, value, text)
    return Filter(key, low=low, high=high, text=text.strip())


def _bounds(key: str, value: str, text: str) -> tuple[float, float]:
    between = _RANGE.fullmatch(value)
    if between is not None:
        low, high = (_number(key, part, text) for part in between.groups())
        if low > high:
            raise SpecError(f"{quoted(text)}: the range must rise")
        return low, high
    if value.endswith("+"):
        return _number(key, value[:-1], text), math.inf
    if value.endswith("-"):
        return -math.inf, _number(key, value[:-1], text)
    number = _number(key, value, text)
    return number, number


def _number(key: str, word: str, text: str) -> float:
    if key in SIZES:
        size = parse_bytes(word)
        if size is None:
            raise SpecError(f"{quoted(text)}: {quoted(word)} is no size; write '{key}: 8GB+'")
        return float(size)
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise SpecError(f"{quoted(text)}: {quoted(word)} is no number; write '{key}: 4+'")
    return number
