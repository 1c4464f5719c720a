"""Turn pydantic's errors into one sentence: place, value, what would be valid, nearest name.

The loaders call `validated`. The words for types come from `shape`; validators that look at several
settings at once bring their own sentence (`base.fault`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from phalanx.errors import SpecError
from phalanx.spec import shape
from phalanx.spec.base import Spec
from phalanx.spec.document import Document, Path, parse
from phalanx.spec.flow import flow, quoted
from phalanx.spec.names import SYNONYMS, did_you_mean

_MAX_LISTED = 3
S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Problem:
    """One invalid setting."""

    path: Path
    """The setting, as keys and list indices."""
    text: str
    """What is wrong with it."""
    hint: str = ""
    """What would be valid; left out where several problems are listed."""
    hides: Path | None = None
    """A setting inside which further problems only follow from this one."""


@dataclass(frozen=True)
class _Place:
    """A position that pydantic reports, seen through the models."""

    path: Path
    annotation: shape.Annotation
    """What the models want here; None where they have no such key."""
    owner: type[Spec]
    """The spec in which the last key is."""
    siblings: Sequence[type[Spec]] = ()
    """The kinds that the owner was chosen from by name, itself included."""


def validated(document: Document, kind: type[S]) -> S:
    """Turn a document into a spec. SpecError says place, value and what would be right."""
    try:
        # Files use the aliases only: 'global', never the Python name 'global_'.
        return kind.model_validate(document.data, by_alias=True, by_name=False)
    except ValidationError as error:
        raise spec_error(error, document, kind) from None


def spec_error(error: ValidationError, document: Document, root: type[Spec]) -> SpecError:
    """Merge everything that is wrong into one sentence, the first problem in full.

    Args:
        error: From validating `document.data`.
        document: Gives the position of each problem.
        root: The model that was asked to validate.
    """
    found = problems(error, root)
    found.sort(key=lambda problem: _file_order(document, problem.path))
    first, *rest = found
    mark = document.mark(first.path)
    prefix = f"{mark}: " if mark.source else ""
    return SpecError(
        prefix + first.text + first.hint + _also(rest, document, mark.source),
        file=mark.source,
        line=mark.line,
        setting=dotted(first.path),
    )


def problems(error: ValidationError, root: type[Spec]) -> list[Problem]:
    """Return all problems, each setting once, in the order of the models."""
    found = {}
    for details in error.errors(include_url=False):
        problem = _problem(details, root)
        # The members of a union each report on the same setting; their sentence is the same.
        found[problem.path, problem.text] = problem
    hidden = [problem.hides for problem in found.values() if problem.hides is not None]
    return [
        problem
        for problem in found.values()
        if problem.hides is not None
        or (
            not any(problem.path[: len(path)] == path for path in hidden)
            and not _is_misspelt(problem, found.values())
        )
    ]


def _is_misspelt(problem: Problem, all_problems: Iterable[Problem]) -> bool:
    """Tell whether a missing key is there under a name that is close to it."""
    return problem.text.endswith(" is missing") and any(
        other.path[:-1] == problem.path[:-1] and f"did you mean '{problem.path[-1]}'" in other.hint
        for other in all_problems
    )


def dotted(path: Path) -> str:
    """Return a path as `--set` takes it: `batch.shares.0`."""
    return ".".join(str(part) for part in path)


def _problem(details: ErrorDetails, root: type[Spec]) -> Problem:
    place = _locate(details["loc"], root)
    value = details["input"]
    match details["type"]:
        case "extra_forbidden":
            return _unknown_key(place, root)
        case "union_tag_invalid":
            return _unknown_kind(place.path, value["name"], shape.spec_classes(place.annotation))
        case "union_tag_not_found":
            return _no_name(place.path, shape.spec_classes(place.annotation))
        case "missing" if place.path[-1] == "name" and len(place.path) > 1:
            return _no_name(place.path[:-1], place.siblings or [place.owner])
        case "missing":
            return Problem(place.path, f"{dotted(place.path)} is missing")
        case "fault":
            context = details["ctx"]
            return Problem((*place.path, *context["at"]), context["message"], context["hint"])
        case "finite_number" | "invalid-json-value" if shape.is_mapping(place.annotation):
            wanted = "may hold numbers, text, true, false, null, lists and mappings"
            return Problem(place.path, f"{dotted(place.path)} {wanted}, not {quoted(value)}")
        case "value_error":
            where = f"{dotted(place.path)}: " if place.path else ""
            return Problem(place.path, f"{where}{details['ctx']['error']}")
    if place.path[-1:] == ("name",) and len(place.path) > 1 and isinstance(value, str):
        return _unknown_kind(place.path[:-1], value, place.siblings or [place.owner])
    return _wrong_value(place, value)


def _locate(loc: tuple[int | str, ...], root: type[Spec]) -> _Place:
    """Follow pydantic's path through the models and leave out the names of union members."""
    place = _Place((), root, root)
    siblings: Sequence[type[Spec]] = ()
    for number, part in enumerate(loc, start=1):
        specs = shape.spec_classes(place.annotation)
        if len(specs) > 1:
            siblings = specs
            # A value that is no mapping at all is none of the kinds, not just not this one.
            if number < len(loc):
                place = _Place(place.path, shape.kind(place.annotation, part), place.owner)
        elif specs:
            field = shape.keys(specs[0]).get(str(part))
            annotation = None if field is None else shape.annotation_of(field)
            place = _Place((*place.path, part), annotation, specs[0], siblings)
            siblings = ()
        elif isinstance(part, int) and shape.item_annotation(place.annotation) is not None:
            item = shape.item_annotation(place.annotation)
            place = _Place((*place.path, part), item, place.owner)
        # Anything else names a member of a union of plain values, such as literal['auto'].
    return place


