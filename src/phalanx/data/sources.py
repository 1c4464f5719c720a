"""Open the source that a job names; called by `dataset` and by commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from typing_extensions import override

from phalanx.data.base import FileSource, PartName, Samples, Source
from phalanx.data.catalogue import CATALOGUE
from phalanx.data.directory import Located, locate
from phalanx.errors import DataError, PhalanxError, SpecError
from phalanx.spec.data import SOURCES, DataSpec, is_path
from phalanx.spec.data_files import CsvSettings, ImageFolderSettings, TextSettings
from phalanx.spec.registry import load
from phalanx.spec.urls import is_url

_SCALE = 15  # stored values are 0..16; times 15 they fill a byte without overflowing it


def open_source(spec: DataSpec, *, data_root: Path, cache_root: Path) -> Source:
    """Find the data set that a job asks for, and copy it here if it is one by URL.

    Args:
        spec: The job's data; its `directory` beats `data_root`.
        data_root: Directory of data sets.
        cache_root: Directory of decoded data, and of copies of files by URL.
    """
    if is_url(spec.name):
        return _from_url(spec, cache_root)
    root = Path(spec.directory).expanduser() if spec.directory is not None else data_root
    if is_path(spec.name):
        path = _existing(spec.name, root)
        if path is None:
            raise SpecError(
                f"data: there is no file or folder '{spec.name}'; it was looked for beside the job "
                f"file, in {Path.cwd()} and in {root}",
                name=spec.name,
            )
        return _from_path(path, spec)
    opener = cast("Callable[..., object]", load(SOURCES.find(spec.name).open))
    source = opener(spec, root=root)
    if isinstance(source, Source):
        return source
    from phalanx.data.own import adapt

    return adapt(source, spec)


def open_callable(spec: DataSpec, *, root: Path) -> object:
    """Call a class or function of another package with the job's arguments.

    Raises:
        SpecError: It cannot be called like that, or raised an error.
    """
    make = cast("Callable[..., object]", load(SOURCES.find(spec.name).name))
    if inspect.isgeneratorfunction(make):
        return partial(make, **spec.args)
    try:
        return make(**spec.args)
    except PhalanxError:
        raise
    except TypeError as error:
        raise SpecError(f"data '{spec.name}': {error}", name=spec.name) from error
    except Exception as error:  # the user's code may raise anything; the cause stays attached
        raise SpecError(
            f"data '{spec.name}' raised {type(error).__name__}: {error}", name=spec.name
        ) from error


def open_built_in(spec: DataSpec, *, root: Path) -> Source:
    """Find the files of a built-in data set, if it has any."""
    entry = CATALOGUE[spec.name]
    # Imported on use: the decoders' own imports would slow down every start.
    if entry.kind == "embedded":
        return DigitsSource()
    return source_of(locate(entry, root))


def source_of(located: Located) -> Source:
    """Return the source that reads the files found for a built-in data set."""
    if located.layout == "idx":
        from phalanx.data.idx import IdxSource

        return IdxSource(located)
    if located.layout == "parquet":
        from phalanx.data.parquet import ParquetSource

        return ParquetSource(located.files, name=located.name, num_classes=10)
    from phalanx.data.cifar import CifarSource

    return CifarSource(located)


def _from_url(spec: DataSpec, cache_root: Path) -> Source:
    from phalanx.data.url_files import local_files

    path = local_files(spec.name, cache_root=cache_root, limit_bytes=spec.copies_bytes)
    try:
        source = _from_path(path, spec)
    except DataError as error:
        raise DataError(str(error).replace(str(path), spec.name), path=spec.name) from error
    source.address = spec.name
    return source


def _from_path(path: Path, spec: DataSpec) -> FileSource:
    if path.is_file() and path.suffix == ".npz" and spec.modalities:
        from phalanx.data.npz import NpzModalitiesSource

        return NpzModalitiesSource(path, names=spec.modalities, target_key=spec.target_key)
    if path.is_file() and path.suffix == ".npz":
        from phalanx.data.npz import NpzSource

        return NpzSource(path, input_key=spec.input_key, target_key=spec.target_key)
    if path.is_file() and path.suffix in (".csv", ".tsv"):
        from phalanx.data.csv_table import CsvSource

        return CsvSource(path, CsvSettings.model_validate(spec.args), target_key=spec.target_key)
    if path.is_file() and path.suffix == ".txt":
        from phalanx.data.text import TextSource

        return TextSource(path, TextSettings.model_validate(spec.args))
    from phalanx.data.parquet import ParquetSource, parquet_files

    files = parquet_files(path) if path.is_dir() else (path,)
    if path.is_dir() and not files:
        from phalanx.data.image_folder import ImageFolderSource, image_files

        if image_files(path):
            return ImageFolderSource(path, ImageFolderSettings.model_validate(spec.args))
    if not files or files[0].suffix != ".parquet":
        raise DataError(
            f"{path} is neither a .npz, .parquet, .csv, .tsv or .txt file, nor a folder with "
            ".parquet files or images",
            path=path,
        )
    return ParquetSource(
        files, name=path.stem, input_key=spec.input_key, target_key=spec.target_key
    )


def _existing(name: str, root: Path) -> Path | None:
    given = Path(name).expanduser()
    return next((path for path in (given, root / given) if path.exists()), None)


class DigitsSource(Source):
    """1,797 grey 8x8 digits of scikit-learn, imported on use; a fifth becomes the test part."""

    test_share = 0.2
    num_classes = 10

    @property
    @override
    def name(self) -> str:
        return "digits"

    @property
    @override
    def location(self) -> str:
        return "scikit-learn"

    @override
    def fingerprint(self) -> str:
        return "digits-of-scikit-learn"  # the samples have not changed since they were published

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        if part == "test":
            return
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = np.asarray(digits.images * _SCALE, dtype=np.uint8)[..., None]
        yield Samples(inputs=images, targets=np.asarray(digits.target, dtype=np.int64))
