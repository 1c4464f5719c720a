"""`phalanx infer`: how fast the network of a run answers, split or data-parallel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

EXAMPLES = """
[bold]Examples[/bold]

phalanx infer last

phalanx infer last --layout split --workers 3 --batch 32

phalanx infer runs/land-20260101-120000-ab12 --layout data --workers 2 --json
"""


def infer(
    run: Annotated[str, typer.Argument(help="Name, a unique beginning of it, a path, or 'last'.")],
    layout: Annotated[
        Literal["own", "split", "data"],
        typer.Option(help="As the run had it, the network over workers, or a copy on each."),
    ] = "own",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers \\[default: as the run had].")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples in a request.")] = 1,
    requests: Annotated[
        int, typer.Option(min=1, help="Requests, one at a time and in a row.")
    ] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    runs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where runs are kept \\[default: $PHALANX_RUNS, else runs]."
        ),
    ] = None,
) -> None:
    """Measure latency and throughput of a run's newest checkpoint, in a run of its own."""
    from phalanx import api
    from phalanx.cli.output import print_json
    from phalanx.cli.screen import open_console
    from phalanx.cli.settings import runs_root
    from phalanx.errors import SpecError
    from phalanx.records.rundir import find_run

    root = runs_root(runs)
    summary = api.infer(
        find_run(root, run),
        runs=root,
        layout=layout,
        workers=workers,
        batch=batch,
        requests=requests,
    )
    facts = summary.inference
    if facts is None:
        raise SpecError(f"the data of {run} has too few test samples for requests of {batch}")
    if as_json:
        print_json(facts)
        return
    console = open_console()
    console.print(
        f"{facts.layout}, {summary.workers} x {summary.threads} threads, "
        f"{facts.requests} requests of {facts.batch}: latency {facts.latency_p50_s * 1e3:.2f} ms "
        f"(95 %: {facts.latency_p95_s * 1e3:.2f} ms), {facts.samples_per_s:,.0f} samples/s"
    )
    console.print(f"test accuracy {summary.test_accuracy}, run {summary.run_dir}")
