"""Find the job's data on this machine: `python -m phalanx.launch.data_lookup`.

Started by the preflight on every machine, with the code that was sent there. Reads candidate
locations from standard input, opens the data in each (which also decodes it for the run), and
prints the first that holds the expected samples.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from phalanx.data.dataset import open_dataset
from phalanx.errors import PhalanxError
from phalanx.spec.data import DataSpec


class DataLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate path and directory of a data set on a machine."""

    data: dict[str, object]
    root: str


class DataQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate locations and the expected fingerprint."""

    locations: list[DataLocation]
    cache_root: str
    fingerprint: str | None
    """Fingerprint of the expected samples; None: any."""


class DataFound(msgspec.Struct, frozen=True, kw_only=True):
    """The matching location, or the reason why none matches."""

    location: int | None
    fingerprint: str = ""
    reasons: list[str] = []


def search(wanted: DataQuery) -> DataFound:
    """Return the first location that holds the expected samples."""
    reasons: list[str] = []
    for number, location in enumerate(wanted.locations):
        spec = DataSpec.model_validate(location.data)
        root = Path(location.root).expanduser()
        try:
            cache_root = Path(wanted.cache_root).expanduser()
            found = open_dataset(spec, data_root=root, cache_root=cache_root).fingerprint
        except PhalanxError as error:
            reasons.append(str(error))
            continue
        if wanted.fingerprint in (None, found):
            return DataFound(location=number, fingerprint=found, reasons=reasons)
        reasons.append(f"{spec.name} in {root} has other samples than here")
    return DataFound(location=None, reasons=reasons)


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=DataQuery)
    sys.stdout.write(msgspec.json.encode(search(asked)).decode() + "\n")
