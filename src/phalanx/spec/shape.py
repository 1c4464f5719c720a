"""Introspect spec models: keys, kinds, and words for each type.

Used by messages, overrides, the rendered job and the reference page, so that none of them repeats
what the models define.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from phalanx.spec.base import Spec, Words, name_only
from phalanx.spec.registry import ByName

Annotation = object
"""A type as written behind a field: a class, a union, `Annotated`, `Literal` and so on."""

_BASIC: dict[Annotation, str] = {bool: "true or false", str: "text", type(None): "null"}


def keys(spec: type[Spec]) -> dict[str, FieldInfo]:
    """Return the fields by the key in files: `name`, then the class's own, then inherited ones."""
    order = {"name": 0}
    for depth, base in enumerate(spec.__mro__):
        # A field that a class only narrows keeps the place of the class that introduced it.
        order |= dict.fromkeys(inspect.get_annotations(base), depth)
    order["name"] = 0
    fields = spec.model_fields
    return {
        fields[name].alias or name: fields[name]
        for name in sorted(order, key=order.__getitem__)
        if name in fields
    }


def annotation_of(field: FieldInfo) -> Annotation:
    """Return the field's type together with its constraints."""
    if not field.metadata:
        return field.annotation
    return Annotated[field.annotation, *field.metadata]


def takes_short_form(field: FieldInfo) -> bool:
    """Return whether a bare name may stand for the whole: `optimizer: sgd`."""
    return any(isinstance(m, BeforeValidator) and m.func is name_only for m in field.metadata)


def alternatives(annotation: Annotation) -> list[tuple[Annotation, tuple[object, ...]]]:
    """Return the plain types that an annotation allows, each with the constraints on it."""
    core, constraints = _unwrap(annotation)
    chosen = [one for one in constraints if isinstance(one, ByName)]
    if chosen:
        return [(spec, ()) for spec in chosen[0].specs]
    if get_origin(core) in (Union, types.UnionType):
        return [found for part in get_args(core) for found in alternatives(part)]
    return [(core, constraints)]


def spec_classes(annotation: Annotation) -> list[type[Spec]]:
    """Return the specs among the alternatives; several are distinguished by name."""
    cores = [core for core, _ in alternatives(annotation)]
    return [core for core in cores if isinstance(core, type) and issubclass(core, Spec)]


def item_annotation(annotation: Annotation) -> Annotation | None:
    """Return the type of a list's items, or None if the annotation is no list."""
    for core, _ in alternatives(annotation):
        if get_origin(core) is tuple:
            found: Annotation = get_args(core)[0]
            return found
    return None


def is_mapping(annotation: Annotation) -> bool:
    """Return whether the annotation is a mapping with free keys."""
    return any(get_origin(core) is dict for core, _ in alternatives(annotation))


def names_of(spec: type[Spec]) -> tuple[str, ...]:
    """Return the built-in names of this spec; none if its name is free, as a user's model."""
    field = spec.model_fields.get("name")
    if field is None:
        return ()
    cores = [core for core, _ in alternatives(annotation_of(field))]
    return tuple(name for core in cores if get_origin(core) is Literal for name in get_args(core))


def free_name(spec: type[Spec]) -> str | None:
    """Return words for the names of this spec besides the built-in ones; None: there are none."""
    field = spec.model_fields.get("name")
    if field is None:
        return None
    annotation = annotation_of(field)
    free = [one for one in alternatives(annotation) if get_origin(one[0]) is not Literal]
    if not free:
        return None
    return listed(_phrases(*free[0])) if names_of(spec) else wording(annotation)


def kind(annotation: Annotation, name: object) -> type[Spec] | None:
    """Return the spec of a name; a spec whose name is free, or a table, takes all other names."""
    free = None
    for spec in spec_classes(annotation):
        names = names_of(spec)
        if name in names:
            return spec
        free = free if names else spec
    tables = _tables(annotation)
    return tables[0].spec_of(name) if tables else free


def _tables(annotation: Annotation) -> list[ByName]:
    """Return the tables that a setting is chosen from; one that may be left out is in a union."""
    core, constraints = _unwrap(annotation)
    found = [one for one in constraints if isinstance(one, ByName)]
    parts = get_args(core) if get_origin(core) in (Union, types.UnionType) else ()
    return found + [table for part in parts for table in _tables(part)]


def options(annotation: Annotation) -> list[str]:
    """Return the words that a setting may be, for those chosen from a list."""
    found = [
        value
        for core, _ in alternatives(annotation)
        if get_origin(core) is Literal
        for value in get_args(core)
    ]
    return [value for value in found if isinstance(value, str)]


def wording(annotation: Annotation) -> str:
    """Say in words what a setting may be, such as `a whole number above 0 or 'auto'`."""
    _, constraints = _unwrap(annotation)
    own = [c.text for c in constraints if isinstance(c, Words)]
    if own:
        return own[0]
    specs = spec_classes(annotation)
    phrases = [_spec_wording(specs)] if specs else []
    for core, constraints in alternatives(annotation):
        if core not in specs:
            phrases += _phrases(core, constraints)
    return listed(phrases)


def listed(phrases: Iterable[str], conjunction: str = "or") -> str:
    """Join phrases: `a, b or c`."""
    *first, last = dict.fromkeys(phrases)
    if not first:
        return last
    comma = "," if any("," in phrase or " or " in phrase for phrase in first) else ""
    return f"{', '.join(first)}{comma} {conjunction} {last}"


def _unwrap(annotation: Annotation) -> tuple[Annotation, tuple[object, ...]]:
    if get_origin(annotation) is not Annotated:
        return annotation, ()
    inner, *extra = get_args(annotation)
    core, constraints = _unwrap(inner)
    for item in extra:
        constraints += tuple(item.metadata) if isinstance(item, FieldInfo) else (item,)
    return core, constraints


def _phrases(core: Annotation, constraints: tuple[object, ...]) -> list[str]:
    own = [c.text for c in constraints if isinstance(c, Words)]
    if own:
        return own
    if get_origin(core) is Literal:
        return [repr(value) for value in get_args(core)]
    if get_origin(core) is tuple:
        return [f"a list, each entry {wording(get_args(core)[0])}"]
    if get_origin(core) is dict:
        return ["a mapping"]
    if core in (int, float):
        return [_number_wording(core is int, constraints)]
    return [_BASIC[core]]


def _number_wording(whole: bool, constraints: tuple[object, ...]) -> str:
    noun = "a whole number" if whole else "a number"
    bounds = {
        name: getattr(constraint, name)
        for constraint in constraints
        for name in ("gt", "ge", "lt", "le")
        if hasattr(constraint, name)
    }
    low = _bound(bounds, gt="above", ge="of at least")
    high = _bound(bounds, lt="below", le="up to")
    if whole and low and high:
        first = bounds["ge"] if "ge" in bounds else bounds["gt"] + 1
        last = bounds["le"] if "le" in bounds else bounds["lt"] - 1
        return f"{noun} from {first} to {last}"
    return " ".join([noun, " and ".join(part for part in (low, high) if part)]).rstrip()


def _bound(bounds: dict[str, float], **words: str) -> str:
    return next((f"{word} {bounds[name]}" for name, word in words.items() if name in bounds), "")


def _spec_wording(specs: list[type[Spec]]) -> str:
    names = [name for spec in specs for name in names_of(spec)]
    if names:
        return f"a name such as {names[0]}, or a mapping such as {{name: {names[0]}}}"
    if "name" in specs[0].model_fields:
        return "a name, or a mapping with a name"
    return f"a mapping with {listed(keys(specs[0]))}"
