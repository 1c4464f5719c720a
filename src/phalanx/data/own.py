"""Read what a user's function returned as a source: torch data sets and loaders, arrays, streams.

Nothing of torch or Hugging Face is imported: a form is known by what it offers. Every part is read
once, in order, into the cache; from there on it is like any other data set. So random changes
belong into `data.augment`, and the order into `data.shuffle`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from typing_extensions import override

from phalanx.data.arrays import as_samples, as_targets
from phalanx.data.base import Array, InputArray, PartName, Samples, Source
from phalanx.data.fields import field_layout, pack
from phalanx.errors import DataError, PhalanxError, SpecError
from phalanx.spec.data import DataSpec

TARGET_NAMES = ("labels", "label", "targets", "target", "y")
"""Names of the target in samples with named values, besides `data.target_key`."""
_PARTS: dict[str, PartName] = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "test": "test",
}
_CHUNK = 1024
_MOST_SAMPLES = 10_000_000
_SAMPLERS = ("SequentialSampler", "RandomSampler", "_InfiniteConstantSampler")
_TARGET = ""  # key of the targets among the columns of a chunk

Columns = dict[str, Array]
"""Inputs by name, or by number where they have none, and the targets; a row per sample."""


def adapt(found: object, spec: DataSpec) -> Source:
    """Make a source of what a function returned.

    Raises:
        SpecError: It is nothing that can be read; says what can.
    """
    return OwnSource(_parts_of(found, spec), spec)


class OwnSource(Source):
    """Data that a function of the user's returned."""

    normalize = "none"
    is_one_file = True

    def __init__(self, parts: Mapping[PartName, object], spec: DataSpec) -> None:
        self._parts = dict(parts)
        self._spec = spec
        self.parts = tuple(self._parts)
        # Whoever says what validation is has divided the samples already.
        self.test_share = 0.0 if "validation" in self._parts else Source.test_share

    @property
    @override
    def name(self) -> str:
        return self._spec.name

    @property
    @override
    def location(self) -> str:
        return f"data '{self._spec.name}'"

    @override
    def fingerprint(self) -> str:
        digest = hashlib.sha256(_identity(self._spec).encode())
        for name, part in self._parts.items():
            digest.update(f"\0{name}\0{getattr(part, '_fingerprint', '')}".encode())
            digest.update(f"\0{_length(part)}".encode())
            for array in _arrays_in(part):
                digest.update(f"\0{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        try:
            for columns in _read(self._parts[part], self._spec):
                yield self._samples(columns)
        except PhalanxError:
            raise
        except Exception as error:  # the user's code may raise anything; the cause stays attached
            raise DataError(
                f"{self.location}: reading the {part} part raised {type(error).__name__}: {error}"
            ) from error

    def _samples(self, columns: Columns) -> Samples:
        targets = columns.pop(_TARGET)
        lengths = {len(array) for array in (*columns.values(), targets)}
        if len(lengths) != 1:
            raise DataError(f"{self.location}: inputs and targets have {sorted(lengths)} rows")
        if list(columns) in (["0"], [self._spec.input_key]):
            (inputs,) = columns.values()
            if inputs.ndim == 4 and inputs.dtype.kind == "f":
                # Samples of torch are (channels, height, width), whatever their sizes.
                images = np.ascontiguousarray(np.moveaxis(inputs, 1, 3), dtype=np.float32)
                return Samples(cast("InputArray", images), as_targets(targets, self.location))
            return as_samples(inputs, targets, origin=self.location)
        if not self.fields:
            self.fields = field_layout(columns)
        return Samples(pack(columns, self.fields), as_targets(targets, self.location))


def _parts_of(found: object, spec: DataSpec) -> dict[PartName, object]:
    if isinstance(found, Mapping) and found and all(key in _PARTS for key in found):
        parts = {_PARTS[key]: value for key, value in found.items()}
        if "train" not in parts:
            raise SpecError(f"data '{spec.name}' has no part 'train' but {', '.join(parts)}")
        return parts
    if isinstance(found, tuple) and found and not any(_is_array(one) for one in found):
        if len(found) != 3:
            raise SpecError(
                f"data '{spec.name}' returned {len(found)} parts; return (train, validation, "
                "test), or a dict that names them"
            )
        names: tuple[PartName, ...] = ("train", "validation", "test")
        return {name: part for name, part in zip(names, found, strict=True) if part is not None}
    return {"train": found}


def _read(part: object, spec: DataSpec) -> Iterator[Columns]:
    """Read one part by the first form that it has."""
    for has_form, read in _FORMS:
        if has_form(part):
            yield from read(part, spec)
            return
    raise SpecError(
        f"data '{spec.name}' returned {type(part).__name__}; it must return a phalanx Source, a "
        "data set or loader of torch or Hugging Face, arrays (inputs, targets), or a generator"
    )


def _is_array(value: object) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "shape")


