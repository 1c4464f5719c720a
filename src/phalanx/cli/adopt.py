"""Implement `phalanx adopt`: make a single-machine training script distributed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from phalanx.cli.options import JsonOption, argument, examples, flag, option
from phalanx.cli.output import print_json
from phalanx.cli.screen import BAR_DONE_STYLE, WARNING_STYLE, open_console
from phalanx.errors import ExitCode, SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.adopt.findings import Adoption, ScriptFinding

EXAMPLES = examples(
    "phalanx adopt train.py",
    "phalanx adopt train.py --write",
    "phalanx adopt train.py -o train_distributed.py",
    "phalanx adopt train.py --json",
)
_STYLES = {"refused": WARNING_STYLE, "changed": BAR_DONE_STYLE, "note": "dim"}


def adopt(
    script: Annotated[Path, argument("SCRIPT", "Python script that trains a PyTorch model.")],
    write: Annotated[bool, flag("Change the script in place.", "--write")] = False,
    output: Annotated[
        Path | None, option("FILE", "Write the changed script to FILE instead.", "--output", "-o")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a single-machine PyTorch script distributed, or say what stands in the way.

    Reads one file and never runs it. Exits with 2 if the script was refused; then nothing is
    written.
    """
    if write and output is not None:
        raise SpecError("--write changes the script in place, --output another file: choose one")
    try:
        from phalanx.adopt.analysis import adopt_file
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        raise SpecError("`phalanx adopt` needs libcst: pip install 'phalanx[adopt]'") from None
    adoption = adopt_file(script)
    target = output if output is not None else script if write else None
    if target is not None and adoption.rewritten is not None:
        _write(target, adoption.rewritten)
    if as_json:
        print_json(_facts(adoption, target))
    else:
        _show(adoption, target)
    if adoption.rewritten is None:
        raise typer.Exit(ExitCode.BAD_INPUT)


def _write(target: Path, text: str) -> None:
    try:
        target.write_bytes(text.encode())
    except OSError as error:
        raise SpecError(f"cannot write {target}: {error.strerror}") from None


def _facts(adoption: Adoption, target: Path | None) -> dict[str, object]:
    refused = adoption.rewritten is None
    return {
        "script": adoption.path,
        "refused": refused,
        "findings": [
            {
                "line": one.line,
                "severity": one.severity.value,
                "name": one.name,
                "what": one.what,
                "why": one.why,
                "todo": one.todo,
            }
            for one in adoption.findings
        ],
        "strategies": adoption.strategies,
        "changed_lines": adoption.num_changed_lines,
        "diff": adoption.diff,
        "written": None if refused or target is None else str(target),
    }


def _show(adoption: Adoption, target: Path | None) -> None:
    console = open_console()
    for one in adoption.findings:
        _show_finding(console, adoption.path, one)
    if adoption.rewritten is None:
        count = len(adoption.refusals)
        console.print(Text(f"refused: {count} thing{'s' * (count > 1)} to change first", "bold"))
        return
    if adoption.diff:
        console.print()
        sys.stdout.flush()
        for line in adoption.diff.splitlines():
            style = {"+": "green", "-": "red", "@": "dim"}.get(line[:1], "")
            console.print(Text(line, style), soft_wrap=True)
        console.print()
    console.print(Text(f"strategies: {', '.join(adoption.strategies)}"), soft_wrap=True)
    if target is not None:
        console.print(Text(f"written: {target}"), soft_wrap=True)
        console.print(Text(f"next: phalanx launch --workers 2 {target}", "dim"), soft_wrap=True)


def _show_finding(console: Console, path: str, one: ScriptFinding) -> None:
    place = f"{path}:{one.line}" if one.line else path
    text = Text.assemble(
        (f"{place}: ", "dim"), (one.severity.value, _STYLES[one.severity.value]), f": {one.what}"
    )
    console.print(text, soft_wrap=True)
    console.print(Text(f"    why: {one.why}", "dim"), soft_wrap=True)
    if one.todo:
        console.print(Text(f"    do: {one.todo}"), soft_wrap=True)
