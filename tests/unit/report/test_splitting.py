"""What reports say about split networks and about inference."""

from __future__ import annotations

from pathlib import Path

import msgspec

from phalanx.records.summary import SplitLinkSummary, SplitSummary, SplitWorkerSummary
from phalanx.report.document import Section, Table
from phalanx.report.facts import read_material
from phalanx.report.parts.split import how_fast_it_answers, how_it_was_split
from phalanx.report.scope import Options, Scope, open_scope
from phalanx.wire.messages import InferenceFacts
from support.records import write_run

JOB = {"name": "tiny", "model": "mlp", "data": "digits", "workers": 2}


def split_summary(imbalance: float) -> SplitSummary:
    return SplitSummary(
        placement="planned",
        places={"left.0": [0], "left.1": [0], "trunk": [1]},
        predicted_step_s=0.1,
        step_s=0.125,
        predicted_imbalance=1.1,
        imbalance=imbalance,
        predicted_bytes_per_step=2_000_000,
        bytes_per_step=2_000_000.0,
        bytes_by_kind={"activations": 30_000_000, "gradients": 30_000_000},
        links=[
            SplitLinkSummary(
                source=0, target=1, kind="activations", sent_bytes=30_000_000, messages=30
            )
        ],
        workers=[
            SplitWorkerSummary(
                rank=0,
                parts=["left.0", "left.1"],
                compute_s=2.0,
                communication_s=0.5,
                wait_s=1.0,
                cpu_s=None,
                predicted_compute_s=0.06,
            )
        ],
        socket_bytes=None,
    )


def scope_of(folder: Path) -> Scope:
    """Two seeds of a split run, and one that is not split and answered requests."""
    for seed, imbalance in ((1, 1.25), (2, 1.5)):
        run = write_run(folder, f"s{seed}", {**JOB, "strategy": "split", "seed": seed})
        found = run.read_summary()
        assert found is not None
        run.write_summary(msgspec.structs.replace(found, split=split_summary(imbalance)))
    run = write_run(folder, "copy", {**JOB, "strategy": "allreduce"})
    found = run.read_summary()
    assert found is not None
    facts = InferenceFacts(
        layout="data_parallel",
        batch=8,
        requests=50,
        latency_p50_s=0.004,
        latency_p95_s=0.0061,
        samples_per_s=3210.4,
    )
    run.write_summary(msgspec.structs.replace(found, inference=facts))
    return open_scope(read_material([folder]), Options())


def tables(section: Section | None) -> dict[str, list[list[str]]]:
    assert section is not None
    return {
        block.id: [[value.text for value in row] for row in block.rows]
        for block in section.blocks
        if isinstance(block, Table)
    }


def test_balance_bytes_links_and_workers_of_split_runs(tmp_path: Path) -> None:
    found = tables(how_it_was_split(scope_of(tmp_path)))
    columns = [row[1:] for row in found["split-runs"]]
    assert columns == [
        [seed, "0.125", "0.100", imbalance, "1.10", "2.000", "2.000", "30.0", "30.0", "0.0", "0.0"]
        for seed, imbalance in (("1", "1.25"), ("2", "1.50"))
    ]
    (link,) = found["split-links"]
    assert link[2:] == ["0", "1", "activations", "30.0", "30"]
    (worker,) = found["split-workers"]
    assert worker[2:] == ["0", "left.*", "2.00", "0.50", "1.00", "\N{EN DASH}"]


def test_latency_and_throughput_of_cells_that_measured_them(tmp_path: Path) -> None:
    (row,) = tables(how_fast_it_answers(scope_of(tmp_path)))["inference"]
    assert row[1:] == ["1", "data parallel", "8", "4.0", "6.1", "3,210"]


def test_nothing_is_said_where_nothing_was_split(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {**JOB, "strategy": "allreduce"})
    scope = open_scope(read_material([tmp_path]), Options())
    assert how_it_was_split(scope) is None
    assert how_fast_it_answers(scope) is None
