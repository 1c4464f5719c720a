"""Report an error that ends a command: one sentence on standard error, and an exit code.

The output of the failing process is shown above the sentence, dimmed, so that the last line on
the screen is always the one to read first.
"""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path

from rich.console import Console
from rich.text import Text

from phalanx.cli.settings import debug
from phalanx.errors import ExitCode, PhalanxError

_DETAIL_LINES = 15


def report_error(error: PhalanxError, console: Console) -> ExitCode:
    """Show an error that Phalanx raised on purpose."""
    # Bad input and full disks are the user's to mend; a traceback does not help with that.
    if error.exit_code not in (ExitCode.BAD_INPUT, ExitCode.STORE):
        _show_detail(error, console)
    if error.facts.get("traceback"):
        _show_traceback(str(error.facts["traceback"]), console)
    if error.exit_code is not ExitCode.BAD_INPUT and "run_dir" in error.facts:
        _show_run(Path(error.facts["run_dir"]), console, saved=error.facts.get("saved", ""))
    _say(str(error), console)
    return error.exit_code


def report_usage(message: str, command: str, console: Console) -> ExitCode:
    """Show that options or arguments are wrong."""
    # typer's sentences begin with a capital and may end with a question.
    sentence = message[:1].lower() + message[1:].rstrip(".")
    link = " See" if sentence.endswith("?") else "; see"
    _say(f"{sentence}{link} `{command} --help`", console)
    return ExitCode.BAD_INPUT


def report_fault(error: Exception, console: Console) -> ExitCode:
    """Show a defect of Phalanx; its traceback goes to a file, or to the screen when debugging."""
    text = "".join(traceback.format_exception(error))
    what = f"a fault of Phalanx itself: {type(error).__name__}: {error}"
    if debug():
        console.print(Text(text, "dim"), soft_wrap=True)
        _say(what, console)
        return ExitCode.FAILED
    with tempfile.NamedTemporaryFile(
        "w", prefix="phalanx-fault-", suffix=".txt", delete=False
    ) as file:
        file.write(text)
    _say(f"{what}; please report it together with {file.name}", console)
    return ExitCode.FAILED


def _show_traceback(text: str, console: Console) -> None:
    """Show where in the user's code an error was raised, without the calls that led there."""
    lines = text.rstrip().splitlines()
    for line in lines[-_DETAIL_LINES:]:
        console.print(Text(f"  {line}", "dim"), soft_wrap=True)


def _show_detail(error: PhalanxError, console: Console) -> None:
    lines = str(error.facts.get("detail", "")).rstrip().splitlines()
    if not lines:
        return
    left_out = len(lines) - _DETAIL_LINES
    if left_out > 0:
        lines = [f"... {left_out} lines before", *lines[-_DETAIL_LINES:]]
    console.print(Text(f"last log lines of {error.facts.get('process')}:", "dim"))
    for line in lines:
        console.print(Text(f"  {line}", "dim"), soft_wrap=True)


def _show_run(run_dir: Path, console: Console, *, saved: str) -> None:
    console.print(Text(f"what each process printed: {run_dir / 'logs'}", "dim"), soft_wrap=True)
    if saved:
        console.print(Text(saved, "dim"), soft_wrap=True)
    if any((run_dir / "checkpoints").glob("*.safetensors")):
        hint = f"to continue from the last checkpoint: phalanx train --resume {run_dir}"
        console.print(Text(hint, "dim"), soft_wrap=True)


def _say(message: str, console: Console) -> None:
    line = " ".join(message.split())
    console.print(Text.assemble(("phalanx: ", "bold"), line), soft_wrap=True)
