"""Parse a script and answer questions about its syntax tree.

`ScriptSource` wraps libcst's tree with positions and parents, and keeps tables of functions, calls,
bindings and imports. It knows nothing of training. Nothing is executed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from phalanx.errors import SpecError

Scope = cst.FunctionDef | cst.Module
Loop = cst.For | cst.While
N = TypeVar("N", bound=cst.CSTNode)


@dataclass(frozen=True)
class Binding:
    """One place that gives a name its value.

    Attributes:
        key: The name, or `self.name`.
        scope: Function or module that holds the statement.
        statement: The line or compound statement that binds.
        value: The expression; None for imports, definitions and loop variables.
        index: Position in the value where several names are unpacked, None for a single name.
    """

    key: str
    scope: Scope
    statement: cst.CSTNode
    value: cst.BaseExpression | None
    index: int | None = None


class _Tree:
    """Nodes numbered in the order of the text, so that what lies in a node is a range of them."""

    def __init__(self, root: cst.CSTNode) -> None:
        self._first: dict[cst.CSTNode, int] = {}
        self._end: dict[cst.CSTNode, int] = {}
        self._kinds: dict[type[cst.CSTNode], list[tuple[int, cst.CSTNode]]] = defaultdict(list)
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._number(root)

    def _number(self, node: cst.CSTNode) -> None:
        self._first[node] = len(self._first)
        self._kinds[type(node)].append((self._first[node], node))
        for child in node.children:
            self.parents[child] = node
            self._number(child)
        self._end[node] = len(self._first)

    def below(self, root: cst.CSTNode, kind: type[N]) -> Iterator[N]:
        numbered = self._kinds.get(kind, [])
        start = bisect_right(numbered, self._first[root], key=lambda one: one[0])
        for number, node in numbered[start:]:
            if number >= self._end[root]:
                return
            yield cast("N", node)

    def holds(self, outer: cst.CSTNode, node: cst.CSTNode) -> bool:
        return self._first[outer] <= self._first[node] < self._end[outer]


class ScriptSource:
    """A parsed script.

    Args:
        source: Its text.
        path: Only for messages.

    Raises:
        SpecError: The text is not Python 3.
    """

    def __init__(self, source: str, path: str) -> None:
        self.source = source
        try:
            module = cst.parse_module(source)
        except cst.ParserSyntaxError as error:
            raise SpecError(
                f"{path}, line {error.raw_line}: not Python 3; adopt reads plain scripts "
                "(for a notebook: `jupyter nbconvert --to script`, without its % and ! lines)"
            ) from None
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self._positions = cast("Mapping[cst.CSTNode, CodeRange]", wrapper.resolve(PositionProvider))
        self._starts = _line_starts(source)
        self._tree = _Tree(self.module)
        self._imported = dict(_imported_names(self))
        self.calls = list(self.find(self.module, cst.Call))
        self.functions = list(self.find(self.module, cst.FunctionDef))
        self.classes = list(self.find(self.module, cst.ClassDef))
        self.bindings: dict[str, list[Binding]] = defaultdict(list)
        for binding in _bindings(self):
            self.bindings[binding.key].append(binding)

    def find(self, root: cst.CSTNode, kind: type[N]) -> Iterator[N]:
        """Yield the nodes of one kind below a node, in the order of the text."""
        return self._tree.below(root, kind)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the node around a node; None for the module."""
        return self._tree.parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes around a node, innermost first."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def line(self, node: cst.CSTNode) -> int:
        """Return the first line of a node."""
        return self._positions[node].start.line

    def end_line(self, node: cst.CSTNode) -> int:
        """Return the last line of a node."""
        return self._positions[node].end.line

    def column(self, node: cst.CSTNode) -> int:
        """Return the column of a node's first character."""
        return self._positions[node].start.column

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return where a node starts and ends in the text."""
        where = self._positions[node]
        return (
            self._starts[where.start.line - 1] + where.start.column,
            self._starts[where.end.line - 1] + where.end.column,
        )

    def line_start(self, line: int) -> int:
        """Return where a line starts in the text; the line after the last is its end."""
        return self._starts[line - 1] if line <= len(self._starts) else len(self.source)

    def code(self, node: cst.CSTNode) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.source[start:end]

    def qualified(self, node: cst.CSTNode) -> str:
        """Return the full name of what an expression, or a call, refers to; else its text."""
        wanted = node.func if isinstance(node, cst.Call) else node
        text = self.code(wanted)
        first, dot, rest = text.partition(".")
        return f"{self._imported.get(first, first)}{dot}{rest}"

    def scope(self, node: cst.CSTNode) -> Scope:
        """Return the function around a node, or the module."""
        for above in self.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                return above
        return self.module

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the innermost class around a node."""
        return next((a for a in self.ancestors(node) if isinstance(a, cst.ClassDef)), None)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the line or compound statement that holds a node, or the node itself."""
        for one in (node, *self.ancestors(node)):
            if isinstance(one, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return one
        return node

    def loops(self, node: cst.CSTNode) -> list[Loop]:
        """Return the loops around a node within its function, innermost first.

        The iterable of a `for` counts as outside of it.
        """
        found: list[Loop] = []
        below = node
        for above in self.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                break
            if isinstance(above, cst.For | cst.While) and below is above.body:
                found.append(above)
            below = above
        return found

    def inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Say whether a node lies in another or is it."""
        return self._tree.holds(outer, node)

    def parameters(self, function: cst.FunctionDef) -> list[str]:
        """Return the names of a function's parameters in order, `self` included."""
        spec = function.params
        return [p.name.value for p in (*spec.posonly_params, *spec.params, *spec.kwonly_params)]

    def root(self, expression: cst.BaseExpression) -> str | None:
        """Return the first name of `name.more.parts`, of calls on it and of items of it."""
        while isinstance(expression, cst.Attribute | cst.Call | cst.Subscript):
            expression = expression.func if isinstance(expression, cst.Call) else expression.value
        return expression.value if isinstance(expression, cst.Name) else None

    def imports(self) -> set[str]:
        """Return the top-level packages that the script imports anywhere."""
        found: set[str] = set()
        for one in self.find(self.module, cst.Import):
            found |= {self.code(alias.name).split(".")[0] for alias in one.names}
        for other in self.find(self.module, cst.ImportFrom):
            if other.module is not None and not other.relative:
                found.add(self.code(other.module).split(".")[0])
        return found


