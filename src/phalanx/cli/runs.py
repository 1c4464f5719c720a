"""Implement `phalanx runs`: list and show run directories, and copy them to a URL and back."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.cli import output
from phalanx.cli.options import (
    FormatOption,
    JsonOption,
    RunArgument,
    RunsOption,
    argument,
    examples,
    wanted,
)
from phalanx.cli.settings import runs_root
from phalanx.errors import SpecError

app = typer.Typer(no_args_is_help=True)

LIST_EXAMPLES = examples("phalanx runs list", "phalanx runs list --runs /scratch/runs --format csv")
COPY_EXAMPLES = examples("phalanx runs copy last s3://bucket/runs")
FETCH_EXAMPLES = examples(
    "phalanx runs fetch s3://bucket/runs/demo-allreduce-20260301-101500-1a2b",
    "phalanx train --resume s3://bucket/runs/demo-allreduce-20260301-101500-1a2b",
)
SHOW_EXAMPLES = examples("phalanx runs show last", "phalanx runs show demo-allreduce --json")


@app.command("list", epilog=LIST_EXAMPLES)
def list_(
    runs: RunsOption = None, form: FormatOption = "text", as_json: JsonOption = False
) -> None:
    """List all runs, oldest first."""
    from phalanx.cli.history import list_table, read_facts
    from phalanx.records.rundir import list_runs

    root = runs_root(runs)
    found = [read_facts(run) for run in list_runs(root)]
    hint = f"no runs in {root} yet; `phalanx demo` makes some"
    output.show_list(found, list_table, form=wanted(form, as_json), if_none=hint)


@app.command("show", epilog=SHOW_EXAMPLES)
def show(
    run: RunArgument,
    runs: RunsOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Show one run: job, versions, epochs, checkpoints, resources and result."""
    from phalanx.cli.history import details_blocks, read_details
    from phalanx.records.rundir import find_run

    details = read_details(find_run(runs_root(runs), run))
    output.show(lambda: details_blocks(details), facts=lambda: details, form=wanted(form, as_json))


@app.command("copy", epilog=COPY_EXAMPLES)
def copy(
    run: RunArgument,
    url: Annotated[str, argument("URL", "Folder for copies, such as s3://bucket/runs.")],
    runs: RunsOption = None,
) -> None:
    """Copy a run with its checkpoints to a URL, in place of an older copy."""
    from phalanx.cli.screen import open_console
    from phalanx.cli.transfer import transfer_bars
    from phalanx.records.run_copy import copy_run
    from phalanx.records.rundir import find_run
    from phalanx.spec.urls import is_url, join_url, refuse_secrets

    if not is_url(url):
        raise SpecError(f"'{url}' is no URL; write one such as s3://bucket/runs or file:///backup")
    refuse_secrets(url)
    found = find_run(runs_root(runs), run)
    with transfer_bars(open_console(stderr=True)) as on_progress:
        copied = copy_run(found, url, on_progress)
    print(
        f"{join_url(url, copied.run)} ({len(copied.files):,} files, {copied.num_bytes:,} bytes, "
        f"{copied.state})"
    )


@app.command("fetch", epilog=FETCH_EXAMPLES)
def fetch(
    url: Annotated[str, argument("URL", "A copy of a run, such as s3://bucket/runs/NAME.")],
    runs: RunsOption = None,
) -> None:
    """Copy a run from a URL into the directory of runs."""
    from phalanx.cli.request import fetch_run_by_url
    from phalanx.spec.urls import is_url

    if not is_url(url):
        raise SpecError(f"'{url}' is no URL; write one such as s3://bucket/runs/NAME")
    print(fetch_run_by_url(url, runs_root(runs)).path)
