"""Stage the job's data on every machine: find it at known locations, or send it if it is small.

Data sets are equal if their decoded samples are; paths and dates do not matter. Called by the
preflight after the code was sent, because the lookup runs the code of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from phalanx.data.catalogue import CATALOGUE
from phalanx.data.dataset import open_dataset
from phalanx.data.directory import locate
from phalanx.data.image_folder import image_files
from phalanx.data.parquet import parquet_files
from phalanx.errors import DataError, LaunchError, SpecError
from phalanx.launch.code_package import CodePackage, pack
from phalanx.launch.data_lookup import DataFound, DataLocation, DataQuery
from phalanx.launch.preflight_host import CACHE, PreflightHost, for_each_host, unfit
from phalanx.spec.data import DataSpec, is_path
from phalanx.spec.urls import is_url

MAX_DATA_BYTES = 256 << 20
_LOOK_S = 600.0
_COPY_S = 6 * 3600.0  # machines copy files by URL themselves


def stage_data(
    spec: DataSpec, machines: Sequence[PreflightHost], *, data_root: Path, cache_root: Path
) -> None:
    """Find or send the data on every machine and record its location.

    Args:
        spec: The job's data.
        machines: Hosts of the preflight that already have the code.
        data_root: Directory of data sets on this machine.
        cache_root: Directory of decoded data on this machine.

    Raises:
        MachinesUnfit: A machine does not have it, and it is too large to be sent.
        SpecError: It is missing here and differs between machines.
        DataError: It is missing or corrupt here and differs between machines.
    """
    try:
        own = open_dataset(spec, data_root=data_root, cache_root=cache_root).fingerprint
        files = data_files(spec, data_root)
    except (DataError, SpecError) as error:
        _agree(spec, machines, error)
        return
    locations = locations_of(spec, data_root)
    found = for_each_host(machines, lambda one: _look(one, locations, own))
    absent = [one for one, there in zip(machines, found, strict=True) if there.location is None]
    if not absent:
        return
    size_bytes = sum(path.stat().st_size for path in files.values())
    if is_url(spec.name):
        said = {
            one.name: there.reasons[0]
            for one, there in zip(machines, found, strict=True)
            if there.location is None
        }
        raise unfit(said, len(machines))
    if not files or size_bytes > MAX_DATA_BYTES:
        advice = (
            f"{spec.name} is not there, and it is too large to be sent ({size_bytes >> 20} MiB, "
            f"{MAX_DATA_BYTES >> 20} at most); copy it to {locations[0].root} there, for instance "
            "with rsync"
        )
        raise unfit({one.name: advice for one in absent}, len(machines))
    package = pack(files, compress=False)
    for_each_host(absent, lambda one: _send(one, spec, package, own))


def locations_of(spec: DataSpec, data_root: Path) -> list[DataLocation]:
    """Return the candidate locations of the data on a machine: as here, and the default one."""
    if is_url(spec.name):
        return [DataLocation(data=_mapping(spec), root=f"{CACHE}/data")]
    here = spec
    if spec.directory is not None:
        here = spec.model_copy(update={"directory": str(Path(spec.directory).expanduser())})
    elif is_path(spec.name):
        path = Path(spec.name).expanduser()
        here = spec.model_copy(update={"name": str(path.resolve())})
    usual = spec.model_copy(update={"directory": None})
    return [
        DataLocation(data=_mapping(here), root=str(data_root.resolve())),
        DataLocation(data=_mapping(usual), root=f"{CACHE}/data"),
    ]


def data_files(spec: DataSpec, data_root: Path) -> dict[str, Path]:
    """Return the files of a data set by archive name; empty for generated data and data by URL."""
    root = Path(spec.directory).expanduser() if spec.directory is not None else data_root
    entry = CATALOGUE.get(spec.name)
    if spec.is_outside or is_url(spec.name):
        return {}
    if entry is not None:
        if not entry.files:
            return {}
        return {f"{entry.name}/{path.name}": path for path in locate(entry, root).files}
    given = Path(spec.name).expanduser()
    path = given if given.exists() else root / given
    if path.is_dir():
        files = parquet_files(path) or image_files(path)
        return {f"{path.name}/{one.relative_to(path)}": one for one in files}
    return {path.name: path}


def data_there(spec: DataSpec, folder: str) -> DataSpec:
    """Return the spec of a data set on a machine that received `data_files`."""
    if not is_path(spec.name):
        return spec.model_copy(update={"directory": folder})
    return spec.model_copy(update={"name": f"{folder}/{Path(spec.name).name}", "directory": None})


def _agree(spec: DataSpec, machines: Sequence[PreflightHost], error: Exception) -> None:
    """Accept data that is missing here if all machines have the same."""
    locations = [DataLocation(data=_mapping(spec), root=f"{CACHE}/data")]
    found = for_each_host(machines, lambda one: _look(one, locations, None))
    if (
        len({(there.location, there.fingerprint) for there in found}) > 1
        or found[0].location is None
    ):
        raise error


def _send(one: PreflightHost, spec: DataSpec, package: CodePackage, fingerprint: str) -> None:
    folder = one.send("sent", package)
    location = DataLocation(data=_mapping(data_there(spec, folder)), root=folder)
    found = _look(one, [location], fingerprint)
    if found.location is None:
        raise LaunchError(f"{spec.name} was sent, but cannot be used: {found.reasons[0]}")


def _look(
    one: PreflightHost, locations: Sequence[DataLocation], fingerprint: str | None
) -> DataFound:
    """Run the data lookup on a machine and record its result."""
    question = DataQuery(
        locations=list(locations), cache_root=f"{CACHE}/cache", fingerprint=fingerprint
    )
    limit_s = _COPY_S if any(is_url(str(one.data["name"])) for one in locations) else _LOOK_S
    order: dict[str, Any] = {
        "do": "run",
        "command": [one.python, "-m", "phalanx.launch.data_lookup"],
        "environment": {"PYTHONPATH": ":".join(one.code)},
        "input": msgspec.json.encode(question).decode(),
        "limit_s": limit_s,
    }
    done = one.session.ask(order, limit_s)
    if done["code"] != 0:
        said = (done["stderr"].strip() or "nothing").splitlines()[-1]
        raise LaunchError(f"searching for data there failed: {said}")
    found = msgspec.json.decode(done["stdout"].strip().splitlines()[-1], type=DataFound)
    if found.location is not None:
        one.location = locations[found.location]
    return found


def _mapping(spec: DataSpec) -> dict[str, object]:
    return spec.model_dump(mode="json", by_alias=True)
