"""Parse YAML text into plain data, with the line of every key and list entry.

YAML 1.2 throughout: `off` and `yes` are text, `1e-3` is a number, `010` is ten, and a date is text.
Knows nothing of jobs; `loader` reads job files with it and `overrides` the values of `--set`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from phalanx.errors import SpecError
from phalanx.spec.base import Spec
from phalanx.spec.flow import quoted
from phalanx.spec.names import nearest_name

Path = tuple[str | int, ...]
"""Keys and list indices from the top of a document to a value."""

_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {_TAG + name for name in ("str", "timestamp", "value", "merge")}
_TYPED_TAGS = {_TAG + name for name in ("null", "bool", "int", "float")}
# A job file has some dozens of values; far more means aliases that multiply one another.
_MAX_VALUES = 100_000


@dataclass(frozen=True)
class Mark:
    """Position of a value in a file or option."""

    source: str
    """File or option; empty if the value came from a Python mapping."""
    line: int | None = None
    """Counted from 1; None outside files."""
    column: int | None = None
    """Counted from 1; None outside files."""
    order: int = 0
    """0 for the file, then 1, 2, ... for the overrides in the order given."""

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass
class Document:
    """Plain data with the position of each part."""

    data: object
    marks: dict[Path, Mark] = field(default_factory=dict)

    def mark(self, path: Path) -> Mark:
        """Return the position of the value at `path`, or of the nearest part around it."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, Mark(""))

    def part(self, key: str) -> Document:
        """Return one setting of a mapping as a document, with the positions inside it."""
        assert isinstance(self.data, dict)
        inside = {path[1:]: mark for path, mark in self.marks.items() if path[:1] == (key,)}
        return Document(self.data.get(key), inside)


def read(file: FilePath) -> Document:
    """Read a YAML file.

    Raises:
        SpecError: The file is missing, unreadable, not UTF-8 or not YAML; one sentence with line.
    """
    return parse(read_text(file), str(file))


def read_settings(file: FilePath, such_as: str) -> Document:
    """Read a YAML file of settings by name.

    Raises:
        SpecError: As for `read`, or it holds something else; says what it is, `such_as` ...
    """
    document = read(file)
    if not isinstance(document.data, dict):
        raise SpecError(f"{file}: {such_as}", file=str(file))
    return document


def read_text(file: FilePath) -> str:
    """Read a text file. SpecError: the file is missing, unreadable or not UTF-8; one sentence."""
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        raise SpecError(f"{file}: there is no such file{_similar(file)}", file=str(file)) from None
    except IsADirectoryError:
        raise SpecError(f"{file}: this is a directory, not a file", file=str(file)) from None
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}", file=str(file)) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        mark = Mark(str(file), line=raw.count(b"\n", 0, error.start) + 1)
        raise _error(mark, "this is not UTF-8 text; save the file as UTF-8") from None


def parse(text: str, source: str, *, with_lines: bool = True) -> Document:
    """Read YAML text.

    Args:
        text: One document.
        source: What messages name as the place: a file, or an option.
        with_lines: False for options, whose value is one line anyway.

    Raises:
        SpecError: The text is not YAML, gives a key twice or uses what job files do not have.
    """
    reader = _Reader(source, with_lines=with_lines)
    try:
        # ruamel's composer has no annotations; it yields a node, or None for an empty document.
        node = YAML(typ="safe", pure=True).compose(text)
        data = None if node is None else reader.build(node, ())
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _error(reader.place(None if mark is None else mark.line), _reason(error)) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position)
        message = f"character {ord(text[error.position]):#x} is not allowed in YAML"
        raise _error(reader.place(line), message) from None
    except YAMLError as error:
        raise _error(reader.place(None), f"not valid YAML: {_one_line(str(error))}") from None
    except RecursionError:
        raise _error(reader.place(None), "values are nested too deeply") from None
    return Document(data, reader.marks)


