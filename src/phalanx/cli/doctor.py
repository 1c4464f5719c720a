"""Implement `phalanx doctor`: check this machine, and advise on what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.cli.options import DataOption, FormatOption, JsonOption, RunsOption, wanted

if TYPE_CHECKING:
    from phalanx.cli.verdict import Finding
    from phalanx.observe.machine import Machine
    from phalanx.report.document import Block

EXAMPLES = """
[bold]Examples[/bold]

phalanx doctor

phalanx doctor --json
"""

# Importing torch and two seconds of measurement; far more means that the machine is overloaded.
_PROBE_LIMIT_S = 120.0


def doctor(
    runs: RunsOption = None,
    data: DataOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Check this machine: processor, memory, disk, network, versions and data sets."""
    from phalanx.cli import output
    from phalanx.cli.settings import data_root, runs_root
    from phalanx.cli.verdict import judge_machine
    from phalanx.observe.machine import inspect_machine

    machine = inspect_machine(runs_root(runs))
    findings = judge_machine(machine)
    findings.insert(4, judge_precision(machine))
    findings.append(judge_data(data_root(data)))
    output.show(
        lambda: finding_blocks(findings),
        facts=lambda: {"machine": machine, "findings": findings},
        form=wanted(form, as_json),
    )


def judge_precision(machine: Machine) -> Finding:
    """Find what `precision: auto` would choose here; measures only if the CPU has bf16."""
    from phalanx.cli.verdict import Finding
    from phalanx.observe.machine import BF16_FEATURES

    if not set(machine.isa) & set(BF16_FEATURES):
        return Finding(topic="precision", found="fp32: this CPU has no bf16 instructions")
    return Finding(topic="precision", found=_measured_precision())


def judge_data(root: Path) -> Finding:
    """Find which data sets are present."""
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


def finding_blocks(findings: list[Finding]) -> list[Block]:
    """Describe each topic in one row, with its advice below it."""
    from phalanx.report.document import Column, Table, Value, line, text

    rows = []
    for one in findings:
        mark = Value("ok", True, "good") if one.ok else Value("! ", False, "doubt")
        rows.append([mark, Value(one.topic, one.topic, "weak"), text(one.found)])
        if one.advice is not None:
            rows.append([Value(""), Value(""), Value(f"→ {one.advice}", one.advice, "doubt")])
    columns = [
        Column("ok", "", is_text=True),
        Column("topic", "topic", is_text=True),
        Column("found", "found", is_text=True, wraps=True),
    ]
    table = Table(id="findings", caption="", columns=columns, rows=rows, has_header=False)
    warnings = sum(not one.ok for one in findings)
    if warnings:
        end = f"{warnings} of {len(findings)} topics need attention (marked !)"
    else:
        end = "all is well; try `phalanx demo`"
    return [table, line(end)]
