"""Tables of kinds: built-ins, import paths, entry points, and the sentences of refusals."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx.spec.registry import Registry, load


@dataclass(frozen=True)
class Kind:
    name: str


def table() -> Registry[Kind]:
    return Registry("colour", Kind, group="phalanx.colours", built_in={"red": Kind("red")})


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an installed package that brings `blue`, and the folder called from."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paint_box.py").write_text(
        "from dataclasses import dataclass\n"
        "import sys\n"
        "Kind = sys.modules['test_registry_kind'].Kind\n"
        "BLUE = Kind('blue')\n"
        "NUMBER = 3\n"
    )
    monkeypatch.setitem(sys.modules, "test_registry_kind", sys.modules[__name__])
    info = tmp_path / "paint_box-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paint-box\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[phalanx.colours]\nblue = paint_box:BLUE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "paint_box", raising=False)
    return tmp_path


def test_a_built_in_kind_is_found_by_name() -> None:
    assert table().find("red") == Kind("red")


def test_an_import_path_among_the_built_ins_is_loaded_on_first_use(outside: Path) -> None:
    registry = Registry(
        "colour", Kind, group="phalanx.colours", built_in={"blue": "paint_box:BLUE"}
    )
    assert "paint_box" not in sys.modules
    assert registry.find("blue") == Kind("blue")


def test_an_import_path_in_a_job_file_is_a_kind(outside: Path) -> None:
    assert table().find("paint_box:BLUE") == Kind("blue")


def test_an_installed_package_brings_a_kind(outside: Path) -> None:
    registry = table()
    assert registry.find("blue") == Kind("blue")
    assert registry.names() == ("red", "blue")
    assert "blue" in registry


def test_an_unknown_name_says_what_is_known() -> None:
    with pytest.raises(SpecError) as caught:
        table().find("rad")
    assert str(caught.value) == (
        "unknown colour 'rad'; did you mean 'red'? (known: red; or package.module:name)"
    )


def test_something_else_under_the_name_is_refused(outside: Path) -> None:
    with pytest.raises(SpecError, match="colour 'paint_box:NUMBER' is int, not Kind"):
        table().find("paint_box:NUMBER")


def test_a_missing_module_is_one_sentence(outside: Path) -> None:
    with pytest.raises(SpecError, match="'no_such:THING' cannot be imported: ModuleNotFound"):
        table().find("no_such:THING")


def test_a_missing_name_suggests_the_nearest(outside: Path) -> None:
    with pytest.raises(SpecError, match="module 'paint_box' has no 'BLU'; did you mean 'BLUE'"):
        load("paint_box:BLU")
