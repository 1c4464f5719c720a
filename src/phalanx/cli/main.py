"""Assemble the `phalanx` command from its subcommands, and map errors to exit codes.

Only this module turns errors into exit codes. It imports the module of a command when it is called.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

from phalanx._version import __version__
from phalanx.cli import settings
from phalanx.errors import ExitCode, PhalanxError, SpecError

COMMANDS = {
    "train": "Train a job on this machine or on the machines of a pool, or continue a run.",
    "plan": "Choose machines and strategy for a job; predict time, cost and energy.",
    "simulate": "Simulate strategies with hundreds of workers, stragglers and crashes.",
    "predict": "Predict samples with a trained network, prepared as in its training.",
    "bench-inference": "Measure inference latency and throughput of a run's newest checkpoint.",
    "scale": "Add workers to a running parameter-server run with dynamic dispatch.",
    "demo": "Train a digit classifier under three strategies on this machine, and compare them.",
    "doctor": "Check this machine: processor, memory, disk, network, versions and data sets.",
    "profile": "Profile operators of chosen epochs: train a job, or read a profiled run.",
    "blame": "Attribute waiting time to the workers that caused it, by phase of the step.",
    "trace": "Write a run as a timeline of all processes on one clock, for Perfetto.",
    "report": "Compare studies and runs in one HTML page: statistics, charts and a recommendation.",
    "dashboard": "Watch runs, studies and plans in a browser, live.",
    "study": "Run and compare a matrix of jobs with repeats.",
    "tune": "Search the best setting of a recurring job offline.",
    "runs": "List runs, and show one in detail.",
    "pool": "Check, measure and list machines; emulate a cluster.",
    "data": "List, download, inspect and partition data sets.",
    "export": "Export weights, or runs to TensorBoard or MLflow.",
}
"""Each command with its help; its module is imported when it is called."""


class LazyGroup(TyperGroup):
    """Replace the stub of a command by the command when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments call."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else load_command(str(name)), rest


def load_command(name: str) -> Any:
    """Import a command with all its options, or a group of commands."""
    word = name.replace("-", "_")
    module = importlib.import_module(f"phalanx.cli.{word}")
    if hasattr(module, "app"):
        module.app.info.help = COMMANDS[name]
        return typer.main.get_group(module.app)
    single = typer.Typer(add_completion=False)
    single.command(name, epilog=module.EXAMPLES)(getattr(module, word))
    return typer.main.get_command(single)


app = typer.Typer(
    name="phalanx",
    cls=LazyGroup,
    help="Train neural networks across the ordinary machines you already have.",
    epilog=(
        "New here? Try [bold]phalanx demo[/bold], then [bold]phalanx doctor[/bold] "
        "and [bold]phalanx train --help[/bold]."
    ),
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)

# The usage errors of typer; their class has moved between its versions, their child has not.
_USAGE_ERRORS = cast("tuple[type[Exception], ...]", typer.BadParameter.__bases__)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"phalanx {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            metavar="",
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Train neural networks across the ordinary machines you already have."""
    chosen = settings.fork_server()
    if chosen is not None:
        from phalanx.launch.fork_server import use_fork_server

        use_fork_server(chosen)
    listener = settings.moments()
    if listener is not None:
        from phalanx.wire.moments import plant

        plant(listener, process="controller")


def run() -> NoReturn:
    """Run the command line of this process; entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Unicode shows a question mark instead of ending the run.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    code = _code_of_command()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.exit(code)
    _leave_closed_pipe()


def _code_of_command() -> int:
    try:
        _refuse_other_encodings(sys.argv[1:])
        # Returns the code of typer.Exit, or None.
        return app(prog_name="phalanx", standalone_mode=False) or ExitCode.OK
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _leave_closed_pipe()
    except Exception as error:  # the process boundary: everything ends as a sentence and a code
        return _report(error)


def _report(error: Exception) -> ExitCode:
    from phalanx.cli import faults
    from phalanx.cli.screen import open_console

    console = open_console(stderr=True)
    if isinstance(error, PhalanxError):
        return faults.report_error(error, console)
    if isinstance(error, _USAGE_ERRORS):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "phalanx"
        message = _message(error)
        # A group without a command has shown its help, and there is nothing to add.
        return faults.report_usage(message, command, console) if message else ExitCode.BAD_INPUT
    return faults.report_fault(error, console)


def _refuse_other_encodings(arguments: Sequence[str]) -> None:
    """Refuse arguments that are no UTF-8: no record could name such a path."""
    for one in arguments:
        try:
            one.encode()
        except UnicodeEncodeError:
            shown = one.encode(errors="surrogateescape").decode(errors="replace")
            raise SpecError(f"'{shown}' is not UTF-8; rename the file or the folder") from None


def _message(error: Exception) -> str:
    unknown = getattr(error, "option_name", None)
    if unknown is not None and getattr(error, "possibilities", None) is not None:
        from phalanx.spec.names import nearest_name

        # typer offers whatever shares a letter or two: '--runs' for '--gpus'.
        valid = [one.lstrip("-") for one in error.possibilities]  # type: ignore[attr-defined]
        close = nearest_name(unknown.lstrip("-"), valid)
        hint = "" if close is None else f"; did you mean --{close}?"
        return f"there is no option {unknown}{hint}"
    format_message = getattr(error, "format_message", None)
    return str(format_message()) if format_message is not None else str(error)


def _leave_closed_pipe() -> NoReturn:
    """Exit quietly when the reader of a pipe, such as `head`, has closed it."""
    # Python flushes standard output once more on exit and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(ExitCode.FAILED)


if __name__ == "__main__":
    run()
