"""Describe how files of some kinds are read: tables, text and folders of images."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from phalanx.spec.base import ListOf, Spec, Words, fault
from phalanx.spec.registry import IMPORT_PATH

Positive = Annotated[int, Field(gt=0)]


class CsvSettings(Spec):
    """How a .csv or .tsv file is read; `data.target_key` names the target's column."""

    columns: ListOf[str] | None = None
    """Columns of the inputs, in this order; null: all but the targets."""
    targets: ListOf[str] | None = None
    """Columns of the targets, if there are several; null: that of `data.target_key`."""
    target: Literal["auto", "classes", "values"] = "auto"
    """Whether targets are classes or values; auto: text and whole numbers are classes."""
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """Between two columns; null: a tab in .tsv, else a comma."""


def _known_tokenizer(name: str) -> str:
    if name == "bytes" or IMPORT_PATH.match(name):
        return name
    raise fault(f"unknown tokenizer '{name}'", " (known: bytes; or package.module:name)")


Tokenizer = Annotated[str, AfterValidator(_known_tokenizer), Words("bytes or package.module:name")]


class TextSettings(Spec):
    """How a .txt file is cut into samples: each token's target is the next one."""

    block: Positive = 128
    """Tokens of a sample; the last one is filled up with positions that do not count."""
    tokenizer: Tokenizer = "bytes"
    """bytes (256 tokens), or `package.module:name` of a function from text to whole numbers, or of
    an object or class with such a method `encode`."""


class ImageFolderSettings(Spec):
    """How a folder of images is read: one folder per class, maybe below train, val and test."""

    size: Annotated[ListOf[Positive], Field(min_length=2, max_length=2)] | None = None
    """Height and width that images are scaled to; null: all have one size."""
    colour: Literal["auto", "grey", "rgb"] = "auto"
    """Channels; auto: those of the first image."""


_SETTINGS: dict[str, type[Spec]] = {
    ".csv": CsvSettings,
    ".tsv": CsvSettings,
    ".txt": TextSettings,
    "": ImageFolderSettings,
}


def file_settings(name: str) -> type[Spec] | None:
    """Return what `data.args` may hold for a path; None: nothing."""
    return _SETTINGS.get(PurePath(name).suffix)
