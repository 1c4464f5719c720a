"""What every spec has in common: immutable, strict about types, no unknown keys."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Spec(BaseModel):
    """A plain description of something wanted; it never imports or builds the thing itself."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        populate_by_name=True,
    )


Item = TypeVar("Item")


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


ListOf = Annotated[tuple[Item, ...], BeforeValidator(_as_tuple)]
"""An immutable sequence that is written as a list in YAML."""


def name_only(value: object) -> object:
    """Let `optimizer: sgd` stand for `optimizer: {name: sgd}`."""
    return {"name": value} if isinstance(value, str) else value
