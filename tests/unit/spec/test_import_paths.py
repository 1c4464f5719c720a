"""Every import path in the tables of kinds leads to something, without importing a framework."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import phalanx
from phalanx.launch.catalogue import LAUNCHERS
from phalanx.report.parts.catalogue import REPORT_PARTS
from phalanx.spec.backend import BACKENDS
from phalanx.spec.data import AUGMENTATIONS, METRICS, SOURCES
from phalanx.spec.kinds import STRATEGIES
from phalanx.spec.loss import LOSSES
from phalanx.spec.model import MODELS
from phalanx.spec.optimize import OPTIMIZERS
from phalanx.spec.registry import IMPORT_PATH, Registry

TABLES: list[Registry] = [  # type: ignore[type-arg]  # of different kinds
    STRATEGIES, BACKENDS, LAUNCHERS, MODELS, OPTIMIZERS, LOSSES, SOURCES, AUGMENTATIONS, METRICS,
    REPORT_PARTS,
]  # fmt: skip
ROOT = Path(phalanx.__file__).parent.parent


def paths(table: Registry) -> Iterator[tuple[str, str]]:  # type: ignore[type-arg]
    for name in table.built_in:
        kind = table.find(name)
        assert is_dataclass(kind), f"{table.noun} {name} cannot be walked"
        for field in fields(kind):
            value = getattr(kind, field.name)
            if isinstance(value, str) and IMPORT_PATH.match(value):
                yield name, value


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.noun)
def test_every_import_path_leads_somewhere(table: Registry) -> None:  # type: ignore[type-arg]
    missing = [f"{name}: {path}" for name, path in paths(table) if not leads_somewhere(path)]
    assert missing == []


def test_most_tables_have_import_paths() -> None:
    with_paths = {table.noun for table in TABLES if list(paths(table))}
    assert {"strategy", "backend", "launcher", "model", "optimizer", "loss"} <= with_paths


def leads_somewhere(path: str) -> bool:
    module, _, name = path.partition(":")
    place = ROOT / Path(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.exists():
        return False
    defined = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined |= {one.id for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            defined |= {one.asname or one.name for one in node.names}
    return name in defined
