"""A resolved job as text and as data: YAML for a dry run, a dict for the manifest, JSON Schema.

Whatever is written here reads back as the same job. The reference page is in `reference`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from phalanx.spec import shape
from phalanx.spec.base import Spec
from phalanx.spec.flow import flow
from phalanx.spec.job import JobSpec

_WIDTH = 100
_INDENT = "  "


def to_mapping(spec: Spec) -> dict[str, JsonValue]:
    """Every setting with its value, defaults filled in, in the order of the reference page.

    The result is what JSON can hold, and `job_from_mapping` turns it back into the same job.
    """
    dumped = spec.model_dump(mode="json", by_alias=True)
    return {key: _ordered(getattr(spec, _attribute(spec, key)), dumped[key]) for key in _keys(spec)}


def to_yaml(spec: Spec, *, comments: bool = False) -> str:
    """The resolved job as a job file.

    Args:
        spec: Usually a job; any spec will do.
        comments: Put the meaning of each setting behind it, as far as the line has room.
    """
    return "\n".join(_lines(spec, comments, indent="")) + "\n"


def json_schema() -> dict[str, JsonValue]:
    """The JSON Schema of a job file, short forms included, for completion in editors."""
    schema: dict[str, JsonValue] = JobSpec.model_json_schema(by_alias=True)
    properties = schema["properties"]
    assert isinstance(properties, dict)
    for key, field in shape.keys(JobSpec).items():
        full = properties[key]
        assert isinstance(full, dict)
        if shape.takes_short_form(field):
            whole: dict[str, JsonValue] = {
                "anyOf": [_short_form_schema(shape.annotation_of(field)), full]
            }
            whole |= {word: full.pop(word) for word in ("description", "default") if word in full}
            properties[key] = whole
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _short_form_schema(annotation: shape.Annotation) -> dict[str, JsonValue]:
    specs = shape.spec_classes(annotation)
    names: list[JsonValue] = [name for spec in specs for name in shape.names_of(spec)]
    known: dict[str, JsonValue] = {"type": "string", "enum": names}
    if all(shape.free_name(spec) is None for spec in specs):
        return known
    return {"anyOf": [known, {"type": "string"}]} if names else {"type": "string"}


def _lines(spec: Spec, comments: bool, indent: str) -> Iterator[str]:
    for key, field in shape.keys(type(spec)).items():
        value = getattr(spec, _attribute(spec, key))
        text = f"{indent}{key}:" + ("" if isinstance(value, Spec) else f" {flow(_plain(value))}")
        note = _comment(field.description or "", _WIDTH - len(text)) if comments else ""
        yield text + note
        if isinstance(value, Spec):
            yield from _lines(value, comments, indent + _INDENT)


def _comment(description: str, room: int) -> str:
    """The description, or the part up to its first semicolon, if there is room for it."""
    whole = " ".join(description.split())
    for text in (whole, whole.partition(";")[0]):
        if text and len(text) + len("  # ") <= room:
            return f"  # {text}"
    return ""


def _ordered(value: object, dumped: JsonValue) -> JsonValue:
    return to_mapping(value) if isinstance(value, Spec) else dumped


def _plain(value: object) -> object:
    """Lists of settings with their entries as mappings; anything else as it is."""
    if not isinstance(value, tuple):
        return value
    return [to_mapping(entry) if isinstance(entry, Spec) else entry for entry in value]


def _keys(spec: Spec) -> list[str]:
    return list(shape.keys(type(spec)))


def _attribute(spec: Spec, key: str) -> str:
    names = {field.alias or name: name for name, field in type(spec).model_fields.items()}
    return names[key]
