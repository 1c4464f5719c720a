"""Implement `phalanx trace`: write a timeline for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from phalanx.cli.options import RunArgument, RunsOption, examples, flag, option
from phalanx.cli.output import print_json
from phalanx.cli.settings import runs_root
from phalanx.report.format import count_noun, format_bytes

EXAMPLES = examples(
    "phalanx trace last",
    "phalanx trace demo-allreduce -o trace.json.gz",
    "Then open ui.perfetto.dev, which keeps the file in the browser, and drop it there.",
)


def trace(
    run: RunArgument,
    output: Annotated[
        Path | None,
        option(
            "FILE",
            "Output file, compressed if it ends in .gz \\[default: trace.json.gz in the run].",
            "--output",
            "-o",
        ),
    ] = None,
    runs: RunsOption = None,
    as_json: Annotated[bool, flag("Print path, events and size as JSON.", "--json")] = False,
) -> None:
    """Write a run as a timeline of all processes on one clock, for Perfetto."""
    from phalanx.export.trace import write_trace
    from phalanx.records.rundir import find_run

    found = find_run(runs_root(runs), run)
    facts = write_trace(found, output or found.path / "trace.json.gz")
    if as_json:
        print_json(facts)
        return
    size = format_bytes(facts.size_bytes)
    print(f"{facts.path}: {count_noun(facts.events, 'event')}, {size}; open it in ui.perfetto.dev")
