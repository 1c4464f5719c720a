"""Studies, plans and comparisons as sections; whatever they hold, charts get finite numbers."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from phalanx.cli.dashboard import describers
from phalanx.dashboard.library import Library
from phalanx.dashboard.views import open_view
from phalanx.plan.planfile import write_plan
from phalanx.records.events import Epoch, Event
from phalanx.records.rundir import RunDir, Status
from phalanx.report.document import NOTHING, Figure, Section, Table
from support.dashboard import JOB, made_up_plan, write_small_study
from support.records import Outcome, write_run


def sections(*sources: Path, kind: str) -> list[Section]:
    library = Library(sources)
    ids = [one.id for one in library.scan().values() if kind in (one.kind, "compare")]
    view = open_view(library, kind, ids, describers())
    view.poll()
    found = view.sections()
    json.loads(msgspec.json.encode(found))
    return found


def figures(found: list[Section]) -> dict[str, Figure]:
    blocks = [block for section in found for block in section.blocks]
    return {block.id: block for block in blocks if isinstance(block, Figure)}


def table(found: list[Section], id: str) -> Table:
    blocks = [block for section in found for block in section.blocks]
    return next(block for block in blocks if isinstance(block, Table) and block.id == id)


def test_a_study_shows_its_progress_and_its_metric_so_far(tmp_path: Path) -> None:
    write_small_study(tmp_path / "study")
    found = sections(tmp_path / "study", kind="study")
    cells = {row[0].text: [value.text for value in row[1:4]] for row in table(found, "cells").rows}
    assert cells == {"allreduce": ["2", "0", "2"], "local_sgd": ["1", "1", "2"]}
    means = figures(found)["metric"].panels[0].spec["layer"][2]["data"]["values"]
    assert {row["bar"]: row["amount"] for row in means} == {"allreduce": 9.5, "local_sgd": 7.0}


def test_a_plan_shows_its_candidates_and_their_front(tmp_path: Path) -> None:
    write_plan(made_up_plan(), tmp_path / "plan.json")
    found = sections(tmp_path / "plan.json", kind="plan")
    layers = figures(found)["front"].panels[0].spec["layer"]
    front, others, chosen = (layer["data"]["values"] for layer in layers)
    assert [row["seconds"] for row in front] == [20.0, 30.0]
    assert [row["strategy"] for row in chosen] == ["allreduce"]
    assert [row["strategy"] for row in others] == ["single"]
    assert len(table(found, "candidates").rows) == 2


@pytest.mark.parametrize("is_live", [True, False])
def test_predictions_stand_beside_what_is_measured(tmp_path: Path, is_live: bool) -> None:
    run = write_run(tmp_path, "planned", JOB, Outcome(state="running" if is_live else "finished"))
    if is_live:
        run.write_status(Status.of_this_process("running", attempt=1))
    write_plan(made_up_plan(), run.path / "plan.json")
    found = sections(tmp_path, kind="run")
    rows = table(found, "expected" if is_live else "predicted").rows
    assert len(rows) >= 2
    assert all(row[-1].text not in ("", NOTHING) for row in rows)


def append(run: RunDir, *events: Event) -> None:
    with run.events_path("worker-0").open("ab") as file:
        for event in events:
            file.write(msgspec.json.encode(event) + b"\n")


def test_a_run_that_diverged_is_compared_without_a_number_that_is_none(tmp_path: Path) -> None:
    write_run(tmp_path, "first", JOB)
    second = write_run(tmp_path, "second", JOB, Outcome(epochs=1))
    bad = Epoch(
        epoch=1,
        samples=10,
        updates=1,
        train_loss=1e308 * 10,
        train_accuracy=None,
        regularisation=0.0,
        val_loss=float("nan"),
        val_accuracy=None,
        lr=0.1,
        train_s=1.0,
        evaluate_s=0.0,
    )
    append(second, bad)
    found = sections(tmp_path, kind="compare")
    assert {row[0].text for row in table(found, "compared").rows} == {"first", "second"}
    for figure in figures(found).values():
        for panel in figure.panels:
            json.dumps(panel.spec, allow_nan=False)
