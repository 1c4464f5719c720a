"""`python -m phalanx.launch.look_for_data`: is the job's data on this machine?

Started by the preflight on every machine, with the code that was sent there. Reads the places to
look in from standard input, opens the data in each, which also decodes it for the run, and prints
the first place that holds the wanted samples.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from phalanx.data.dataset import open_dataset
from phalanx.errors import PhalanxError
from phalanx.spec.data import DataSpec


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A data set by the name and directory that it may have on a machine."""

    data: dict[str, object]
    root: str


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look, and for what."""

    places: list[Place]
    cache_root: str
    fingerprint: str | None
    """Of the wanted samples; None: whatever is there."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Which place it was, or why none."""

    place: int | None
    fingerprint: str = ""
    reasons: list[str] = []


def search(wanted: Search) -> Found:
    """Look into the places, one after the other."""
    reasons: list[str] = []
    for number, place in enumerate(wanted.places):
        spec = DataSpec.model_validate(place.data)
        root = Path(place.root).expanduser()
        try:
            cache_root = Path(wanted.cache_root).expanduser()
            found = open_dataset(spec, data_root=root, cache_root=cache_root).fingerprint
        except PhalanxError as error:
            reasons.append(str(error))
            continue
        if wanted.fingerprint in (None, found):
            return Found(place=number, fingerprint=found, reasons=reasons)
        reasons.append(f"{spec.name} in {root} has other samples than here")
    return Found(place=None, reasons=reasons)


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Search)
    sys.stdout.write(msgspec.json.encode(search(asked)).decode() + "\n")
