"""Implement `phalanx bench-inference`: measure a trained network, split or replicated."""

from __future__ import annotations

from typing import Annotated, Literal

from phalanx.cli import output
from phalanx.cli.options import (
    FormatOption,
    JsonOption,
    RunArgument,
    RunsOption,
    examples,
    option,
    wanted,
)
from phalanx.cli.settings import runs_root
from phalanx.errors import SpecError
from phalanx.report.document import pairs_table
from phalanx.report.format import count_noun, format_accuracy, format_loss, format_rate

EXAMPLES = examples(
    "phalanx bench-inference last",
    "phalanx bench-inference last --layout split --workers 3 --batch 32",
    "phalanx bench-inference runs/land-20260101-120000-ab12 --layout data --workers 2 --json",
)


def bench_inference(
    run: RunArgument,
    layout: Annotated[
        Literal["own", "split", "data"],
        option(None, "Layout: as trained, network split over workers, or one copy per worker."),
    ] = "own",
    workers: Annotated[
        int | None, option(None, "Number of workers \\[default: as trained].", min=1)
    ] = None,
    batch: Annotated[int, option(None, "Samples per request.", min=1)] = 1,
    requests: Annotated[
        int, option(None, "Number of requests, sent one after the other.", min=1)
    ] = 50,
    runs: RunsOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Measure inference latency and throughput of a run's newest checkpoint."""
    from phalanx import api
    from phalanx.records.rundir import find_run

    root = runs_root(runs)
    summary = api.bench_inference(
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
    quality = {}
    if summary.test_accuracy is not None:
        quality["test accuracy"] = format_accuracy(summary.test_accuracy)
    elif summary.test_loss is not None:
        quality["test loss"] = format_loss(summary.test_loss)
    rows = {
        "layout": f"{facts.layout}, {summary.workers} x {summary.threads} threads",
        "requests": f"{facts.requests} of {count_noun(facts.batch, 'sample')}",
        "latency": f"{facts.latency_p50_s * 1e3:.2f} ms",
        "latency, 95 %": f"{facts.latency_p95_s * 1e3:.2f} ms",
        "throughput": format_rate(facts.samples_per_s),
        **quality,
        "run": summary.run_dir,
    }
    table = pairs_table("inference", "", rows, has_header=False)
    output.show(lambda: [table], facts=lambda: facts, form=wanted(form, as_json))
