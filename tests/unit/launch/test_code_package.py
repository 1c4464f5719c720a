from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from phalanx.agent.remote.install import unpack
from phalanx.errors import SpecError
from phalanx.launch import code_package
from phalanx.launch.code_package import pack, pack_phalanx, pack_user_code
from phalanx.launch.data_staging import data_files, data_there
from phalanx.spec.data import DataSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.model import MlpSpec, UserModelSpec


def names(one: code_package.CodePackage) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(one.content)) as opened:
        return opened.namelist()


def test_the_key_follows_from_names_and_contents_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("1")
    first = pack({"a.py": file})
    file.touch()
    assert pack({"a.py": file}) == first
    assert pack({"b.py": file}).key != first.key
    file.write_text("2")
    assert pack({"a.py": file}).key != first.key


def test_the_package_in_use_runs_where_it_was_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    assert unpack(pack_phalanx().content, folder)
    assert not unpack(b"", folder), "what is there is not unpacked again"
    assert [path.name for path in tmp_path.iterdir()] == ["code"]
    code = "import phalanx.launch.data_lookup as m; print(m.__file__)"
    done = subprocess.run(
        ["env", f"PYTHONPATH={folder}", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == str(folder / "phalanx" / "launch" / "data_lookup.py")


def test_the_users_code_is_sent_with_what_it_imports_and_without_what_is_not_code(
    tmp_path: Path,
) -> None:
    for name in ("net/__init__.py", "net/build.py", "helper.py", ".git/x.py", "runs/y.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "env" / "z.py").write_text("")
    (tmp_path / "model.bin").write_text("")
    found = pack_user_code(JobSpec(model=UserModelSpec(name="net.build:make")), tmp_path)
    assert found is not None
    assert names(found) == ["helper.py", "net/__init__.py", "net/build.py"]


def test_built_in_and_installed_models_need_no_code(tmp_path: Path) -> None:
    assert pack_user_code(JobSpec(model=MlpSpec()), tmp_path) is None
    assert pack_user_code(JobSpec(model=UserModelSpec(name="torch.nn:Linear")), tmp_path) is None


def test_too_much_to_be_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text("x" * 100)
    monkeypatch.setattr(code_package, "MAX_CODE_BYTES", 50)
    with pytest.raises(SpecError, match="start from a folder that holds only the code"):
        pack_user_code(JobSpec(model=UserModelSpec(name="net:make")), tmp_path)


def test_data_is_called_by_where_it_was_sent(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_text("")
    spec = DataSpec(name=str(tmp_path / "own.npz"), directory="/elsewhere")
    assert data_files(spec, tmp_path) == {"own.npz": tmp_path / "own.npz"}
    there = data_there(spec, "/home/u/sent/k")
    assert (there.name, there.directory) == ("/home/u/sent/k/own.npz", None)
    assert data_there(DataSpec(name="mnist"), "/home/u/sent/k").directory == "/home/u/sent/k"
    assert data_files(DataSpec(name="digits"), tmp_path) == {}