def from_mapping(mapping: Mapping[str, object]) -> Document:
    """Copy a Python mapping into plain dicts and lists; specs in it count as what they describe."""
    return Document(_plain(mapping))


class _Reader:
    """Convert the nodes of one document into data and note the position of each."""

    def __init__(self, source: str, *, with_lines: bool) -> None:
        self.marks: dict[Path, Mark] = {}
        self._source = source
        self._with_lines = with_lines
        self._open: set[int] = set()
        self._num_values = 0
        self._constructor = YAML(typ="safe", pure=True).constructor

    def place(self, line: int | None, column: int | None = None) -> Mark:
        if line is None or not self._with_lines:
            return Mark(self._source)
        return Mark(self._source, line + 1, None if column is None else column + 1)

    def build(self, node: Node, path: Path) -> object:
        here = self.place(node.start_mark.line, node.start_mark.column)
        self.marks.setdefault(path, here)
        self._num_values += 1
        if id(node) in self._open:
            raise _error(here, f"alias '*{node.anchor}' refers to itself")
        if self._num_values > _MAX_VALUES:
            raise _error(here, f"the file has more than {_MAX_VALUES} values")
        self._open.add(id(node))
        try:
            return self._value(node, path, here)
        finally:
            self._open.discard(id(node))

    def _value(self, node: Node, path: Path, here: Mark) -> object:
        if isinstance(node, ScalarNode):
            return self._scalar(node, here)
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        raise _unknown_tag(node, here)

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        data: dict[str, object] = {}
        for key_node, value_node in node.value:
            mark = self.place(key_node.start_mark.line, key_node.start_mark.column)
            if not isinstance(key_node, ScalarNode) or key_node.tag not in _TEXT_TAGS:
                shown = quoted(self.build(key_node, (*path, "?")))
                raise _error(mark, f"a key must be text, not {shown}")
            key = str(key_node.value)
            if key in data:
                first = self.marks[*path, key]
                where = f" (first on line {first.line})" if first.line else ""
                raise _error(mark, f"key '{key}' is given twice{where}; keep one")
            self.marks[*path, key] = mark
            data[key] = self.build(value_node, (*path, key))
        return data

    def _scalar(self, node: ScalarNode, here: Mark) -> object:
        if node.tag in _TEXT_TAGS:
            return str(node.value)
        if node.tag not in _TYPED_TAGS:
            raise _unknown_tag(node, here)
        try:
            return self._constructor.construct_object(node)
        except (ValueError, KeyError):  # a tag such as !!int before text, or thousands of digits
            wanted = str(node.tag).removeprefix(_TAG)
            raise _error(here, f"{quoted(node.value)} cannot be read as {wanted}") from None


def _unknown_tag(node: Node, here: Mark) -> SpecError:
    name = str(node.tag).removeprefix(_TAG)
    return _error(here, f"tag '{name}' has no meaning here; remove it")


def _plain(value: object) -> object:
    if isinstance(value, Spec):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise SpecError(f"a key must be text, not {quoted(key)}")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _similar(file: FilePath) -> str:
    try:
        names = [entry.name for entry in file.parent.iterdir() if entry.is_file()]
    except OSError:
        return ""
    # By the names without their endings: any two .yaml files are alike in those.
    endings = {FilePath(name).stem: name for name in names}
    close = nearest_name(file.stem, endings)
    return "" if close is None else f"; did you mean '{endings[close]}'?"


def _reason(error: MarkedYAMLError) -> str:
    if error.context == "expected a single document in the stream":
        return "a second document starts here; write one job per file"
    if "'\\t'" in str(error.problem):
        return "not valid YAML: a tab cannot indent; use spaces"
    return "not valid YAML: " + " ".join(_one_line(p) for p in (error.problem, error.context) if p)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("'<stream end>'", "the end of it")


def _error(mark: Mark, message: str) -> SpecError:
    prefix = f"{mark}: " if mark.source else ""
    return SpecError(prefix + message, file=mark.source, line=mark.line)
