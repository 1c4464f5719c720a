"""Apply settings from the command line (`--set optimizer.lr=0.05`) to a document.

Rules:

- `strategy=local_sgd` replaces the whole setting; `strategy.every=4` changes one part of it.
- A part of a short form works: `optimizer: sgd` becomes `{name: sgd}` first. So does a part of
  something that the file leaves out: it starts from the default.
- A new name (`optimizer.name=adam`) drops the parts that only the former kind has.
- Of two settings that exclude each other, the one set here drops the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic.fields import FieldInfo

from phalanx.spec import shape
from phalanx.spec.base import Spec
from phalanx.spec.document import Document, Mark, Path, parse
from phalanx.spec.flow import quoted

_EXCLUSIVE = {
    ("batch", "global"): "per_worker",
    ("batch", "per_worker"): "global",
    ("schedule", "at"): "at_epochs",
    ("schedule", "at_epochs"): "at",
}
_UNMARKED = Mark("")


def apply_overrides(document: Document, overrides: Sequence[str], root: type[Spec]) -> None:
    """Change the document's data in place; a later override wins over an earlier one.

    Args:
        document: Its data is a mapping.
        overrides: `path=value`, the value in YAML.
        root: The model that will validate the document; it tells what a name may stand for.

    Raises:
        SpecError: An override has no value, or its path leads through something without parts.
    """
    for order, text in enumerate(overrides, start=1):
        _apply(document, text, order, root)


def _apply(document: Document, text: str, order: int, root: type[Spec]) -> None:
    mark = Mark(f"--set {' '.join(text.split())}", order=order)
    path_text, equals, value_text = text.partition("=")
    path = tuple(path_text.strip().split("."))
    if not equals or not all(path):
        raise mark.error("an override is path=value, such as optimizer.lr=0.05")
    value = parse(value_text, mark.source, with_lines=False).data
    apply_setting(document, path, value, mark, root)


def apply_setting(
    document: Document, path: tuple[str, ...], value: object, mark: Mark, root: type[Spec]
) -> None:
    """Set one value as `--set` would; what was written elsewhere is set by the same rules.

    Args:
        document: Its data is a mapping.
        path: Keys from the top, at least one.
        value: Plain data.
        mark: Where the value was written; an order above 0 tells it from the document's own.
        root: The model that will validate the document.
    """
    parent, annotation, done = _descend(document, path, mark, root)
    last = path[-1]
    if isinstance(parent, list):
        parent[_index(parent, last, done, mark)] = value
        _note(document, (*done, int(last)), mark)
        return
    if last == "name":
        _drop_former_kind(document, parent, annotation, value, done)
    _drop(document, parent, _EXCLUSIVE.get((str(done[-1]), last) if done else ("", "")), done)
    parent[last] = value
    _note(document, (*done, last), mark)


def _descend(
    document: Document, path: tuple[str, ...], mark: Mark, root: type[Spec]
) -> tuple[dict[str, object] | list[object], shape.Annotation, Path]:
    """Walk to what holds the last part of the path, and widen short forms on the way."""
    node = document.data
    annotation: shape.Annotation = root
    done: Path = ()
    for depth, part in enumerate(path[:-1]):
        if isinstance(node, list):
            index = _index(node, part, done, mark)
            annotation, done = shape.item_annotation(annotation), (*done, index)
            node = node[index]
        else:
            assert isinstance(node, dict)
            field = _field(annotation, node, part)
            if node.get(part) is None:
                _note(document, (*done, part), mark)
            node[part] = _widened(node.get(part), field)
            annotation = None if field is None else shape.annotation_of(field)
            done = (*done, part)
            node = node[part]
        if not isinstance(node, dict | list):
            reached = ".".join(path[: depth + 1])
            raise mark.error(f"{reached} is {quoted(node)}, which has no parts to set")
    assert isinstance(node, dict | list)
    return node, annotation, done


def _field(annotation: shape.Annotation, node: dict[str, object], key: str) -> FieldInfo | None:
    specs = shape.spec_classes(annotation)
    spec = shape.kind(annotation, node.get("name")) if len(specs) > 1 else next(iter(specs), None)
    return None if spec is None else shape.keys(spec).get(key)


def _widened(value: object, field: FieldInfo | None) -> object:
    if isinstance(value, str) and field is not None and shape.takes_short_form(field):
        return {"name": value}
    if value is not None:
        return value
    default = None if field is None else field.default
    if not isinstance(default, Spec):
        return {}
    name = getattr(default, "name", None)
    given = default.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return ({} if name is None else {"name": name}) | given


def _drop_former_kind(
    document: Document,
    node: dict[str, object],
    annotation: shape.Annotation,
    name: object,
    path: Path,
) -> None:
    specs = shape.spec_classes(annotation)
    if len(specs) < 2 or node.get("name") == name:
        return
    spec = shape.kind(annotation, name)
    known = shape.keys(spec) if spec is not None else node
    for key in [key for key in node if key not in known]:
        _drop(document, node, key, path)


def _drop(document: Document, node: dict[str, object], key: str | None, path: Path) -> None:
    # A setting of another override was asked for explicitly: it stays, and is reported.
    if key is not None and document.marks.get((*path, key), _UNMARKED).order == 0:
        node.pop(key, None)


def _index(items: list[object], part: str, path: Path, mark: Mark) -> int:
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    where = ".".join(str(key) for key in path)
    if not items:
        raise mark.error(f"{where} is empty; set the whole list, such as {where}=[...]")
    raise mark.error(f"{where} has the entries 0 to {len(items) - 1}, not {quoted(part)}")


def _note(document: Document, path: Path, mark: Mark) -> None:
    inside = [known for known in document.marks if known[: len(path)] == path]
    for known in inside:
        del document.marks[known]
    document.marks[path] = replace(mark)
