"""Suggest the name that was probably meant.

Used where names are looked up: job files, overrides, catalogues of implementations.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# What other systems call the same setting, where the spelling is too far off for a comparison.
SYNONYMS = {
    "learning_rate": "lr",
    "network": "model",
    "max_norm": "clip_norm",
    "grad_clip": "clip_norm",
    "cores": "threads",
    "h": "every",
}


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """Return the tail of a message: `; did you mean 'sgd'?`, or nothing if no name is close."""
    found = nearest_name(word, valid)
    return f"; did you mean '{found}'?" if found is not None else ""


def nearest_name(word: str, valid: Iterable[str]) -> str | None:
    """Return the name that was probably meant; None if no name is close."""
    folded = {_fold(name): name for name in valid}
    synonym = SYNONYMS.get(word.lower())
    if synonym in folded.values():
        return synonym
    found = difflib.get_close_matches(_fold(word), folded, n=1)
    return folded[found[0]] if found else None


def _fold(name: str) -> str:
    return name.lower().replace("_", "-")