def _imported_names(script: ScriptSource) -> Iterator[tuple[str, str]]:
    """Yield what imports bind, with its full name."""
    for one in script.find(script.module, cst.Import):
        for alias in one.names:
            full = script.code(alias.name)
            if alias.asname is not None:
                yield script.code(alias.asname.name), full
    for other in script.find(script.module, cst.ImportFrom):
        if other.module is None or isinstance(other.names, cst.ImportStar):
            continue
        for alias in other.names:
            name = alias.name if alias.asname is None else alias.asname.name
            yield script.code(name), f"{script.code(other.module)}.{script.code(alias.name)}"


def key_of(node: cst.CSTNode) -> str | None:
    """Return `name` or `self.name` for what a variable is called, None for anything else."""
    match node:
        case cst.Name(value=name):
            return name
        case cst.Attribute(value=cst.Name(value="self"), attr=cst.Name(value=name)):
            return f"self.{name}"
    return None


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.Arg | None:
    """Return an argument of a call by keyword, else by position."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
    if position is None:
        return None
    plain = [arg for arg in call.args if arg.keyword is None and not arg.star]
    return plain[position] if position < len(plain) else None


def called(call: cst.Call) -> str:
    """Return the last part of the name that a call calls."""
    match call.func:
        case cst.Name(value=name) | cst.Attribute(attr=cst.Name(value=name)):
            return name
    return ""


def receiver(call: cst.Call) -> cst.BaseExpression | None:
    """Return `x` of `x.method()`, None for a plain call."""
    return call.func.value if isinstance(call.func, cst.Attribute) else None


def _line_starts(source: str) -> list[int]:
    starts = [0]
    position = source.find("\n")
    while position != -1:
        starts.append(position + 1)
        position = source.find("\n", position + 1)
    return starts


def _bindings(script: ScriptSource) -> Iterator[Binding]:
    for assign in script.find(script.module, cst.Assign):
        for target in assign.targets:
            yield from _targets(script, target.target, assign.value)
    for annotated in script.find(script.module, cst.AnnAssign):
        if annotated.value is not None:
            yield from _targets(script, annotated.target, annotated.value)
    for augmented in script.find(script.module, cst.AugAssign):
        yield from _targets(script, augmented.target, None)
    for loop in script.find(script.module, cst.For):
        yield from _targets(script, loop.target, None)
    for item in script.find(script.module, cst.WithItem):
        if item.asname is not None:
            yield from _targets(script, item.asname.name, item.item)


def _targets(
    script: ScriptSource, target: cst.BaseExpression, value: cst.BaseExpression | None
) -> Iterator[Binding]:
    if isinstance(target, cst.Tuple | cst.List):
        for index, element in enumerate(target.elements):
            part: cst.BaseExpression | None = value
            place: int | None = index
            if isinstance(value, cst.Tuple) and len(value.elements) == len(target.elements):
                part, place = value.elements[index].value, None
            inner = key_of(element.value)
            if inner is not None:
                yield Binding(inner, script.scope(target), script.statement(target), part, place)
        return
    key = key_of(target)
    if key is not None:
        yield Binding(key, script.scope(target), script.statement(target), value)
