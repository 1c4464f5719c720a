"""Assemble the `phalanx` command from its subcommands, and map errors to exit codes.

Only this module turns errors into exit codes. Modules of commands import the rest when they run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from io import TextIOWrapper
from typing import Annotated, NoReturn, cast

import typer

from phalanx._version import __version__
from phalanx.cli import (
    blame,
    data,
    demo,
    doctor,
    export,
    infer,
    plan,
    pool,
    predict,
    profile,
    report,
    runs,
    scale,
    settings,
    simulate,
    study,
    trace,
    train,
    tune,
)
from phalanx.errors import ExitCode, PhalanxError

app = typer.Typer(
    name="phalanx",
    help="Train neural networks across the ordinary machines you already have.",
    epilog=(
        "New here? Try [bold]phalanx demo[/bold], then [bold]phalanx doctor[/bold] "
        "and [bold]phalanx train --help[/bold]."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("plan", epilog=plan.EXAMPLES)(plan.plan)
app.command("simulate", epilog=simulate.EXAMPLES)(simulate.simulate)
app.command("predict", epilog=predict.EXAMPLES)(predict.predict)
app.command("infer", epilog=infer.EXAMPLES)(infer.infer)
app.command("scale", epilog=scale.EXAMPLES)(scale.scale)
app.command("demo", epilog=demo.EXAMPLES)(demo.demo)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("profile", epilog=profile.EXAMPLES)(profile.profile)
app.command("blame", epilog=blame.EXAMPLES)(blame.blame)
app.command("trace", epilog=trace.EXAMPLES)(trace.trace)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.add_typer(study.app, name="study")
app.add_typer(tune.app, name="tune")
app.add_typer(runs.app, name="runs")
app.add_typer(pool.app, name="pool")
app.add_typer(data.app, name="data")
app.add_typer(export.app, name="export")

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
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
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
        return faults.report_usage(_message(error), command, console)
    return faults.report_fault(error, console)


def _message(error: Exception) -> str:
    format_message = getattr(error, "format_message", None)
    return str(format_message()) if format_message is not None else str(error)


def _leave_closed_pipe() -> NoReturn:
    """Exit quietly when the reader of a pipe, such as `head`, has closed it."""
    # Python flushes standard output once more on exit and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(ExitCode.FAILED)


if __name__ == "__main__":
    run()