def _is_table(part: object) -> bool:
    return isinstance(part, Mapping) and all(_is_array(value) for value in part.values())


def _is_tuple_of_arrays(part: object) -> bool:
    return isinstance(part, tuple | list) and len(part) > 1 and all(map(_is_array, part))


def _is_sequence(part: object) -> bool:
    return hasattr(part, "__getitem__") and hasattr(part, "__len__")


def _arrays_in(part: object) -> list[Array]:
    if _is_table(part):
        return [_array(value) for value in cast("Mapping[str, object]", part).values()]
    if _is_tuple_of_arrays(part):
        return [_array(value) for value in cast("tuple[object, ...]", part)]
    return [_array(value) for value in getattr(part, "tensors", ())]


def _array(value: object) -> Array:
    detach = getattr(value, "detach", None)
    return np.asarray(detach() if detach is not None else value)


def _read_table(part: Any, spec: DataSpec) -> Iterator[Columns]:
    yield _named({key: _array(value) for key, value in part.items()}, spec)


def _read_tuple(part: Any, spec: DataSpec) -> Iterator[Columns]:
    yield _positional([_array(value) for value in part])


def _read_tensors(part: Any, spec: DataSpec) -> Iterator[Columns]:
    yield _positional([_array(value) for value in part.tensors])


def _read_columns(part: Any, spec: DataSpec) -> Iterator[Columns]:
    """Read a data set of Hugging Face, column by column."""
    for start in range(0, len(part), _CHUNK):
        rows = part[start : start + _CHUNK]
        yield _named({key: _stacked(list(values), key) for key, values in rows.items()}, spec)


def _read_loader(part: Any, spec: DataSpec) -> Iterator[Columns]:
    """Read a loader's data set in order, as its collate function makes batches of it."""
    sampler = type(getattr(part, "sampler", None)).__name__
    if sampler not in _SAMPLERS:
        raise SpecError(
            f"data '{spec.name}': its loader draws by {sampler}, which is not used here; return "
            "the data set itself, and set data.shuffle"
        )
    items = part.dataset
    if not _is_sequence(items):
        yield from (_columns(batch, spec) for batch in _limited(part, spec))
        return
    size = part.batch_size or _CHUNK
    for start in range(0, len(items), size):
        stop = min(start + size, len(items))
        yield _columns(part.collate_fn([items[i] for i in range(start, stop)]), spec)


def _read_items(part: Any, spec: DataSpec) -> Iterator[Columns]:
    yield from _stack_chunks((part[i] for i in range(len(part))), spec)


def _read_stream(part: Any, spec: DataSpec) -> Iterator[Columns]:
    yield from _stack_chunks(_limited(part, spec), spec)


def _read_generator(part: Any, spec: DataSpec) -> Iterator[Columns]:
    yield from _read_stream(part(), spec)


