"""Pack what is sent to machines: this version of Phalanx, the user's code, and small data.

A package is an archive with a key that follows from names and contents alone, so a machine that has
it already is not sent it again. Packs and nothing else; `preflight` sends.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from phalanx.errors import SpecError
from phalanx.spec.registry import IMPORT_PATH

MAX_CODE_BYTES = 32 << 20
_CODE_SUFFIXES = frozenset({".py", ".pyi", ".json", ".yaml", ".yml", ".toml", ".txt", ".cfg"})
_NOT_CODE = frozenset({"__pycache__", "node_modules", "runs", "dist", "build", "site-packages"})
# The same bytes for the same files, whenever they are packed.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class CodePackage:
    """Files to be unpacked into a folder that is called by the key."""

    key: str
    content: bytes


def pack(files: Mapping[str, Path], *, compress: bool = True) -> CodePackage:
    """Pack files under the names that they are to have."""
    digest = hashlib.sha256()
    archive = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(archive, "w", kind) as opened:
        for name in sorted(files):
            content = files[name].read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = kind
            entry.external_attr = 0o644 << 16
            opened.writestr(entry, content)
    return CodePackage(digest.hexdigest()[:24], archive.getvalue())


def pack_phalanx() -> CodePackage:
    """Pack Phalanx as it is in use here."""
    root = Path(__file__).resolve().parents[1]
    files = {f"phalanx/{path.relative_to(root).as_posix()}": path for path in _below(root)}
    return pack({name: path for name, path in files.items() if path.suffix != ".pyc"})


def pack_user_code(spec: BaseModel, directory: Path) -> CodePackage | None:
    """Pack the folder that holds code which a job names; None: all of it is installed.

    Args:
        spec: The job; its model, strategy and others may be `package.module:name`.
        directory: Where the user's code lies.

    Raises:
        SpecError: It is too much to be code.
    """
    named = [path for path in import_paths(spec.model_dump()) if _is_below(path, directory)]
    if not named:
        return None
    files = {
        path.relative_to(directory).as_posix(): path
        for path in _below(directory)
        if path.suffix in _CODE_SUFFIXES
    }
    size_bytes = sum(path.stat().st_size for path in files.values())
    if size_bytes > MAX_CODE_BYTES:
        raise SpecError(
            f"{directory} holds {size_bytes >> 20} MiB of code, and no more than "
            f"{MAX_CODE_BYTES >> 20} MiB are sent; start from a folder that holds only the code "
            f"of '{named[0]}'"
        )
    return pack(files)


def import_paths(value: object) -> Iterator[str]:
    """Yield every `package.module:name` that stands as a `name` in a job, at any depth."""
    if isinstance(value, Mapping):
        name = value.get("name")
        if isinstance(name, str) and IMPORT_PATH.match(name):
            yield name
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from import_paths(one)


def _is_below(path: str, directory: Path) -> bool:
    top = path.partition(":")[0].partition(".")[0]
    return (directory / top).is_dir() or (directory / f"{top}.py").is_file()


def _below(root: Path) -> Iterator[Path]:
    """Yield all files in a folder that may be code, without hidden folders and environments."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _NOT_CODE
            and not name.startswith(".")
            and not (Path(folder) / name / "pyvenv.cfg").exists()
        )
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))
