"""The job's data on every machine: found where it may be, or sent if it is small.

Data is the same if its decoded samples are, so paths and dates do not matter. Called by the
preflight once code is there, because the machines look with the code of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from phalanx.data.dataset import open_dataset
from phalanx.errors import DataError, LaunchError, SpecError
from phalanx.launch.candidates import CACHE, Candidate, ask_each, unfit
from phalanx.launch.look_for_data import Found, Place, Search
from phalanx.launch.parcel import MAX_DATA_BYTES, Parcel, data_files, data_there, pack
from phalanx.spec.data import DataSpec, is_path

_LOOK_S = 600.0


def find_data(
    spec: DataSpec, machines: Sequence[Candidate], *, data_root: Path, cache_root: Path
) -> None:
    """Note in every candidate where its data is.

    Args:
        spec: The job's data.
        machines: The candidates, with code.
        data_root: Where data sets lie here.
        cache_root: Where decoded data is kept here.

    Raises:
        MachinesUnfit: A machine does not have it, and it is too much to be sent.
        SpecError: It is not here, and not the same on all machines.
        DataError: Likewise.
    """
    try:
        own = open_dataset(spec, data_root=data_root, cache_root=cache_root).fingerprint
        files = data_files(spec, data_root)
    except (DataError, SpecError) as error:
        _agree(spec, machines, error)
        return
    places = places_of(spec, data_root)
    found = ask_each(machines, lambda one: _look(one, places, own))
    absent = [one for one, there in zip(machines, found, strict=True) if there.place is None]
    if not absent:
        return
    size_bytes = sum(path.stat().st_size for path in files.values())
    if not files or size_bytes > MAX_DATA_BYTES:
        advice = (
            f"{spec.name} is not there, and it is too large to be sent ({size_bytes >> 20} MiB, "
            f"{MAX_DATA_BYTES >> 20} at most); copy it to {places[0].root} there, for instance "
            "with rsync"
        )
        raise unfit({one.name: advice for one in absent}, len(machines))
    parcel = pack(files, compress=False)
    ask_each(absent, lambda one: _send(one, spec, parcel, own))


def places_of(spec: DataSpec, data_root: Path) -> list[Place]:
    """Where a machine may have the data: at the same place as here, or where it is by default."""
    here = spec
    if spec.directory is not None:
        here = spec.model_copy(update={"directory": str(Path(spec.directory).expanduser())})
    elif is_path(spec.name):
        path = Path(spec.name).expanduser()
        here = spec.model_copy(update={"name": str(path.resolve())})
    usual = spec.model_copy(update={"directory": None})
    return [
        Place(data=_mapping(here), root=str(data_root.resolve())),
        Place(data=_mapping(usual), root=f"{CACHE}/data"),
    ]


def _agree(spec: DataSpec, machines: Sequence[Candidate], error: Exception) -> None:
    """The data is not here; if all machines have the same, that is as good."""
    places = [Place(data=_mapping(spec), root=f"{CACHE}/data")]
    found = ask_each(machines, lambda one: _look(one, places, None))
    if len({(there.place, there.fingerprint) for there in found}) > 1 or found[0].place is None:
        raise error


def _send(one: Candidate, spec: DataSpec, parcel: Parcel, fingerprint: str) -> None:
    folder = one.send("sent", parcel)
    place = Place(data=_mapping(data_there(spec, folder)), root=folder)
    found = _look(one, [place], fingerprint)
    if found.place is None:
        raise LaunchError(f"{spec.name} was sent, but cannot be used: {found.reasons[0]}")


def _look(one: Candidate, places: Sequence[Place], fingerprint: str | None) -> Found:
    """Search for the data on a machine; what is found is noted in the candidate."""
    question = Search(places=list(places), cache_root=f"{CACHE}/cache", fingerprint=fingerprint)
    order: dict[str, Any] = {
        "do": "run",
        "command": [one.python, "-m", "phalanx.launch.look_for_data"],
        "environment": {"PYTHONPATH": ":".join(one.code)},
        "input": msgspec.json.encode(question).decode(),
        "limit_s": _LOOK_S,
    }
    done = one.session.ask(order, _LOOK_S)
    if done["code"] != 0:
        said = (done["complained"].strip() or "nothing").splitlines()[-1]
        raise LaunchError(f"looking for data there failed: {said}")
    found = msgspec.json.decode(done["said"].strip().splitlines()[-1], type=Found)
    if found.place is not None:
        one.place = places[found.place]
    return found


def _mapping(spec: DataSpec) -> dict[str, object]:
    return spec.model_dump(mode="json", by_alias=True)
