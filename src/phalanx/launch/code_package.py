"""Pack files for other machines: this version of Phalanx, the user's code, and small data.

A package is an archive whose key is a hash of names and contents, so a machine that already has it
is not sent it again. Only packs; `preflight` sends.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.agent.remote.install import KEY_LENGTH
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
    names: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """What it holds: the top folders and files, in words."""
        counts = Counter(name.partition("/")[0] for name in self.names)
        tops = [
            top if top in self.names else f"{top}/ ({count} file{'' if count == 1 else 's'})"
            for top, count in counts.items()
        ]
        return f"{', '.join(tops)}; {len(self.content) / 1024:.0f} KiB"


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
    return CodePackage(
        digest.hexdigest()[:KEY_LENGTH], archive.getvalue(), names=tuple(sorted(files))
    )


def pack_phalanx() -> CodePackage:
    """Pack the Phalanx package that this process runs."""
    root = Path(__file__).resolve().parents[1]
    files = {f"phalanx/{path.relative_to(root).as_posix()}": path for path in _below(root)}
    return pack({name: path for name, path in files.items() if path.suffix != ".pyc"})


def pack_user_code(job: JobSpec, directory: Path) -> CodePackage | None:
    """Pack what the job names of the user's code; None: it imports installed packages only.

    That is the top package or module of every `package.module:name`, the job's script, what these
    import from the same folder, and the entries of `code`. Nothing else in the folder is sent.

    Args:
        job: Its imports, and its `code`, are looked up in `directory` and in `python_path`.
        directory: Working directory of the `phalanx` command.

    Raises:
        SpecError: An entry of `code` is missing, or the files exceed the size limit for code.
    """
    names = {name.partition(":")[0] for name in _import_paths(job.model_dump(mode="json"))}
    files: dict[str, Path] = {}
    missing = set(job.code)
    # Imports search the working directory first, so it takes precedence here too.
    for folder in reversed((directory, *map(Path, job.python_path))):
        missing -= {one for one in job.code if (folder / one).exists()}
        files |= _closure(folder, [*map(Path, job.code), *(_holder(folder, one) for one in names)])
    if job.program is not None:
        script = Path(job.program.script)
        missing -= {one for one in job.code if (script.parent / one).exists()}
        files |= _closure(script.parent, [Path(script.name), *map(Path, job.code)])
    if missing:
        raise SpecError(
            f"code names {', '.join(sorted(missing))}, which is neither in {directory} nor in "
            "'python_path'"
        )
    size_bytes = sum(path.stat().st_size for path in files.values())
    if size_bytes > MAX_CODE_BYTES:
        raise SpecError(
            f"the job's code holds {size_bytes >> 20} MiB, and no more than "
            f"{MAX_CODE_BYTES >> 20} MiB are sent; keep data out of the folders of its packages"
        )
    return pack(files) if files else None


def _closure(folder: Path, wanted: Sequence[Path | None]) -> dict[str, Path]:
    """Return the files of packages, modules and folders, and of what they import beside them."""
    files: dict[str, Path] = {}
    waiting = [one for one in wanted if one is not None]
    while waiting:
        place = folder / waiting.pop()
        if place.is_dir():
            found = [path for path in _below(place) if path.suffix in _CODE_SUFFIXES]
        else:
            found = [place] if place.is_file() else []
        for path in found:
            name = path.relative_to(folder).as_posix()
            if name not in files:
                files[name] = path
                waiting += [one for top in _imports(path) if (one := _holder(folder, top))]
    return files


def _imports(path: Path) -> set[str]:
    """Return the modules that a file imports by absolute names."""
    if path.suffix != ".py":
        return set()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()  # whoever imports it will say so
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


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


def _holder(folder: Path, module: str) -> Path | None:
    """Return the package or file of a module's top package in a folder; None: it is not there."""
    top = module.partition(".")[0]
    if (folder / top).is_dir():
        return Path(top)
    return Path(f"{top}.py") if (folder / f"{top}.py").is_file() else None


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
