"""The architecture page names modules that exist, and the import table that is checked."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "phalanx"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def contracts(kind: str) -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == kind]


def exists(dotted: str) -> bool:
    """Return whether a path such as `worker.loop` or `store.CheckpointStore` leads somewhere."""
    place, *rest = PACKAGE, *dotted.split(".")
    for depth, name in enumerate(rest):
        if (place / name).is_dir():
            place /= name
            continue
        module = place / f"{name}.py"
        if module.exists():
            text = module.read_text()
            return all(re.search(rf"\b{one}\b", text) for one in rest[depth + 1 :])
        return any(
            re.search(rf"^class {name}\b", one.read_text(), re.M) for one in place.glob("*.py")
        )
    return True


def test_every_module_on_the_page_exists() -> None:
    rooms = {one.stem for one in PACKAGE.iterdir()}
    groups = set(re.findall(r"`(phalanx\.\w+)`", PAGE[PAGE.index("## The open tables") :]))
    names = set(re.findall(r"(?<![\w.`/-])`?([a-z]\w*(?:\.[A-Za-z_]\w*)+)", PAGE))
    names |= {f"{a}.{b}" for a, b in re.findall(r"`(\w+)/(\w+)\.py`", PAGE)}
    files = {one for one in names if one.endswith((".py", ".json", ".jsonl", ".yaml"))}
    names = {one for one in names - groups - files if one.split(".")[0] in rooms}
    assert len(names) > 60
    assert not exists("control.roster")
    assert not exists("worker.loop.Roster")
    assert sorted(one for one in names if not exists(one)) == []


def test_the_import_table_is_the_contract() -> None:
    (contract,) = contracts("layers")
    checked = [set(one.replace("phalanx.", "").split(" | ")) for one in contract["layers"]]
    shown = [set(row.split()) for row in re.findall(r"^\| \d+ \| (.*) \|$", PAGE, re.M)]
    assert shown == checked[::-1]


def test_the_planes_are_those_of_the_contracts() -> None:
    shown = [set(one.split()) for one in re.findall(r"plane\*\*\s+\(`([a-z ]+)`\)", PAGE)]
    checked = [
        {one.removeprefix("phalanx.") for one in contract["source_modules"]}
        for contract in contracts("forbidden")[:2]
    ]
    assert shown == checked
