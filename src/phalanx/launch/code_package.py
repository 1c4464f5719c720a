"""Pack files for other machines: this version of Phalanx, the user's code, and small data.

A package is an archive whose key is a hash of names and contents, so a machine that already has it
is not sent it again. Only packs; `preflight` sends.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import SpecError
from phalanx.spec.job import JobSpec
from phalanx.spec.registry import IMPORT_PATH

MAX_CODE_BYTES = 32 << 20
_CODE_SUFFIXES = frozenset({".py", ".pyi", ".json", ".yaml", ".yml", ".toml", ".txt", ".cfg"})
_NOT_CODE = frozenset({"__pycache__", "node_modules", "runs", "dist", "build", "site-packages"})
# Fixed metadata: the same files always give the same bytes and key.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class CodePackage:
    """Archive to be unpacked into a folder named by its key."""

    key: str
    content: bytes


def pack(files: Mapping[str, Path], *, compress: bool = True) -> CodePackage:
    """Pack files under the given archive names."""
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
    """Pack the Phalanx package that this process runs."""
    root = Path(__file__).resolve().parents[1]
    files = {f"phalanx/{path.relative_to(root).as_posix()}": path for path in _below(root)}
    return pack({name: path for name, path in files.items() if path.suffix != ".pyc"})


def pack_user_code(job: JobSpec, directory: Path) -> CodePackage | None:
    """Pack the folders from which the job imports; None: it imports installed packages only.

    Args:
        job: Its `package.module:name` imports and `python_path` folders are packed.
        directory: Working directory of the `phalanx` command.

    Raises:
        SpecError: The files exceed the size limit for code.
    """
    names = sorted(set(_import_paths(job.model_dump(mode="json"))))
    files: dict[str, Path] = {}
    # Imports search the working directory first, so it takes precedence here too.
    for folder in reversed((directory, *map(Path, job.python_path))):
        named = [name for name in names if _holds(folder, name)]
        if not named:
            continue
        own = {
            path.relative_to(folder).as_posix(): path
            for path in _below(folder)
            if path.suffix in _CODE_SUFFIXES
        }
        size_bytes = sum(path.stat().st_size for path in own.values())
        if size_bytes > MAX_CODE_BYTES:
            raise SpecError(
                f"{folder} holds {size_bytes >> 20} MiB of code, and no more than "
                f"{MAX_CODE_BYTES >> 20} MiB are sent; start from a folder that holds only the "
                f"code of '{named[0]}'"
            )
        files |= own
    return pack(files) if files else None


def _import_paths(value: object) -> Iterator[str]:
    """Yield every `package.module:name` in a job."""
    if isinstance(value, str) and IMPORT_PATH.match(value):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _import_paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _import_paths(inner)


def _holds(folder: Path, name: str) -> bool:
    top = name.partition(":")[0].partition(".")[0]
    return (folder / top).is_dir() or (folder / f"{top}.py").is_file()


def _below(root: Path) -> Iterator[Path]:
    """Yield the files of a folder that may be code, without hidden folders and environments."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _NOT_CODE
            and not name.startswith(".")
            and not (Path(folder) / name / "pyvenv.cfg").exists()
        )
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))
