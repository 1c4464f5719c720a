"""Read Parquet files and folders of them: columns of numbers, of lists, or of encoded images.

Each file is a unit for the shard policy `file`; with a single file, each of its row groups is.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from phalanx.data.arrays import as_samples
from phalanx.data.base import Array, FileSource, PartName, Samples
from phalanx.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# Columns that stand in for the default names x and y, as exports of public data sets call them.
_INPUT_NAMES = ("x", "image", "img", "images")
_TARGET_NAMES = ("y", "label", "labels", "target")
_GREY_MODES = ("1", "L")
_COLOUR_MODES = ("RGB", "RGBA", "P", "CMYK", "YCbCr", "LA")


class ParquetSource(FileSource):
    """One Parquet file or a folder of them.

    Files whose name has the word `test` make the test part; all others are for training, also those
    called validation, since the split into training and validation is Phalanx's own.
    """

    def __init__(
        self,
        files: tuple[Path, ...],
        *,
        name: str,
        input_key: str = "x",
        target_key: str = "y",
        num_classes: int | None = None,
    ) -> None:
        self._keys = (input_key, target_key)
        place = files[0] if len(files) == 1 else min(files).parent
        ordered = tuple(sorted(files))
        super().__init__(name, place, ordered, decoder=f"parquet-2 {self._keys}")
        self._mode: str | None = None
        self.num_classes = num_classes

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        files = self._parts[part]
        for path in files:
            with self._open(path) as file:
                columns = self._columns(path, file.schema_arrow.names)
                groups = [[group] for group in range(file.num_row_groups)]
                if len(files) > 1:
                    groups = [[group for one in groups for group in one]]
                for group in groups:
                    yield self._decode(file, group, columns, path)

    @cached_property
    def _parts(self) -> dict[PartName, tuple[Path, ...]]:
        test = tuple(path for path in self._files if _is_test(path))
        train = tuple(path for path in self._files if path not in test)
        # A folder of nothing but test files is a complete data set.
        return {"train": train, "test": test} if train else {"train": test, "test": ()}

    def _open(self, path: Path) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(path, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from error

    def _columns(self, path: Path, present: list[str]) -> tuple[str, str]:
        columns = []
        for key, default, names in zip(
            self._keys, ("x", "y"), (_INPUT_NAMES, _TARGET_NAMES), strict=True
        ):
            wanted = names if key == default else (key,)
            found = next((name for name in wanted if name in present), None)
            if found is None:
                raise DataError(
                    f"{path} has no column '{key}' (it has: {', '.join(present)}); "
                    "name the columns with data.input_key and data.target_key",
                    path=path,
                )
            columns.append(found)
        return columns[0], columns[1]

    def _decode(
        self, file: pq.ParquetFile, groups: list[int], columns: tuple[str, str], path: Path
    ) -> Samples:
        import pyarrow as pa

        try:
            table = file.read_row_groups(groups, columns=list(columns))
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from error
        inputs = table.column(columns[0]).combine_chunks()
        targets = table.column(columns[1]).combine_chunks()
        return as_samples(
            self._inputs(inputs, path, columns[0]),
            _numbers(targets, path, columns[1]),
            origin=str(path),
        )

    def _inputs(self, column: pa.Array, path: Path, name: str) -> Array:
        import pyarrow as pa

        if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            column = column.field("bytes")
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            images, self._mode = decode_images(
                column.to_pylist(), origin=str(path), mode=self._mode
            )
            return images
        return _numbers(column, path, name)


def parquet_files(folder: Path) -> tuple[Path, ...]:
    """List all Parquet files in a folder and its subfolders, in a fixed order."""
    return tuple(sorted(folder.rglob("*.parquet")))


def _is_test(path: Path) -> bool:
    words = re.split(r"[^a-z0-9]+", path.stem.lower())
    return "test" in words or path.parent.name.lower() == "test"


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path} is truncated, corrupt or not a Parquet file ({str(error).splitlines()[0]}); "
        "get it again from where it came",
        path=path,
    )


def _numbers(column: Any, path: Path, name: str) -> Array:
    """Convert a column of numbers, or of (nested) lists of one length, to an array."""
    import pyarrow as pa

    if column.null_count:
        raise DataError(
            f"{path}: column '{name}' has {column.null_count} empty values; remove such rows",
            path=path,
        )
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    lengths: list[int] = []
    num_rows = len(column)
    while pa.types.is_list(column.type) or _is_other_list(column.type):
        flat = column.flatten()
        rows = len(column)
        width = len(flat) // rows if rows else 0
        if not pa.types.is_fixed_size_list(column.type) and rows:
            counts = np.asarray(column.value_lengths())
            if (counts != width).any():
                raise DataError(
                    f"{path}: the lists in column '{name}' differ in length; "
                    "bring all of them to one length",
                    path=path,
                )
        lengths.append(width)
        column = flat
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise DataError(
            f"{path}: column '{name}' of type {column.type} holds neither numbers nor images",
            path=path,
        )
    values: Array = column.to_numpy(zero_copy_only=False)
    return values.reshape(num_rows, *lengths)


def _is_other_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def decode_images(
    encoded: Sequence[bytes | None], *, origin: str, mode: str | None = None
) -> tuple[npt.NDArray[np.uint8], str]:
    """Decode images of one size to uint8 (N, H, W, C).

    Also returns the mode ("L" or "RGB", by the first image) to decode the next ones with.
    """
    from PIL import Image, UnidentifiedImageError

    images: list[npt.NDArray[np.uint8]] = []
    for row, data in enumerate(encoded):
        if data is None:
            raise DataError(f"{origin}: row {row} holds no image", path=origin, row=row)
        try:
            with Image.open(io.BytesIO(data)) as image:
                mode = mode or _mode_for(image.mode, origin, row)
                pixels = np.asarray(image.convert(mode))
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            # Pillow reports damage to PNG files as SyntaxError.
            raise DataError(
                f"{origin}: the image in row {row} is corrupt ({_brief(error)}); "
                "get the file again from where it came",
                path=origin,
                row=row,
            ) from error
        if images and pixels.shape != images[0].shape:
            raise DataError(
                f"{origin}: the image in row {row} has shape {pixels.shape} and the first one "
                f"{images[0].shape}; bring all images to one size",
                path=origin,
                row=row,
            )
        images.append(pixels)
    stacked = np.stack(images) if images else np.empty((0, 0, 0), dtype=np.uint8)
    return (stacked[..., None] if stacked.ndim == 3 else stacked), mode or "RGB"


def _mode_for(mode: str, origin: str, row: int) -> str:
    if mode in _GREY_MODES:
        return "L"
    if mode in _COLOUR_MODES:
        return "RGB"
    raise DataError(
        f"{origin}: the image in row {row} has mode {mode}; only 8-bit grey and colour are read",
        path=origin,
        row=row,
    )


def _brief(error: Exception) -> str:
    return str(error).split(" <")[0]  # Pillow names the in-memory object, which says nothing
