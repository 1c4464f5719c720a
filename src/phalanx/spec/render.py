"""Write a resolved job as text and as data: YAML for a dry run, a mapping for the manifest.

Everything written here reads back as the same job.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from phalanx.spec import shape
from phalanx.spec.base import Spec
from phalanx.spec.flow import flow

_INDENT = "  "


def to_mapping(spec: Spec) -> dict[str, JsonValue]:
    """Return every setting with its value, defaults filled in, in the order of the reference page.

    The result is what JSON can hold, and `job_from_mapping` turns it back into the same job.
    """
    dumped = spec.model_dump(mode="json", by_alias=True)
    values = {key: getattr(spec, _attribute(spec, key)) for key in shape.keys(type(spec))}
    return {
        key: to_mapping(value) if isinstance(value, Spec) else dumped[key]
        for key, value in values.items()
    }


def to_yaml(spec: Spec) -> str:
    """Return the resolved job, or any other spec, as a file."""
    return "\n".join(_lines(spec, indent="")) + "\n"


def _lines(spec: Spec, indent: str) -> Iterator[str]:
    for key in shape.keys(type(spec)):
        value = getattr(spec, _attribute(spec, key))
        if isinstance(value, Spec):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + _INDENT)
        else:
            yield f"{indent}{key}: {flow(_plain(value))}"


def _plain(value: object) -> object:
    """Return lists of settings with their entries as mappings; anything else as it is."""
    if not isinstance(value, tuple):
        return value
    return [to_mapping(entry) if isinstance(entry, Spec) else entry for entry in value]


def _attribute(spec: Spec, key: str) -> str:
    names = {field.alias or name: name for name, field in type(spec).model_fields.items()}
    return names[key]