def _unknown_key(place: _Place, root: type[Spec]) -> Problem:
    *parents, last = place.path
    key = str(last)
    valid = sorted(shape.keys(place.owner))
    inside = f" in {dotted(tuple(parents))}" if parents else ""
    # Where only an s is wrong, that is nearer than the same word in some other part.
    plural = f"{key}s" in valid or (key.endswith("s") and key[:-1] in valid)
    hint = "" if plural else _at_home_elsewhere(key, place, root)
    hint = hint or did_you_mean(key, valid)
    return Problem(
        place.path, f"unknown key {quoted(key)}{inside}", f"{hint} (valid: {', '.join(valid)})"
    )


def _at_home_elsewhere(key: str, place: _Place, root: type[Spec]) -> str:
    others = [
        f"'{name}'"
        for sibling in place.siblings
        if key in shape.keys(sibling)
        for name in shape.names_of(sibling)
    ]
    if others:
        return f"; it belongs to {shape.listed(others, 'and')}"
    if place.owner is not root:
        return ""
    wanted = SYNONYMS.get(key, key)
    for section, field in shape.keys(root).items():
        if any(
            wanted in shape.keys(spec) for spec in shape.spec_classes(shape.annotation_of(field))
        ):
            return f"; did you mean '{section}.{wanted}'?" if wanted != "name" else ""
    return ""


def _unknown_kind(path: Path, value: object, specs: Sequence[type[Spec]]) -> Problem:
    where = dotted(path)
    names, valid = _kinds(specs)
    if not isinstance(value, str):
        text = f"{where}.name must be text, not {quoted(value)}"
        return Problem((*path, "name"), text, valid, hides=path)
    text = f"unknown {where} {quoted(value)}"
    return Problem((*path, "name"), text, did_you_mean(value, names) + valid, hides=path)


def _no_name(path: Path, specs: Sequence[type[Spec]]) -> Problem:
    names, valid = _kinds(specs)
    hint = f"; add one, such as 'name: {names[0]}'" if names else "; add one"
    return Problem(path, f"{dotted(path)} has no name", hint + valid, hides=path)


def _kinds(specs: Sequence[type[Spec]]) -> tuple[list[str], str]:
    names = [name for spec in specs for name in shape.names_of(spec)]
    free = [words for words in map(shape.free_name, specs) if words is not None]
    if not free:
        return names, f" (valid: {', '.join(names)})"
    return names, f" (built in: {', '.join(names)}; or {free[0]})" if names else f" ({free[0]})"


def _wrong_value(place: _Place, value: object) -> Problem:
    wanted = shape.wording(place.annotation)
    text = f"{dotted(place.path)} must be {wanted}, not {quoted(value)}"
    return Problem(place.path, text, _value_hint(place.annotation, value), hides=place.path)


def _value_hint(annotation: shape.Annotation, value: object) -> str:
    cores = [core for core, _ in shape.alternatives(annotation)]
    if value is None:
        return "; leave the key out for the default"
    item = shape.item_annotation(annotation)
    if item is not None and isinstance(value, int | float | str):
        return f"; write [{flow(value)}]"
    if isinstance(value, str):
        bare = type(_bare(value))
        if bare is not str and (bare in cores or (bare is int and float in cores)):
            return "; remove the quotes"
        if bool in cores and value.lower() in ("yes", "on", "no", "off"):
            return f"; write {flow(value.lower() in ('yes', 'on'))}"
        return did_you_mean(value, shape.options(annotation))
    if str in cores and not isinstance(value, list | dict):
        return "; put it in quotes"
    if isinstance(value, float) and value.is_integer() and int in cores and abs(value) < 1e15:
        return f"; write {int(value)}"
    return ""


def _bare(value: str) -> object:
    """Return the value of the text without quotes."""
    try:
        return parse(value, "").data
    except SpecError:
        return value


def _file_order(document: Document, path: Path) -> tuple[int, int, int]:
    mark = document.mark(path)
    return mark.order, mark.line or 0, mark.column or 0


def _also(rest: Sequence[Problem], document: Document, source: str) -> str:
    if not rest:
        return ""
    notes = []
    for problem in rest[:_MAX_LISTED]:
        mark = document.mark(problem.path)
        where = f"line {mark.line}" if mark.line and mark.source == source else str(mark)
        notes.append(f"{where}: {problem.text}" if where else problem.text)
    if len(rest) > _MAX_LISTED:
        notes.append("...")
    return f" (and {len(rest)} more: {'; '.join(notes)})"
