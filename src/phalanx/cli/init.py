"""Implement `phalanx init`: write commented files for a chosen case, to be changed and run."""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

from phalanx.cli.options import argument, examples, flag, option
from phalanx.errors import SpecError, StoreError

EXAMPLES = examples("phalanx init own-model", "phalanx init own-data --to project")

CASES = {
    "first": "a built-in network on built-in data",
    "own-model": "a network of your own",
    "own-data": "classes of your own data, from a table",
    "regression": "values instead of classes",
    "machines": "several machines over ssh",
    "study": "a comparison with repeats",
}
_BEGIN = {"machines": ("pool check", "pool.yaml"), "study": ("study run", "study.yaml")}
_TRAIN = ("train", "job.yaml")


def case_names(incomplete: str) -> list[str]:
    """Complete the name of a case in a shell."""
    return [name for name in CASES if name.startswith(incomplete)]


def init(
    case: Annotated[
        str | None,
        argument(
            "CASE",
            f"One of: {', '.join(CASES)}.",
            show_default=False,
            autocompletion=case_names,
        ),
    ] = None,
    to: Annotated[Path, option("DIR", "Directory to write to.")] = Path(),
    force: Annotated[bool, flag("Replace files that are there.", "--force")] = False,
) -> None:
    """Write a commented job file for a chosen case; without one, list the cases.

    Each file runs as it stands; its head says with which commands.
    """
    if case is None:
        for name, text in CASES.items():
            print(f"phalanx init {name:<12} {text}")
        return
    for path in write_case(case, to, force=force):
        print(path)
    verb, file = _BEGIN.get(case, _TRAIN)
    print(f"begin with: phalanx {verb} {shlex.quote(str(to / file))}")


def write_case(case: str, to: Path, *, force: bool = False) -> list[Path]:
    """Write the files of a case; returns their paths.

    Raises:
        SpecError: There is no such case, or a file is there already; nothing was written.
    """
    if case not in CASES:
        from phalanx.spec.names import did_you_mean

        known = ", ".join(CASES)
        raise SpecError(f"unknown case '{case}'{did_you_mean(case, CASES)} (known: {known})")
    folder = resources.files("phalanx.cli") / "cases" / case
    files = {to / one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    present = [path for path in files if path.exists()]
    if present and not force:
        raise SpecError(f"{present[0]} is there already; choose --to DIR, or --force to replace it")
    try:
        to.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            path.write_bytes(content)
    except OSError as error:
        raise StoreError(f"cannot write to {to}: {error.strerror}", path=str(to)) from error
    return sorted(files)
