"""Functions of a notebook become modules that a worker can import."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from phalanx.errors import SpecError
from phalanx.notebook.cell_code import with_importable_code

CELL = """
import math as m
from pathlib import PurePath
WIDTH = 3
TABLE = object()

class Block:
    def area(self):
        return m.floor(WIDTH * 2.5)

def scaled(value):
    return value * WIDTH

def build(num_classes):
    return scaled(Block().area() + num_classes), PurePath("x").name

def with_table():
    return TABLE

nameless = lambda: 1
"""


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of a notebook after its cell was executed, as IPython does it."""
    main = ModuleType("__main__")
    file = "<ipython-input-1-abc>"
    linecache.cache[file] = (len(CELL), None, CELL.splitlines(keepends=True), file)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(CELL, file, "exec"), vars(main))
    yield vars(main)
    linecache.cache.pop(file)


def test_a_function_takes_along_all_that_it_uses(cell: dict[str, Any], tmp_path: Path) -> None:
    job = with_importable_code({"model": {"name": cell["build"], "args": {}}}, tmp_path)
    module, name = job["model"]["name"].split(":")
    assert name == "build"
    assert job["python_path"] == [str(tmp_path)]
    found: dict[str, Any] = {}
    exec((tmp_path / f"{module}.py").read_text(), found)
    assert found["build"](10) == (51, "x")
    assert "TABLE" not in found


def test_a_function_of_a_module_is_named(tmp_path: Path) -> None:
    job = with_importable_code({"model": with_importable_code, "epochs": 3}, tmp_path)
    assert job == {"model": "phalanx.notebook.cell_code:with_importable_code", "epochs": 3}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("with_table", "'with_table' uses 'TABLE' of the notebook, which is object"),
        ("nameless", "define it with `def`"),
    ],
)
def test_what_no_module_can_hold_is_refused(
    cell: dict[str, Any], name: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=sentence):
        with_importable_code({"model": cell[name]}, tmp_path)
