"""Read a .csv or .tsv file with a header: columns of numbers as inputs, others as targets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from phalanx.data.arrays import as_samples
from phalanx.data.base import Array, FileSource, PartName, Samples
from phalanx.errors import DataError
from phalanx.spec.data_files import CsvSettings


class CsvSource(FileSource):
    """A table in a text file; its rows become samples."""

    parts = ("train",)

    def __init__(self, path: Path, settings: CsvSettings, *, target_key: str) -> None:
        self._path = path
        self._settings = settings
        self._targets = settings.targets or (target_key,)
        decoder = f"csv-1 {settings.model_dump_json()} {self._targets}"
        super().__init__(path.stem, path, (path,), decoder=decoder)

    @property
    def class_names(self) -> tuple[str, ...]:  # type: ignore[override]  # only the file knows
        """Words of the target column, sorted; empty: classes are numbers."""
        column = self._table[self._targets[0]]
        return tuple(sorted(set(column.tolist()))) if column.dtype.kind in "OU" else ()

    @property
    def has_targets(self) -> bool:
        """Whether the file has the columns to learn; one with new samples may lack them."""
        return all(name in self._table for name in self._targets)

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        yield as_samples(
            self.inputs(needed=self._targets), self._target_array(), origin=str(self._path)
        )

    def inputs(self, *, needed: tuple[str, ...] = ()) -> Array:
        """Read the columns of inputs, of all rows in order.

        Raises:
            DataError: A column is missing, one of `needed` included, or holds text.
        """
        table, settings = self._table, self._settings
        names = settings.columns or tuple(one for one in table if one not in self._targets)
        for name in (*names, *needed):
            if name not in table:
                raise DataError(
                    f"{self._path} has no column '{name}' (it has: {', '.join(table)}); name the "
                    "target with data.target_key and inputs with data.args.columns",
                    path=self._path,
                )
        text = [name for name in names if table[name].dtype.kind not in "buif"]
        if text:
            raise DataError(
                f"{self._path}: column '{text[0]}' holds text, not numbers; name the inputs with "
                "data.args.columns, or encode it",
                path=self._path,
            )
        if not names:
            raise DataError(f"{self._path} has no columns besides the target", path=self._path)
        return np.stack([table[name].astype(np.float32) for name in names], axis=1)

    def _target_array(self) -> Array:
        columns = [self._table[name] for name in self._targets]
        if columns[0].dtype.kind in "OU":
            if len(columns) > 1 or self._settings.target == "values":
                raise DataError(
                    f"{self._path}: column '{self._targets[0]}' holds text, not values",
                    path=self._path,
                )
            return np.searchsorted(self.class_names, columns[0].astype(str))
        found = np.stack(columns, axis=1)
        if self._settings.target == "values" or len(columns) > 1:
            return found.astype(np.float32)
        if self._settings.target == "classes" and found.dtype.kind == "f":
            if (found != np.round(found)).any():
                raise DataError(
                    f"{self._path}: column '{self._targets[0]}' holds fractions, which are no "
                    "classes",
                    path=self._path,
                )
            return found.astype(np.int64)
        return found

    @cached_property
    def _table(self) -> dict[str, Array]:
        import pyarrow as pa
        from pyarrow import csv

        delimiter = self._settings.delimiter or ("\t" if self._path.suffix == ".tsv" else ",")
        try:
            table = csv.read_csv(self._path, parse_options=csv.ParseOptions(delimiter=delimiter))
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{self._path} cannot be read as a table: {str(error).splitlines()[0]}",
                path=self._path,
            ) from error
        found: dict[str, Array] = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if column.null_count:
                row = next(i for i, one in enumerate(column) if not one.is_valid)
                raise DataError(
                    f"{self._path}: column '{name}' has no value in row {row + 1}; fill or remove "
                    "such rows",
                    path=self._path,
                )
            values: Any = column.to_numpy()
            found[name] = values.astype(str) if values.dtype.kind == "O" else values
        return found
