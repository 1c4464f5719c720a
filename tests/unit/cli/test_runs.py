from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from phalanx.cli.history import RunFacts, details_blocks, list_table, read_details
from phalanx.cli.main import app
from phalanx.cli.output import print_blocks, render_table
from phalanx.records.events import Epoch, Failure, Warned
from phalanx.records.log import EventLog
from phalanx.records.manifest import describe, write_manifest
from phalanx.records.rundir import RunDir, Status
from phalanx.spec.job import JobSpec
from support.scripted import make_summary


def make_run(root: Path, name: str, *, epochs: int = 2) -> RunDir:
    run = RunDir.create(root, name)
    job = JobSpec.model_validate({"name": name, "workers": 4, "epochs": epochs})
    write_manifest(run, describe(job, data_root=root, cache_root=root))
    return run


def finish(run: RunDir) -> RunDir:
    run.write_status(Status(state="finished", pid=1, attempt=1))
    run.write_summary(make_summary(run_dir=str(run.path), strategy="allreduce", workers=4))
    return run


def epoch(number: int, *, train_s: float, samples: int, loss: float = 0.5) -> Epoch:
    return Epoch(
        epoch=number, samples=samples, updates=10, train_loss=loss, train_accuracy=0.9,
        regularisation=0.0, val_loss=None, val_accuracy=None, lr=0.05, train_s=train_s,
        evaluate_s=0.0,
    )  # fmt: skip


def show(run: RunDir, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, record=True, highlight=False)
    print_blocks(console, details_blocks(read_details(run)))
    return console.export_text()


def test_an_empty_place_says_what_to_do(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["runs", "list", "--runs", str(tmp_path)])
    assert result.exit_code == 0
    assert "phalanx demo" in result.output


def test_the_list_shows_figures_and_states(tmp_path: Path) -> None:
    finish(make_run(tmp_path, "good"))
    make_run(tmp_path, "bad").write_status(
        Status(state="failed", pid=1, attempt=1, cause="worker-1 was killed by SIGKILL")
    )
    result = CliRunner().invoke(app, ["runs", "list", "--runs", str(tmp_path)])
    lines = {line.split("-")[0]: line for line in result.output.splitlines()}
    assert all(part in lines["good"] for part in ("finished", "allreduce", "75.00 %", "1,941"))
    assert "failed" in lines["bad"]


def test_the_list_as_json(tmp_path: Path) -> None:
    finish(make_run(tmp_path, "good"))
    result = CliRunner().invoke(app, ["runs", "list", "--runs", str(tmp_path), "--json"])
    (row,) = json.loads(result.stdout)
    assert (row["state"], row["test_accuracy"], row["workers"]) == ("finished", 0.75, 4)


@pytest.mark.parametrize("width", [60, 80, 120, 140])
def test_a_narrow_terminal_loses_columns_and_never_wraps(width: int) -> None:
    facts = RunFacts(
        name="demo-local_sgd-20260101-120000-abcd", state="interrupted", strategy="allreduce",
        workers=4, epochs=100, test_accuracy=1.0, samples_per_s=123_456.0, elapsed_s=4000.0,
        started="2026-01-01 12:00",
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(render_table(list_table([facts]), width=width))
    lines = console.export_text().splitlines()
    assert len(lines) == 2
    assert max(cell_len(line.rstrip()) for line in lines) <= width
    assert "…" not in lines[1]
    assert facts.name in lines[1]
    assert ("started" in lines[0]) is (width >= 140)


def test_a_run_is_found_by_beginning_path_and_last(tmp_path: Path) -> None:
    first = finish(make_run(tmp_path, "first"))
    for name in ("firs", first.name, str(first.path), "last"):
        result = CliRunner().invoke(app, ["runs", "show", name, "--runs", str(tmp_path)])
        assert result.exit_code == 0
        assert f"{first.path}: finished" in result.output


def test_epochs_show_their_own_speed_and_the_last_attempt(tmp_path: Path) -> None:
    run = finish(make_run(tmp_path, "job"))
    with EventLog(run.events_path("worker-0")) as log:
        log.record(epoch(0, train_s=2.0, samples=1000))
        log.record(epoch(1, train_s=9.0, samples=2000, loss=0.75))
        log.record(epoch(1, train_s=6.0, samples=2000, loss=0.25))
        log.record(Warned(message="no checkpoint yet"))
    text = show(run)
    assert "0.7500" not in text
    rows = [line.split() for line in text.splitlines() if " 90.00 % " in line]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("1", "0.5000", "500"),
        ("2", "0.2500", "250"),
    ]
    assert "warning: no checkpoint yet" in text
    assert "75.00 %, loss 1.1250" in text


def test_a_failed_run_shows_cause_and_last_log_lines(tmp_path: Path) -> None:
    run = make_run(tmp_path, "job")
    run.write_status(Status(state="failed", pid=1, attempt=2, cause="worker-1 failed: no", rank=1))
    (run.checkpoints / "samples-000000001000.safetensors").write_bytes(b"x" * 2048)
    with EventLog(run.events_path("controller")) as log:
        log.record(Failure(rank=1, cause="worker-1 failed: no", detail="Traceback\nlast lines"))
    text = show(run)
    assert "failed, attempt 2" in text
    assert "cause: worker-1 failed: no" in text
    assert "last lines" in text
    assert "samples-000000001000.safetensors  2.0 KiB" in text


def test_details_as_json(tmp_path: Path) -> None:
    run = finish(make_run(tmp_path, "job"))
    result = CliRunner().invoke(app, ["runs", "show", str(run.path), "--json"])
    details = json.loads(result.stdout)
    assert details["status"]["state"] == "finished"
    assert details["manifest"]["job"]["workers"] == 4
    assert details["summary"]["test_accuracy"] == 0.75
