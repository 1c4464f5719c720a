"""Implement `phalanx demo`: one job under three strategies, side by side, in about a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.cli import output
from phalanx.cli.options import FormatOption, JsonOption, RunsOption, examples, wanted
from phalanx.cli.screen import open_console
from phalanx.cli.settings import cache_root, data_root, runs_root

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.records.summary import Summary
    from phalanx.spec.job import JobSpec

EXAMPLES = examples("phalanx demo", "phalanx demo --json --runs /tmp/runs")

STRATEGIES = (("single", 1), ("allreduce", 4), ("local_sgd", 4))
"""Compared strategies, and workers of each."""


def demo(
    runs: RunsOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Train a digit classifier under three strategies on this machine, and compare them."""
    from phalanx.cli.comparison import comparison_table
    from phalanx.cli.request import Places, request_run
    from phalanx.cli.train import follow
    from phalanx.launch.fork_server import warm_workers
    from phalanx.report.compare import compare

    places = Places(runs=runs_root(runs), data=data_root(), cache=cache_root())
    form = wanted(form, as_json)
    console = open_console(stderr=form != "text")
    summaries = []
    with warm_workers():
        for number, (strategy, workers) in enumerate(STRATEGIES, start=1):
            console.print(f"run {number} of {len(STRATEGIES)}: {strategy}", style="dim")
            request = request_run(demo_job(strategy, workers), places)
            summaries.append(follow(request, console, plain=form != "text"))
    if form == "text":
        _show(summaries, console)
    else:
        rows = compare(summaries)
        output.show(
            lambda: [comparison_table(rows)],
            facts=lambda: {"comparison": rows, "summaries": summaries},
            form=form,
        )


def demo_job(strategy: str, workers: int) -> JobSpec:
    """Return the job of the demo; only strategy and workers differ between its runs."""
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

    from phalanx.cli.comparison import comparison_table, interpret, render_times
    from phalanx.report.compare import compare

    rows = compare(summaries)
    console.print()
    output.print_blocks(console, [comparison_table(rows)])
    console.print()
    console.print(render_times(rows))
    for sentence in interpret(rows, cores=len(os.sched_getaffinity(0))):
        console.print()
        console.print(sentence, markup=False)