_FORMS: tuple[
    tuple[Callable[[object], bool], Callable[[Any, DataSpec], Iterator[Columns]]], ...
] = (
    (_is_table, _read_table),
    (_is_tuple_of_arrays, _read_tuple),
    (lambda part: isinstance(getattr(part, "tensors", None), tuple), _read_tensors),
    (lambda part: hasattr(part, "column_names") and _is_sequence(part), _read_columns),
    (lambda part: hasattr(part, "collate_fn") and hasattr(part, "dataset"), _read_loader),
    (lambda part: _is_sequence(part) and not isinstance(part, Mapping | str), _read_items),
    (lambda part: hasattr(part, "__iter__") and not isinstance(part, str), _read_stream),
    (inspect.isgeneratorfunction, _read_generator),
)


def _limited(stream: Iterable[object], spec: DataSpec) -> Iterator[object]:
    """Read a stream to its end, or as far as `data.limit` asks for."""
    if spec.limit is not None:
        yield from islice(stream, spec.limit)
        return
    for number, item in enumerate(stream):
        if number >= _MOST_SAMPLES:
            raise DataError(
                f"data '{spec.name}' gave {_MOST_SAMPLES:,} samples and did not end; set data.limit"
            )
        yield item


def _stack_chunks(items: Iterator[object], spec: DataSpec) -> Iterator[Columns]:
    while chunk := list(islice(items, _CHUNK)):
        first = chunk[0]
        if isinstance(first, Mapping):
            samples = cast("list[Mapping[str, object]]", chunk)
            yield _named({key: _stacked([one[key] for one in samples], key) for key in first}, spec)
        elif isinstance(first, tuple | list) and len(first) > 1:
            rows = cast("list[tuple[object, ...]]", chunk)
            yield _positional(
                [_stacked([one[i] for one in rows], str(i)) for i in range(len(first))]
            )
        else:
            raise DataError(
                f"data '{spec.name}': a sample is {type(first).__name__}; it must be (inputs, "
                "target) or a dict with a target"
            )


def _columns(batch: object, spec: DataSpec) -> Columns:
    if isinstance(batch, Mapping):
        return _named({key: _array(value) for key, value in batch.items()}, spec)
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return _positional([_array(value) for value in batch])
    raise DataError(
        f"data '{spec.name}': a batch is {type(batch).__name__}; it must be (inputs, targets) or "
        "a dict with targets"
    )


def _named(columns: Columns, spec: DataSpec) -> Columns:
    target = next((key for key in (spec.target_key, *TARGET_NAMES) if key in columns), None)
    if target is None or len(columns) < 2:
        raise DataError(
            f"data '{spec.name}': samples have {', '.join(columns)}, and none of them is the "
            "target; name it with data.target_key"
        )
    return {key: value for key, value in columns.items() if key != target} | {
        _TARGET: columns[target]
    }


def _positional(arrays: list[Array]) -> Columns:
    *inputs, targets = arrays
    return {str(number): array for number, array in enumerate(inputs)} | {_TARGET: targets}


def _stacked(values: list[Any], name: str) -> Array:
    arrays = [_array(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(
            f"samples of '{name}' have shapes {' and '.join(map(str, sorted(shapes)[:2]))}; pad or "
            "cut them to one length, with label -100 where nothing counts"
        )
    return np.stack(arrays)


def _length(part: object) -> int | None:
    try:
        return len(cast("Sized", part))
    except TypeError:  # also from loaders over streams
        return None


def _identity(spec: DataSpec) -> str:
    """Return what the samples depend on, as far as it can be seen without reading them."""
    module = sys.modules.get(spec.name.partition(":")[0])
    code = Path(getattr(module, "__file__", None) or "")
    facts: list[object] = [spec.name, spec.args, spec.target_key, spec.input_key, spec.limit]
    facts.append(hashlib.sha256(code.read_bytes()).hexdigest() if code.is_file() else "")
    for value in spec.args.values():
        path = Path(value) if isinstance(value, str) and len(value) < 4096 else None
        if path is not None and path.exists():
            stat = path.stat()
            facts.append([stat.st_size, stat.st_mtime_ns])
    return json.dumps(["own-1", *facts], sort_keys=True)
