"""`phalanx doctor`: what this machine has, and what to do about what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from phalanx.cli.verdict import Finding
    from phalanx.observe.machine import Machine

EXAMPLES = """
[bold]Examples[/bold]

phalanx doctor

phalanx doctor --json
"""

# Importing torch and two seconds of measurement; far more means that the machine is overloaded.
_PROBE_LIMIT_S = 120.0


def doctor(
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where runs would be kept.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where data sets would lie.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print all facts as one JSON object.")
    ] = False,
) -> None:
    """Say what this machine has: processor, memory, disk, network, versions, data sets."""
    from phalanx.cli.settings import data_root, runs_root
    from phalanx.cli.verdict import judge_machine
    from phalanx.observe.machine import inspect_machine

    machine = inspect_machine(runs_root(runs))
    findings = judge_machine(machine)
    findings.insert(4, judge_precision(machine))
    findings.append(judge_data(data_root(data)))
    if as_json:
        from phalanx.cli.train import print_json

        print_json({"machine": machine, "findings": findings})
    else:
        _show(findings)


def judge_precision(machine: Machine) -> Finding:
    """What `precision: auto` would choose here; measured only if the processor has bf16."""
    from phalanx.cli.verdict import Finding
    from phalanx.observe.machine import BF16_FEATURES

    if not set(machine.isa) & set(BF16_FEATURES):
        return Finding(topic="precision", found="fp32: this CPU has no bf16 instructions")
    return Finding(topic="precision", found=_measured_precision())


def judge_data(root: Path) -> Finding:
    """Which data sets are here."""
    from phalanx.cli.verdict import Finding
    from phalanx.data.catalogue import CATALOGUE
    from phalanx.data.directory import is_present

    present: list[str] = []
    absent: list[str] = []
    for name, entry in CATALOGUE.items():
        here = not entry.needs_files or is_present(entry, root) is not None
        (present if here else absent).append(name)
    found = f"{', '.join(present)} in {root}"
    if absent:
        found += f"; not here: {', '.join(absent)} (`phalanx data fetch NAME`)"
    return Finding(topic="data sets", found=found)


def _measured_precision() -> str:
    import subprocess
    import sys

    import msgspec

    try:
        done = subprocess.run(
            [sys.executable, "-m", "phalanx.worker.precision_probe"],
            capture_output=True,
            timeout=_PROBE_LIMIT_S,
            check=True,
        )
        choice = msgspec.json.decode(done.stdout, type=dict[str, str | float | None])
    except (subprocess.SubprocessError, OSError, msgspec.DecodeError) as error:
        return f"could not be measured: {error}"
    return f"auto chooses {choice['name']}: {choice['reason']}"


def _show(findings: list[Finding]) -> None:
    from phalanx.cli.screen import open_console

    console = open_console()
    console.print(render_findings(findings))
    warnings = sum(not finding.ok for finding in findings)
    if warnings:
        console.print(f"{warnings} of {len(findings)} topics need attention (marked !)")
    else:
        console.print("all is well; try `phalanx demo`")


def render_findings(findings: list[Finding]) -> Table:
    """One row per topic, and its advice below it."""
    from rich.table import Table
    from rich.text import Text

    from phalanx.cli.screen import BAR_DONE_STYLE, WARNING_STYLE

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for finding in findings:
        mark = Text("ok", BAR_DONE_STYLE) if finding.ok else Text("! ", WARNING_STYLE)
        grid.add_row(mark, finding.topic, Text(finding.found))
        if finding.advice is not None:
            grid.add_row("", "", Text(f"→ {finding.advice}", WARNING_STYLE))
    return grid
