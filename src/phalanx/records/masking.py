"""Mask passwords and tokens in a command line before it is written down."""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "***"
_SECRET = r"(?:pass(?:word|wd|phrase)?|secret|token|credentials?|api[_-]?key|access[_-]?key)"
# `--token`, `storage.api_key`: the last word of a name decides.
_NAME = re.compile(rf"(?:.*[-_.])?{_SECRET}", re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"((?:^|[\s{{,&?;-])[\w.-]*?{_SECRET}['\"]?\s*[=:]\s*)[^\s,}}&;]+", re.IGNORECASE
)
_IN_URL = re.compile(r"(\w[\w+.-]*://)[^/\s@]+@")


def mask_secrets(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the values of options that are named like secrets.

    Users and passwords in addresses are masked as well.
    """
    found = []
    is_secret = False
    for word in arguments:
        if is_secret and not word.startswith("-"):
            found.append(MASK)
        else:
            shown = _IN_URL.sub(rf"\1{MASK}@", word)
            found.append(_ASSIGNED.sub(rf"\1{MASK}", shown))
        is_secret = (
            word.startswith("-") and "=" not in word and bool(_NAME.fullmatch(word.lstrip("-")))
        )
    return found
