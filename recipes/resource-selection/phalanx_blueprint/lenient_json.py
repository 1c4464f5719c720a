"""Parse hand-written JSON: missing and superfluous commas, bare words, curly quotes.

Reports each repair with its line, and notes the position of every value. Valid JSON is parsed as a
strict parser does.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from phalanx.errors import SpecError
from phalanx.spec.document import Mark, Path

_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<mark>[{}\[\]:,])|(?P<string>"(?:[^"\\\n]|\\.)*")|"""
    r"""(?P<curly>[“”„][^“”„"\n]*[“”"])|(?P<word>[^\s{}\[\]:,"“”„]+)"""
)
_CLOSING = {"{": "}", "[": "]"}
_MAX_DEPTH = 50


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int


@dataclass
class Mended:
    """Parsed data, the position of each part, and the repairs."""

    data: object = None
    marks: dict[Path, Mark] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """One sentence per repair, with file and line."""


def read_leniently(text: str, source: str) -> Mended:
    """Parse JSON that may have the usual slips of hand-written files.

    Raises:
        SpecError: What is there cannot be understood even so; one sentence with line.
    """
    reader = _Reader(text, source)
    reader.result.data = reader.value((), 0)
    reader.expect_end()
    return reader.result


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self.result = Mended()
        self._source = source
        self._tokens = self._split(text)
        self._at = 0

    def value(self, path: Path, depth: int) -> object:
        token = self._next()
        if token is None:
            raise self._error(None, "the file ends where a value should be")
        self.result.marks.setdefault(path, Mark(self._source, token.line))
        if depth > _MAX_DEPTH:
            raise self._error(token, "values are nested too deeply")
        if token.text == "{" and token.kind == "mark":
            return self._object(path, depth)
        if token.text == "[" and token.kind == "mark":
            return self._array(path, depth)
        if token.kind == "mark":
            raise self._error(token, f"'{token.text}' stands where a value should be")
        return self._scalar(token)

    def expect_end(self) -> None:
        token = self._next()
        if token is not None:
            raise self._error(token, f"'{token.text}' stands after the end of the value")

    def _object(self, path: Path, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        while not self._closes("{", empty=not found):
            token = self._next()
            if token is None or token.kind == "mark":
                raise self._error(token, "a key should stand here")
            key = str(self._scalar(token, is_key=True))
            if key in found:
                raise self._error(token, f"key '{key}' is given twice; keep one")
            colon = self._next()
            if colon is None or colon.text != ":":
                raise self._error(token, f"':' is missing after the key '{key}'")
            self.result.marks[*path, key] = Mark(self._source, token.line)
            found[key] = self.value((*path, key), depth + 1)
        return found

    def _array(self, path: Path, depth: int) -> list[object]:
        found: list[object] = []
        while not self._closes("[", empty=not found):
            found.append(self.value((*path, len(found)), depth + 1))
        return found

    def _closes(self, opened: str, *, empty: bool) -> bool:
        """Step over the comma between two entries, repairing it; True at the closing bracket."""
        token = self._peek()
        if token is not None and token.text == "," and not empty:
            self._at += 1
            after = self._peek()
            if after is not None and after.text == _CLOSING[opened]:
                self._note(token, f"removed the comma before '{after.text}'")
            token = after
        elif token is not None and not empty and token.text != _CLOSING[opened]:
            before = self._tokens[self._at - 1]
            self._note(before, f"added the missing comma after '{before.text}'")
        if token is None:
            raise self._error(None, f"'{_CLOSING[opened]}' is missing at the end of the file")
        if token.text == _CLOSING[opened] and token.kind == "mark":
            self._at += 1
            return True
        return False

    def _scalar(self, token: _Token, *, is_key: bool = False) -> object:
        if token.kind == "curly":
            self._note(token, f"took {token.text} for text in straight quotes")
            return token.text[1:-1]
        try:
            value: object = json.loads(token.text)
        except ValueError:
            self._note(token, f"took the bare word {token.text} for text")
            return token.text
        if is_key and token.kind == "word":
            self._note(token, f"took the bare word {token.text} for text")
            return token.text
        return value

    def _split(self, text: str) -> list[_Token]:
        tokens, at, line = [], 0, 1
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(
                    _Token("", "", line), "a quote opens here and does not close on the line"
                )
            if found.lastgroup != "space":
                tokens.append(_Token(str(found.lastgroup), found.group(), line))
            line += found.group().count("\n")
            at = found.end()
        return tokens

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> _Token | None:
        token = self._peek()
        self._at += 1
        return token

    def _note(self, token: _Token, what: str) -> None:
        self.result.notes.append(f"{self._source}:{token.line}: {what}")

    def _error(self, token: _Token | None, message: str) -> SpecError:
        line = token.line if token is not None else None
        where = self._source if line is None else f"{self._source}:{line}"
        return SpecError(f"{where}: {message}", file=self._source, line=line)
