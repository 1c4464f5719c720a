"""Building an environment, with a package made here: nothing is downloaded."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from phalanx.agent.remote.install import build, versions


def make_wheel(folder: Path) -> None:
    """A package without contents, as pip installs it."""
    info = "tiny_thing-1.5.dist-info"
    with zipfile.ZipFile(folder / "tiny_thing-1.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.5\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_an_environment_is_built_once_with_the_wanted_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    root = tmp_path / "env"
    python = build(root, {"tiny-thing": "1.5+local"})
    assert versions(python, ["tiny-thing"]) == {"tiny-thing": "1.5"}
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert build(root, {"tiny-thing": "1.5+local"}) == python, "kept for the next run"
    with pytest.raises(RuntimeError, match="pip install"):
        build(root, {"tiny-thing": "1.6"})
    assert subprocess.run([python, "-c", ""], check=False).returncode == 0
    assert sys.prefix not in python
