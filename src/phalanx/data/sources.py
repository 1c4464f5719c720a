"""From the name in a job to the source that reads it; called by `dataset` and by commands."""

from __future__ import annotations

import difflib
from pathlib import Path

from phalanx.data.base import Source
from phalanx.data.catalogue import CATALOGUE, Entry
from phalanx.data.directory import Located, locate
from phalanx.errors import DataError, SpecError
from phalanx.spec.data import DataSpec


def open_source(spec: DataSpec, *, data_root: Path) -> Source:
    """Find the data set that a job asks for.

    Args:
        spec: The job's data section; its `directory` beats `data_root`.
        data_root: Where the files of built-in data sets lie.
    """
    root = Path(spec.directory).expanduser() if spec.directory is not None else data_root
    entry = CATALOGUE.get(spec.name)
    if entry is not None:
        return _made(spec, root) if entry.kind == "made" else _built_in(entry, root)
    path = _existing(spec.name, root)
    if path is None:
        raise _unknown(spec.name)
    return _from_path(path, spec)


def _made(spec: DataSpec, root: Path) -> Source:
    if spec.name == "redshift":
        from phalanx.data.redshift import RedshiftSource

        return RedshiftSource(spec.resolved_spectra, root=root)
    from phalanx.data.land_cover import LandCoverSource

    return LandCoverSource(spec.resolved_scenes)


def _built_in(entry: Entry, root: Path) -> Source:
    # Imported on use: the decoders' own imports would slow down every start.
    if entry.kind == "embedded":
        from phalanx.data.digits import DigitsSource

        return DigitsSource()
    return source_of(locate(entry, root))


def source_of(located: Located) -> Source:
    """The source that reads the files found for a built-in data set."""
    if located.layout == "idx":
        from phalanx.data.idx import IdxSource

        return IdxSource(located)
    if located.layout == "parquet":
        from phalanx.data.parquet import ParquetSource

        return ParquetSource(located.files, name=located.name, num_classes=10)
    from phalanx.data.cifar import CifarSource

    return CifarSource(located)


def _from_path(path: Path, spec: DataSpec) -> Source:
    if path.is_file() and path.suffix == ".npz" and spec.modalities:
        from phalanx.data.npz_modalities import NpzModalitiesSource

        return NpzModalitiesSource(path, names=spec.modalities, target_key=spec.target_key)
    if path.is_file() and path.suffix == ".npz":
        from phalanx.data.npz import NpzSource

        return NpzSource(path, input_key=spec.input_key, target_key=spec.target_key)
    from phalanx.data.parquet import ParquetSource, parquet_files

    files = parquet_files(path) if path.is_dir() else (path,)
    if not files or files[0].suffix != ".parquet":
        raise DataError(
            f"{path} is neither a .npz file, nor a .parquet file, nor a folder with .parquet files",
            path=path,
        )
    return ParquetSource(
        files, name=path.stem, input_key=spec.input_key, target_key=spec.target_key
    )


def _existing(name: str, root: Path) -> Path | None:
    given = Path(name).expanduser()
    return next((path for path in (given, root / given) if path.exists()), None)


def _unknown(name: str) -> SpecError:
    if "/" in name or Path(name).suffix in (".npz", ".parquet"):
        return SpecError(f"data: there is no file or folder '{name}'; check the path", name=name)
    near = difflib.get_close_matches(name, CATALOGUE, n=1)
    guess = f"did you mean '{near[0]}'? " if near else ""
    return SpecError(
        f"data: unknown data set '{name}'; {guess}known are {', '.join(CATALOGUE)}, "
        "and the path of a .npz or .parquet file or folder",
        name=name,
    )
