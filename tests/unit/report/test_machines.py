"""The chapter on machines: cluster totals, and charts for any number of machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.report.document import Figure, Section, Table
from phalanx.report.facts import read_material
from phalanx.report.measures import value_of
from phalanx.report.parts.machines import machines
from phalanx.report.scope import Options, open_scope
from support.records import MIB, Outcome, write_run


def chapter(root: Path, workers: int) -> Section:
    job = {"name": "wide", "model": "mlp", "data": "digits", "workers": workers}
    write_run(root, "run", job, Outcome(machines=workers, watts=20.0))
    found = machines(open_scope(read_material([root]), Options()))
    assert found is not None
    return found


def titles(found: Section) -> list[str]:
    (figure,) = [block for block in found.blocks if isinstance(block, Figure)]
    return [panel.title for panel in figure.panels]


def test_the_cluster_is_summed_over_its_machines(tmp_path: Path) -> None:
    found = chapter(tmp_path, 3)
    table = next(block for block in found.blocks if isinstance(block, Table))
    assert table.id == "cluster"
    (run,) = read_material([tmp_path]).runs
    # 2.2 of 4 cores are busy on each machine, 4 MiB/s come in, 1,000 MiB are in use.
    assert value_of(run, "cluster_cpu_share_mean") == pytest.approx(0.55)
    assert value_of(run, "cluster_memory_bytes_greatest") == 3 * 1000 * MIB
    assert value_of(run, "cluster_received_bytes_per_s_least") == pytest.approx(
        3 * 4 * MIB, rel=1e-3
    )
    assert value_of(run, "cluster_load_mean") == pytest.approx(6)


def test_few_machines_share_their_charts(tmp_path: Path) -> None:
    assert titles(chapter(tmp_path, 2)) == [
        "processor",
        "memory of processes",
        "memory of machines",
        "network in of machines",
        "network out of machines",
        "load of machines",
        "power of machines",
    ]


def test_each_of_many_machines_has_its_chart(tmp_path: Path) -> None:
    found = titles(chapter(tmp_path, 9))
    assert found[:9] == [f"hall-{number}: processor" for number in range(9, 18)]
    assert found[9:] == [
        f"{one} of machines"
        for one in ("processor", "memory", "network in", "network out", "load", "power")
    ]
