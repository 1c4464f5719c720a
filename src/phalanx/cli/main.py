"""Assemble the `phalanx` command from its subcommands, and map errors to exit codes.

Only this module turns errors into exit codes. It imports the module of a command when it is called.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn, cast

import typer

from phalanx._version import __version__
from phalanx.cli import settings
from phalanx.cli.help import PlainGroup, plain
from phalanx.errors import ExitCode, PhalanxError, StoreError

COMMANDS = {
    "init": "Write a commented job file for a chosen case; without one, list the cases.",
    "train": "Train a job on this machine or on the machines of a pool, or continue a run.",
    "launch": "Run your own training script on several workers, or continue such a run.",
    "adopt": "Make a single-machine PyTorch script distributed, or say what stands in the way.",
    "plan": "Choose machines and strategy for a job; predict time, cost and energy.",
    "simulate": "Simulate strategies with hundreds of workers, stragglers and crashes.",
    "predict": "Predict samples with a trained network, prepared as in its training.",
    "bench-inference": "Measure inference latency and throughput of a run's newest checkpoint.",
    "scale": "Add workers to a running parameter-server run with dynamic dispatch.",
    "stop": "Stop a running run, as Ctrl-C in its terminal does; `train --resume` continues it.",
    "switch": "Begin the next phase of a running run with 'strategy: switch' now.",
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


class LazyGroup(PlainGroup):
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
        return typer.main.get_group(plain(module.app))
    single = typer.Typer(add_completion=False)
    own = getattr(module, "SETTINGS", None)
    single.command(name, epilog=module.EXAMPLES, context_settings=own)(getattr(module, word))
    return typer.main.get_command(plain(single))


app = typer.Typer(
    name="phalanx",
    cls=LazyGroup,
    help="Train neural networks across the ordinary machines you already have.",
    epilog=(
        "New here? Try [bold]phalanx demo[/bold], then [bold]phalanx init[/bold] "
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


# What is wrong with a place, not with Phalanx.
_UNUSABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EIO),
)


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
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # A terminal without Unicode shows a question mark instead of ending the run.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
        elif stream is None:
            # The caller has closed it.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    code = _code_of_command()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_closed_pipe(ExitCode.FAILED)
    except OSError as error:
        _leave_closed_pipe(_report(error))
    sys.exit(code)


def _code_of_command() -> int:
    try:
        settings.require_usable_place(sys.argv[1:])
        # Returns the code of typer.Exit, or None.
        return app(prog_name="phalanx", standalone_mode=False) or ExitCode.OK
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _leave_closed_pipe(ExitCode.FAILED)
    except Exception as error:  # the process boundary: everything ends as a sentence and a code
        return _report(error)


def _report(error: Exception) -> ExitCode:
    from phalanx.cli import faults
    from phalanx.cli.screen import open_console

    console = open_console(stderr=True)
    if isinstance(error, PhalanxError):
        return faults.report_error(error, console)
    if isinstance(error, _USAGE_ERRORS):
        message = _message(error)
        # A group without a command has shown its help, and there is nothing to add.
        if not message:
            return ExitCode.BAD_INPUT
        return faults.report_usage(message, _command_path(error, sys.argv[1:]), console)
    if isinstance(error, OSError) and error.errno in _UNUSABLE:
        where = error.filename or "the output"
        return faults.report_error(StoreError(f"cannot use {where}: {error.strerror}"), console)
    return faults.report_fault(error, console)


def _command_path(error: Exception, arguments: Sequence[str]) -> str:
    """Return the command whose options are wrong; of some errors typer does not tell it."""
    context = getattr(error, "ctx", None)
    if context is not None:
        return str(context.command_path)
    return " ".join(["phalanx", *(one for one in arguments[:1] if one in COMMANDS)])


def _message(error: Exception) -> str:
    wrong = getattr(error.__cause__, "errors", None)
    if wrong is not None:
        first = wrong()[0]
        what = str(first["msg"]).partition(",")[0].removeprefix("Input should be ")
        name = "/".join(getattr(error, "param", None).opts)  # type: ignore[union-attr]
        return f"{name} must be {what}, not '{first['input']}'"
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


def _leave_closed_pipe(code: ExitCode) -> NoReturn:
    """Exit quietly when the reader of a pipe, such as `head`, has closed it, or a disk is full."""
    # Python flushes standard output once more on exit and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    run()
