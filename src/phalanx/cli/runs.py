"""Implement `phalanx runs list` and `phalanx runs show`, which read run directories."""

from __future__ import annotations

import typer

from phalanx.cli import output
from phalanx.cli.options import FormatOption, JsonOption, RunArgument, RunsOption, examples, wanted
from phalanx.cli.settings import runs_root

app = typer.Typer(no_args_is_help=True)

LIST_EXAMPLES = examples("phalanx runs list", "phalanx runs list --runs /scratch/runs --format csv")
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
