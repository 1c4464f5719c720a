"""Write plain values as one line of YAML 1.2, or as the short form that messages quote.

Strings that an older YAML reader would take for something else (off, yes, 1e-3) are quoted, and
everything unusual is escaped, so that one line stays one line. Blocks are written by `render`.
"""

from __future__ import annotations

import math
import re

_PLAIN = re.compile(r"[A-Za-z/](?:[\w./:+-]*[\w/])?", re.ASCII)
_NOT_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_WIDTH = 60
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def flow(value: object) -> str:
    """Write null, a boolean, number, string, list or mapping on one line of YAML.

    Raises:
        TypeError: The value, or something in it, is none of these.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _float(value)
        case str():
            return _string(value)
        case list() | tuple():
            return "[" + ", ".join(flow(item) for item in value) + "]"
        case dict():
            pairs = (f"{flow(key)}: {flow(item)}" for key, item in value.items())
            return "{" + ", ".join(pairs) + "}"
        case _:
            raise TypeError(f"{type(value).__name__} has no YAML form")


def quoted(value: object) -> str:
    """Return the value as a message shows it: strings always in quotes, long ones cut."""
    if isinstance(value, str):
        text = repr(value)
    else:
        try:
            text = flow(value)
        except TypeError:
            text = f"a Python {type(value).__name__}"
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    mantissa, e, exponent = repr(value).partition("e")
    # YAML 1.1 readers take 1e-3 for a string but 1.0e-3 for a number; both mean the same here.
    return f"{mantissa}.0e{exponent}" if e and "." not in mantissa else mantissa + e + exponent


def _string(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return '"' + "".join(_character(char) for char in value) + '"'


def _character(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
