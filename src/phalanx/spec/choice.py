"""Choose a spec by its name: one of a few built-in classes, or any kind of an open table.

`Annotated[Base, ByName(specs, table)]` is the type of such a field. Built-in names are resolved
by pydantic's discriminated union. Any other name that the table knows (an import path, an entry
point of an installed package) is validated by the spec class of its kind; positions of errors and
the round trip through JSON are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field, GetCoreSchemaHandler, SerializationInfo, SerializerFunctionWrapHandler
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from phalanx.errors import SpecError
from phalanx.spec.base import Spec, fault

if TYPE_CHECKING:
    from phalanx.spec.registry import Registry


class SpecKind(Protocol):
    """Kind with a spec class for its settings."""

    @property
    def name(self) -> str:
        """Name in the table."""

    @property
    def spec(self) -> type[Spec]:
        """Class of its settings."""


@dataclass(frozen=True)
class ByName:
    """Mark a field as chosen by name.

    Attributes:
        specs: Built-in choices; the `name` of each is a `Literal`.
        table: Gives the table for all other names; called late, as the table lists the specs.
    """

    specs: tuple[type[Spec], ...]
    table: Callable[[], Registry[Any]]

    def spec_of(self, name: object) -> type[Spec] | None:
        """Return the class behind a name outside of `specs`; None if there is none."""
        if not isinstance(name, str) or name in (table := self.table()).built_in:
            return None
        try:
            return _spec(table.find(name)) if name in table else None
        except SpecError:
            return None

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        union = handler.generate_schema(
            Annotated[reduce(or_, self.specs), Field(discriminator="name")]
        )
        return core_schema.no_info_wrap_validator_function(
            self._validate,
            union,
            serialization=core_schema.wrap_serializer_function_ser_schema(
                self._serialize, info_arg=True, schema=union
            ),
        )

    def _validate(self, value: object, built_in: Callable[[object], object]) -> object:
        name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
        if not isinstance(name, str):
            return built_in(value)
        table = self.table()
        if name in table.built_in or name not in table:
            return built_in(value)
        try:
            spec = _spec(table.find(name))
        except SpecError as error:
            raise fault(str(error), at=("name",)) from error
        if isinstance(value, spec):
            return value
        # A union of one: its errors carry the name in their position, as those of built-ins do.
        choice = core_schema.tagged_union_schema(
            {name: spec.__pydantic_core_schema__}, discriminator="name"
        )
        return SchemaValidator(choice).validate_python(value)

    def _serialize(
        self, value: Spec, built_in: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> object:
        if isinstance(value, self.specs):
            return built_in(value)
        return value.model_dump(
            mode=info.mode,
            by_alias=info.by_alias,
            exclude_unset=info.exclude_unset,
            exclude_defaults=info.exclude_defaults,
            exclude_none=info.exclude_none,
        )


def _spec(kind: SpecKind) -> type[Spec]:
    return kind.spec
