"""Look up kinds by name: strategies, launchers, optimisers and the other open tables.

A `Registry` is one table. Its entries come from three places, asked in this order:

1. built-ins, listed where the table is made;
2. `package.module:name`, written in the job file or on the command line;
3. entry points of installed packages, in the table's group (`phalanx.strategies` and so on).

A kind holds plain facts and import paths. Parts that need a framework are imported by `load` where
they are used, so that the control plane never imports torch. `ByName` is the type of a field that
is chosen from a table: built-in names are resolved by pydantic's discriminated union, any other by
the spec class of its kind; positions of errors and the round trip through JSON are the same.
"""

from __future__ import annotations

import os.path
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.metadata import entry_points
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, core_schema

from phalanx.errors import SpecError
from phalanx.spec.base import Spec, fault
from phalanx.spec.names import did_you_mean

IMPORT_PATH = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
"""`package.module:name`."""


class Named(Protocol):
    """Entry of a table."""

    @property
    def name(self) -> str:
        """Name in job files."""


K = TypeVar("K", bound=Named)


class Registry(Generic[K]):
    """Map names to kinds of one sort; open to other packages."""

    def __init__(
        self,
        noun: str,
        kind: type[K],
        *,
        group: str,
        built_in: Mapping[str, K | str],
        adapt: Callable[[str, object], K] | None = None,
        known: Callable[[str], K | None] | None = None,
    ) -> None:
        """Make a table.

        Args:
            noun: What an entry is called in messages, such as `strategy`.
            kind: The type of the entries.
            group: Entry-point group of other packages, such as `phalanx.strategies`.
            built_in: Kinds by name; text is the import path of one, loaded on first use.
            adapt: Makes a kind of the import path of a plain class or function, and of the thing
                itself; None: only kinds are taken.
            known: Makes the kind of an import path that need not be imported for it; None for all
                other paths.
        """
        self.noun = noun
        self.group = group
        self._type = kind
        self._adapt = adapt
        self._known = known
        self._built_in = dict(built_in)
        self._outside: dict[str, K] = {}

    def find(self, name: str) -> K:
        """Return the kind of this name.

        Raises:
            SpecError: There is none, or it cannot be imported; says what is known.
        """
        known = self._built_in.get(name) or self._outside.get(name)
        if known is None:
            known = self._import_outside(name)
        if isinstance(known, str):
            known = self._built_in[name] = self._checked(known, load(known))
        return known

    def __contains__(self, name: object) -> bool:
        """Return whether `find` would try to import or return something for this name."""
        return isinstance(name, str) and (
            name in self._built_in
            or name in self._outside
            or IMPORT_PATH.match(name) is not None
            or name in self._installed()
        )

    def checked_name(self, name: str) -> str:
        """Accept names that `find` would try; for use as a validator of a spec's field."""
        if name not in self:
            raise PydanticCustomError("unknown_kind", "{text}", {"text": self.unknown(name)})
        return name

    def required(self, name: str) -> K:
        """Return a kind within a validator of the spec that names it.

        Raises:
            PydanticCustomError: It cannot be imported; blames the spec's `name`.
        """
        try:
            return self.find(name)
        except SpecError as error:
            raise fault(str(error), at=("name",)) from error

    @property
    def built_in(self) -> tuple[str, ...]:
        """Names of the built-in kinds, in the order of the table."""
        return tuple(self._built_in)

    def names(self) -> tuple[str, ...]:
        """Return all known names: built in, then those of installed packages."""
        return (*self._built_in, *sorted({*self._installed(), *self._outside}))

    def _installed(self) -> frozenset[str]:
        return frozenset(point.name for point in entry_points(group=self.group))

    def _import_outside(self, name: str) -> K:
        path = name
        if not IMPORT_PATH.match(name):
            points = [p for p in entry_points(group=self.group) if p.name == name]
            if not points:
                raise SpecError(self.unknown(name))
            path = points[0].value
        kind = None if self._known is None else self._known(path)
        if kind is not None:
            self._outside[name] = kind
            return kind
        kind = self._outside[name] = self._checked(path, load(path))
        return kind

    def unknown(self, name: str) -> str:
        """Say that there is no such kind, and what there is."""
        names = self.names()
        return (
            f"unknown {self.noun} '{name}'{did_you_mean(name, names)} "
            f"(known: {', '.join(names)}; or package.module:name)"
        )

    def _checked(self, path: str, found: object) -> K:
        if isinstance(found, self._type):
            return found
        if self._adapt is not None and callable(found):
            return self._adapt(path, found)
        raise SpecError(
            f"{self.noun} '{path}' is {type(found).__name__}, not {self._type.__name__}"
        )


S = TypeVar("S", bound=Spec)


def read_args(settings: type[S], args: Mapping[str, object], *, section: str) -> S:
    """Validate the `args` of a kind from another package by its settings class.

    Raises:
        PydanticCustomError: The first problem, as a sentence that blames the section's `args`.
    """
    from phalanx.spec.messages import problems  # loads the YAML reader, for messages only

    try:
        return settings.model_validate(dict(args))
    except ValidationError as error:
        first = problems(error, settings)[0]
        raise fault(f"{section}.args: {first.text}", first.hint, at=("args", *first.path)) from None


def load(path: str) -> object:
    """Import `package.module:name`; the current directory is importable meanwhile.

    Raises:
        SpecError: One sentence; what the import raised stays attached as its cause.
    """
    module_name, _, name = path.partition(":")
    try:
        with current_directory_importable():
            module = import_module(module_name)
    except Exception as error:  # foreign code may raise anything; the cause stays attached
        raise SpecError(
            f"'{path}' cannot be imported: {type(error).__name__}: {error}{as_module(path)}"
        ) from error
    try:
        return getattr(module, name)
    except AttributeError:
        public = [key for key in vars(module) if not key.startswith("_")]
        raise SpecError(
            f"module '{module_name}' has no '{name}'{did_you_mean(name, public)}"
        ) from None


def as_module(path: str) -> str:
    """Say how a module is named whose file was named instead; empty if it was not."""
    module, _, name = path.partition(":")
    if not module.endswith(".py"):
        return ""
    return f"; a module is named without .py: write {module.removesuffix('.py')}:{name}"


def add_import_path(folders: object) -> None:
    """Make modules in these folders importable in this process, after all others.

    Args:
        folders: A list of paths; anything else, and what is no folder here, is passed over.
    """
    if not isinstance(folders, list | tuple):
        return
    for folder in folders:
        if not isinstance(folder, str) or not os.path.isdir(folder):
            continue
        path = os.path.abspath(folder)
        if path not in sys.path:
            sys.path.append(path)


@contextmanager
def current_directory_importable() -> Iterator[None]:
    """Put the current directory on the import path, where it is for `python script.py`."""
    directory = str(Path.cwd())
    if directory in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        # The imported module may have changed sys.path itself, so the entry is looked for.
        if directory in sys.path:
            sys.path.remove(directory)


class SpecKind(Named, Protocol):
    """Kind with a spec class for its settings."""

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
