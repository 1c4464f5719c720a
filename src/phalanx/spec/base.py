"""Define the base class of all specs: immutable, strict about types, no unknown keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError


class Spec(BaseModel):
    """Declarative description of an object; it never imports or builds the object."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        populate_by_name=True,
    )


Item = TypeVar("Item")


@dataclass(frozen=True)
class Words:
    """Annotate a type with the words that messages and the reference use for it."""

    text: str


def fault(message: str, hint: str = "", *, at: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """Build the error that a validator raises for settings that conflict.

    Args:
        message: What is wrong, complete without its position.
        hint: Rest of the sentence, `; ...` or ` (...)`: what would be valid.
        at: Path of the setting to blame, seen from the validated value; its line is the one shown.
    """
    return PydanticCustomError(
        "fault", "{message}{hint}", {"message": message, "hint": hint, "at": at}
    )


ListOf = Annotated[
    tuple[Item, ...],
    BeforeValidator(lambda items: tuple(items) if isinstance(items, list) else items),
]
"""An immutable sequence that is written as a list in YAML."""


def _whole(value: object) -> object:
    # 1, 1.0 and True are equal in Python, so a Literal of numbers would let all three pass.
    if type(value) is not int:
        raise PydanticCustomError("int_type", "Input should be a whole number")
    return value


Whole = BeforeValidator(_whole)
"""Goes with a `Literal` of whole numbers and keeps booleans and fractions out."""


def number_as(key: str) -> BeforeValidator:
    """Let a whole number stand for a mapping: `repeats: 5` for `repeats: {min: 5}`."""
    return BeforeValidator(lambda value: {key: value} if type(value) is int else value)


def name_only(value: object) -> object:
    """Let `optimizer: sgd` stand for `optimizer: {name: sgd}`."""
    return {"name": value} if isinstance(value, str) else value
