"""Change the text of a script at the places of its syntax tree, and nothing else.

Insertions and replacements are collected and applied together, so that comments, formatting and
line endings of everything else stay as they are.
"""

from __future__ import annotations

from collections import defaultdict

import libcst as cst

from phalanx.adopt.findings import Doubt, refuse
from phalanx.adopt.script import ScriptSource


class Edits:
    """Collected changes of one script."""

    def __init__(self, script: ScriptSource) -> None:
        self._script = script
        self._spans: list[tuple[int, int, str]] = []
        self._deleted: list[cst.CSTNode] = []
        self._newline = "\r\n" if "\r\n" in script.source else "\n"

    def __bool__(self) -> bool:
        return bool(self._spans or self._deleted)

    def replace(self, node: cst.CSTNode, text: str) -> None:
        """Put a text in the place of a node."""
        self._spans.append((*self._script.span(node), text))

    def cut(self, start: int, end: int) -> None:
        """Remove a part of the text."""
        self._spans.append((start, end, ""))

    def surround(self, node: cst.CSTNode, before: str, after: str) -> None:
        """Put texts directly before and after a node."""
        start, end = self._script.span(node)
        self._spans += [(start, start, before), (end, end, after)]

    def unwrap(self, outer: cst.CSTNode, inner: cst.CSTNode, after: str = "") -> None:
        """Leave only the inner part of a node, with a text after it."""
        start, end = self._script.span(outer)
        first, last = self._script.span(inner)
        # Parentheses of the inner expression's own belong to it.
        while self._script.source[first - 1] == "(" and self._script.source[last : last + 1] == ")":
            if first - 1 <= start or self._is_call_parenthesis(first - 1):
                break
            first, last = first - 1, last + 1
        self._spans += [(start, first, ""), (last, end, after)]

    def _is_call_parenthesis(self, position: int) -> bool:
        before = self._script.source[position - 1 : position]
        return before.isalnum() or before in ("_", "]", ")")

    def delete(self, statement: cst.CSTNode) -> None:
        """Delete a statement with its lines.

        Raises:
            Doubt: It shares its line with another one.
        """
        if not any(statement is one for one in self._deleted):
            self._check_alone(statement)
            self._deleted.append(statement)

    def insert_after(self, statement: cst.CSTNode, *lines: str) -> None:
        """Insert lines after a statement, indented as it is."""
        self._check_alone(statement)
        at = self._script.line_start(self._script.end_line(statement) + 1)
        text = self._lines(statement, lines)
        if at == len(self._script.source) and not self._script.source.endswith("\n"):
            text = self._newline + text.removesuffix(self._newline)
        self._spans.append((at, at, text))

    def insert_before(self, statement: cst.CSTNode, *lines: str) -> None:
        """Insert lines before a statement and the comments above it."""
        self._check_alone(statement)
        above = len(getattr(statement, "leading_lines", ()))
        at = self._script.line_start(self._script.line(statement) - above)
        self._spans.append((at, at, self._lines(statement, lines)))

    def indent(self, statement: cst.CSTNode, head: str) -> None:
        """Put a statement into a block of its own under a head line."""
        self._check_alone(statement)
        first, last = self._script.line(statement), self._script.end_line(statement)
        at = self._script.line_start(first)
        self._spans.append((at, at, self._lines(statement, [head])))
        for line in range(first, last + 1):
            start = self._script.line_start(line)
            if self._script.source[start : self._script.line_start(line + 1)].strip():
                self._spans.append((start, start, self._script.module.default_indent))

    def _lines(self, statement: cst.CSTNode, lines: tuple[str, ...] | list[str]) -> str:
        start = self._script.line_start(self._script.line(statement))
        margin = self._script.source[start : start + self._script.column(statement)]
        return "".join(f"{margin}{one}{self._newline}" if one else self._newline for one in lines)

    def _check_alone(self, statement: cst.CSTNode) -> None:
        shares = isinstance(statement, cst.SimpleStatementLine) and len(statement.body) > 1
        if shares or not isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            raise Doubt(
                refuse(
                    self._script.line(statement),
                    "shared-line",
                    "several statements in one line",
                    "a line has to be inserted or removed here",
                    "one statement per line",
                )
            )

    def apply(self) -> str:
        """Return the changed text."""
        spans = [*self._spans, *self._deletions()]
        source = self._script.source
        # Insertions at one place keep the order in which they were asked for.
        ordered = sorted(enumerate(spans), key=lambda one: (one[1][0], one[1][1], one[0]))
        parts: list[str] = []
        done = 0
        for _, (start, end, text) in ordered:
            if start < done:
                # Lies in something that is removed as a whole.
                continue
            parts += [source[done:start], text]
            done = end
        return "".join([*parts, source[done:]])

    def _deletions(self) -> list[tuple[int, int, str]]:
        script = self._script
        blocks: dict[int, list[cst.CSTNode]] = defaultdict(list)
        for statement in self._deleted:
            blocks[id(script.parent(statement))].append(statement)
        spans = []
        for statements in blocks.values():
            block = script.parent(statements[0])
            body = block.body if isinstance(block, cst.IndentedBlock) else ()
            empties = bool(body) and len(statements) == len(body)
            for index, one in enumerate(sorted(statements, key=script.line)):
                start = script.line_start(script.line(one))
                end = script.line_start(script.end_line(one) + 1)
                text = self._lines(one, ["pass"]) if empties and not index else ""
                spans.append((start, end, text))
        return spans
