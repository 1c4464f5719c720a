from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phalanx.agent.remote.install import is_complete, unpack
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


def listed(folder: Path) -> list[str]:
    """What is in a folder beside the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


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
    package = pack_phalanx()
    folder = tmp_path / package.key
    assert unpack(package.content, folder)
    assert not unpack(b"", folder), "what is there is not unpacked again"
    assert listed(tmp_path) == [package.key]
    code = "import phalanx.launch.data_lookup as m; print(m.__file__)"
    done = subprocess.run(
        ["env", f"PYTHONPATH={folder}", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == str(folder / "phalanx" / "launch" / "data_lookup.py")
    (folder / "phalanx" / "launch" / "written-by-a-run.txt").write_text("x")
    assert is_complete(folder), "what a run adds does not matter"


def test_what_a_failure_of_power_left_is_noticed_and_sent_again(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("make = None")
    package = pack({"net.py": tmp_path / "net.py"})
    folder = tmp_path / "code" / package.key
    assert unpack(package.content, folder)
    # The name was on the disk, the content was not.
    (folder / "net.py").write_text("")
    assert not is_complete(folder)
    assert unpack(package.content, folder)
    assert (folder / "net.py").read_text() == "make = None"
    assert is_complete(folder)
    with pytest.raises(ValueError, match="arrived damaged"):
        unpack(package.content, tmp_path / "code" / ("0" * len(package.key)))
    assert listed(tmp_path / "code") == [package.key]


def test_machines_that_share_a_home_unpack_one_after_another(tmp_path: Path) -> None:
    """Otherwise one takes away, as half done, what another has just put there and runs from."""
    (tmp_path / "net.py").write_text("make = None")
    package = pack({"net.py": tmp_path / "net.py"})
    folder = tmp_path / "code" / package.key
    folder.mkdir(parents=True)  # left by a failure of power
    with ThreadPoolExecutor(8) as machines:
        done = list(machines.map(lambda _: unpack(package.content, folder), range(8)))
    assert done.count(True) == 1, "once"
    assert is_complete(folder)
    assert listed(tmp_path / "code") == [package.key]


def test_what_cannot_be_stored_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text("")
    package = pack({"net.py": tmp_path / "net.py"})

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        unpack(package.content, tmp_path / "code" / package.key)


def test_what_is_sent_is_what_the_job_names(tmp_path: Path) -> None:
    sent = {
        "net/__init__.py": "",
        "net/build.py": "import helper, numpy\nfrom net.sizes import WIDTH",
        "net/sizes.json": "{}",
        "helper.py": "from tables.wide import TABLE",
        "tables/wide.py": "import net",
        "named/rules.yaml": "",
        "one.toml": "",
    }
    kept = {
        "service-account.json": "secret",
        "passwords.txt": "secret",
        "other.py": "import net",
        "named/model.bin": "",
        ".git/x.py": "",
        "net/.hidden/y.py": "",
        "net/__pycache__/build.py": "",
        "runs/y.py": "",
    }
    for name, text in (sent | kept).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    job = {"model": "net.build:make", "code": ["named", "one.toml"]}
    found = pack_user_code(JobSpec.model_validate(job), tmp_path)
    assert found is not None
    assert set(names(found)) == set(sent)
    assert found.summary.startswith(
        "helper.py, named/ (1 file), net/ (3 files), one.toml, tables/ (1 file); "
    )


@pytest.mark.parametrize("name", ["..", "../x", "/etc/passwd", "a/../../x", "."])
def test_code_outside_of_the_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="code"):
        JobSpec.model_validate({"code": [name]})


def test_code_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"code names helpers, which is neither in .* nor in"):
        pack_user_code(JobSpec.model_validate({"code": ["helpers"]}), tmp_path)


def test_built_in_and_installed_models_need_no_code(tmp_path: Path) -> None:
    assert pack_user_code(JobSpec(model=MlpSpec()), tmp_path) is None
    assert pack_user_code(JobSpec(model=UserModelSpec(name="torch.nn:Linear")), tmp_path) is None


def test_too_much_to_be_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text("x" * 100)
    monkeypatch.setattr(code_package, "MAX_CODE_BYTES", 50)
    with pytest.raises(SpecError, match="keep data out of the folders"):
        pack_user_code(JobSpec(model=UserModelSpec(name="net:make")), tmp_path)


def test_data_is_called_by_where_it_was_sent(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_text("")
    spec = DataSpec(name=str(tmp_path / "own.npz"), directory="/elsewhere")
    assert data_files(spec, tmp_path) == {"own.npz": tmp_path / "own.npz"}
    there = data_there(spec, "/home/u/sent/k")
    assert (there.name, there.directory) == ("/home/u/sent/k/own.npz", None)
    assert data_there(DataSpec(name="mnist"), "/home/u/sent/k").directory == "/home/u/sent/k"
    assert data_files(DataSpec(name="digits"), tmp_path) == {}
