"""`phalanx demo`: the same job under three strategies, side by side, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.records.summary import Summary
    from phalanx.spec.job import JobSpec

EXAMPLES = """
[bold]Examples[/bold]

phalanx demo

phalanx demo --json --runs /tmp/runs
"""

STRATEGIES = (("single", 1), ("allreduce", 4), ("local_sgd", 4))
"""What is compared, and on how many workers."""


def demo(
    runs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the runs are kept \\[default: $PHALANX_RUNS, else runs]."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print the comparison as one JSON object.")
    ] = False,
) -> None:
    """Train handwritten digits on a local cluster of four processes and compare strategies."""
    from phalanx.cli.request import Places, request_run
    from phalanx.cli.screen import open_console
    from phalanx.cli.settings import cache_root, data_root, runs_root
    from phalanx.cli.train import follow, print_json
    from phalanx.launch.fork_server import warm_workers
    from phalanx.report.compare import compare

    places = Places(runs=runs_root(runs), data=data_root(), cache=cache_root())
    console = open_console(stderr=as_json)
    summaries = []
    with warm_workers():
        for number, (strategy, workers) in enumerate(STRATEGIES, start=1):
            console.print(f"run {number} of {len(STRATEGIES)}: {strategy}", style="dim")
            request = request_run(demo_job(strategy, workers), places)
            summaries.append(follow(request, console, plain=as_json))
    if as_json:
        print_json({"comparison": compare(summaries), "summaries": summaries})
    else:
        _show(summaries, console)


def demo_job(strategy: str, workers: int) -> JobSpec:
    """The job of the demo; only strategy and workers differ."""
    from phalanx.spec.loader import job_from_mapping

    return job_from_mapping(
        {
            "name": f"demo-{strategy}",
            "data": "digits",
            "model": "cnn",
            "batch": {"global": 128},
            "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
            "schedule": {"name": "cosine", "warmup": 0.05},
            "epochs": 15,
            "strategy": strategy,
            "workers": workers,
        }
    )


def _show(summaries: list[Summary], console: Console) -> None:
    import os

    from phalanx.cli.comparison import interpret, render_comparison, render_times
    from phalanx.report.compare import compare

    rows = compare(summaries)
    console.print()
    console.print(render_comparison(rows))
    console.print()
    console.print(render_times(rows))
    for sentence in interpret(rows, cores=len(os.sched_getaffinity(0))):
        console.print()
        console.print(sentence, markup=False)
