from __future__ import annotations

import pytest

from phalanx.errors import LaunchError
from phalanx.launch.versions import EQUAL, NEEDED, check_versions, requirements, version_here

HERE: dict[str, str | None] = {name: version_here(name) for name in (*EQUAL, *NEEDED)}


def test_the_same_versions_are_nothing_to_speak_of() -> None:
    assert check_versions(HERE, python="python") == []


def test_how_torch_was_built_does_not_matter_but_its_version_does() -> None:
    built = f"{str(HERE['torch']).partition('+')[0]}+cu130"
    assert check_versions(HERE | {"torch": built}, python="python") == []
    with pytest.raises(LaunchError, match=r"torch 1\.0 is there and .* here; install the same"):
        check_versions(HERE | {"torch": "1.0"}, python="python")


def test_other_differences_are_noted() -> None:
    [note] = check_versions(HERE | {"psutil": "0.1"}, python="python")
    assert note.startswith("psutil 0.1 is there and ")


def test_what_is_missing_is_named_with_the_interpreter() -> None:
    lacking = HERE | {"torch": None, "pyzmq": None}
    with pytest.raises(LaunchError, match="torch, pyzmq are not installed for /opt/python"):
        check_versions(lacking, python="/opt/python")


def test_what_is_built_elsewhere_is_what_is_in_use_here() -> None:
    found = requirements()
    assert found["torch"] == HERE["torch"]
    assert "pytest" not in found, "only needed for development"
