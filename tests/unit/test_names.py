"""Names and sizes in the source: one meaning for each class name, and nothing too large to read."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "phalanx"

MAX_ATTRIBUTES = 15
MAX_LINES = 450
MAX_SPEC_CHECKS = 20


@cache
def modules() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
    }


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                yield path, node


def test_no_public_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, node in classes():
        if not node.name.startswith("_"):
            places[node.name].append(path)
    assert len(places) > 300
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def attributes_of(node: ast.ClassDef) -> set[str]:
    return {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }


def test_no_class_assigns_too_many_attributes() -> None:
    sizes = {f"{path}:{node.name}": len(attributes_of(node)) for path, node in classes()}
    assert max(sizes.values()) > 5
    assert {name: size for name, size in sizes.items() if size > MAX_ATTRIBUTES} == {}


def test_no_module_is_too_long() -> None:
    sizes = {path: (SOURCE / path).read_text().count("\n") for path in modules()}
    assert {path: size for path, size in sizes.items() if size > MAX_LINES} == {}


def names_in(node: ast.AST) -> set[str]:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def spec_checks(module: ast.Module, specs: set[str]) -> Iterator[int]:
    """Yield the lines that test for a spec class; an assert only tells the type checker."""
    asserted = {
        id(part)
        for node in ast.walk(module)
        if isinstance(node, ast.Assert)
        for part in ast.walk(node)
    }
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                if id(node) not in asserted and names_in(kinds) & specs:
                    yield node.lineno
            case ast.MatchClass(cls=kind) if names_in(kind) & specs:
                yield node.lineno


def test_specs_are_asked_and_not_told_apart_by_class() -> None:
    specs = {node.name for _, node in classes() if node.name.endswith("Spec")}
    assert len(specs) > 40
    found = [
        f"{path}:{line}" for path, one in modules().items() for line in spec_checks(one, specs)
    ]
    assert len(found) <= MAX_SPEC_CHECKS, found


def test_checks_of_spec_classes_are_found() -> None:
    code = """
if isinstance(one, spec.SgdSpec | None): ...
assert isinstance(one, SgdSpec)
match one:
    case SgdSpec(): ...
"""
    assert sorted(spec_checks(ast.parse(code), {"SgdSpec"})) == [2, 5]
