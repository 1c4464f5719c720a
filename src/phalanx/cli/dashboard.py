"""Implement `phalanx dashboard`: runs, studies and plans in a browser, live, or in one file."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from phalanx.cli.options import RunsOption, argument, examples, flag, option, run_names
from phalanx.cli.screen import open_console
from phalanx.cli.settings import runs_root
from phalanx.errors import SpecError

if TYPE_CHECKING:
    from phalanx.dashboard.library import Library
    from phalanx.dashboard.views import Describers

EXAMPLES = examples(
    "phalanx dashboard",
    "phalanx dashboard runs/study-digits plan.json --open",
    "phalanx dashboard last --once run.html",
    "phalanx dashboard /scratch/runs --host 0.0.0.0 --port 8800",
)

# Candidates of a plan that are shown.
_TOP = 20


def dashboard(
    sources: Annotated[
        list[str] | None,
        argument(
            "[RUNS]...",
            "Directories of runs, run and study directories, plan files, or names of runs "
            "\\[default: the directory of runs].",
            autocompletion=run_names,
        ),
    ] = None,
    host: Annotated[
        str,
        option("ADDRESS", "Address to listen on; the connection is not encrypted.", "--host"),
    ] = "127.0.0.1",
    port: Annotated[
        int, option("NUMBER", "Port; 0 takes a free one.", "--port", min=0, max=65535)
    ] = 0,
    open_browser: Annotated[bool, flag("Open the link in a browser.", "--open")] = False,
    once: Annotated[
        Path | None, option("FILE", "Write what it shows as one page, and serve nothing.", "--once")
    ] = None,
    runs: RunsOption = None,
) -> None:
    """Watch runs, studies and plans in a browser, live."""
    from phalanx.dashboard.library import Library

    root = runs_root(runs)
    library = Library(_paths(sources or [], root))
    if once is not None:
        _write(library, once)
    else:
        _serve(library, host, port, open_browser)


def _write(library: Library, file: Path) -> None:
    from phalanx.dashboard.once import render_once
    from phalanx.store.atomic import write_atomically

    write_atomically(file, render_once(library, describers()).encode())
    open_console().print(f"written: {file}", markup=False, soft_wrap=True)


def _serve(library: Library, host: str, port: int, open_browser: bool) -> None:
    from phalanx.export.metrics import require

    require("fastapi", extra="dashboard", use="the dashboard")
    require("uvicorn", extra="dashboard", use="the dashboard")

    from phalanx.dashboard.serve import DashboardServer
    from phalanx.dashboard.server import Dashboard

    server = DashboardServer(Dashboard(library, describers()), host=host, port=port)
    console = open_console()
    console.print(f"dashboard: {server.link}", markup=False, soft_wrap=True)
    if not server.is_loopback:
        console.print("whoever has this link sees these runs and can change them")
    if open_browser:
        import webbrowser

        webbrowser.open(server.link)
    with contextlib.suppress(KeyboardInterrupt):  # the usual end
        server.run()


def describers() -> Describers:
    """Return the descriptions that the dashboard shares with other commands."""
    from phalanx.cli.plan_table import plan_blocks, versus_table
    from phalanx.cli.result import result_blocks
    from phalanx.cli.study_table import study_blocks
    from phalanx.dashboard.views import Describers

    return Describers(
        study=study_blocks,
        plan=lambda plan: plan_blocks(plan, top=_TOP, written=None),
        versus=versus_table,
        result=result_blocks,
    )


def _paths(sources: Sequence[str], root: Path) -> list[Path]:
    """Resolve sources: files and directories as they are, anything else as the name of a run."""
    from phalanx.records.rundir import find_run

    if not sources:
        if not root.is_dir():
            raise SpecError(f"there is no directory {root}; name one, or `phalanx demo` makes it")
        return [root]
    return [
        Path(source) if Path(source).exists() else find_run(root, source).path for source in sources
    ]
