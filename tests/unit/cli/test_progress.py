from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from phalanx.cli.live import LiveView, ProgressPanel
from phalanx.cli.plain import PlainView
from phalanx.cli.progress import RunView, choose_view, describe_switch
from phalanx.cli.result import result_blocks
from phalanx.cli.screen import time_bar
from phalanx.control.progress import ProcessLoss
from phalanx.records.events import Switched
from phalanx.report.document import Table
from phalanx.spec.job import JobSpec
from support.scripted import make_progress, make_report, make_summary

JOB = JobSpec.model_validate({"model": "cnn", "epochs": 10, "workers": 4})


def make_switch(**fields: Any) -> Switched:
    settings = {
        "phase": 1, "before": "allreduce", "after": "parameter_server", "epoch": 1,
        "cause": "50% of the samples", "samples": 1294, "pause_s": 0.25, "carried": [],
        "handover": "live",
    }  # fmt: skip
    return Switched(**settings | fields)


def play(view: RunView) -> None:
    """A short run: starting, two epochs, the end."""
    with view:
        view.run_started(Path("runs/job-1"), JOB)
        idle = {"loss": None, "epoch_total": 0, "activity": "reading data", "time_shares": {}}
        view.progressed(make_progress(elapsed_s=3.0, **idle))
        view.progressed(make_progress(elapsed_s=10.5, **idle))
        view.progressed(make_progress(elapsed_s=12.4))
        view.epoch_done(make_report())
        view.progressed(make_progress(elapsed_s=15.0))
        view.progressed(make_progress(elapsed_s=22.6))
        view.switched(make_switch())
        view.epoch_done(make_report(epoch=1, samples=2588, train_s=12.0, val_loss=None))
        view.run_finished(make_summary())


def test_plain_lines_are_exact() -> None:
    out = io.StringIO()
    play(PlainView(Console(file=out, width=80, highlight=False)))
    assert out.getvalue().splitlines() == [
        "cnn on digits, allreduce, 4 workers, global batch 128, 10 epochs: runs/job-1",
        "0:10  reading data",
        "0:12  epoch 1/10 done  2.0 s  647 samples/s  train loss 1.2034  accuracy 61.20 %  "
        "validation loss 0.8012  accuracy 74.31 %",
        "0:22  epoch 3/10  62 %  step 7/11  12,346 samples/s  loss 0.2346  accuracy 93.10 %  "
        "lr 0.05  ETA 1 min 34 s  input 2 %, compute 61 %, communication 25 %, waiting 12 %",
        "0:22  switched: allreduce → parameter_server after 1,294 samples (50% of the samples), "
        "0.25 s pause",
        "0:22  epoch 2/10 done  10 s  129 samples/s  train loss 1.2034  accuracy 61.20 %  "
        "validation accuracy 74.31 %",
    ]


def test_the_same_strategy_with_other_shares_goes_on() -> None:
    switch = make_switch(after="allreduce", cause="worker-1 takes 2.00 times the median time")
    assert describe_switch(switch) == (
        "allreduce goes on after 1,294 samples (worker-1 takes 2.00 times the median time), "
        "0.25 s pause"
    )


def test_the_first_epoch_of_a_resumed_run_has_no_time_of_its_own() -> None:
    out = io.StringIO()
    view = PlainView(Console(file=out, width=80, highlight=False))
    view.run_started(Path("runs/job-1"), JOB)
    view.epoch_done(make_report(epoch=5, samples=7764, train_s=60.0))
    view.epoch_done(make_report(epoch=6, samples=9058, train_s=62.0))
    lines = out.getvalue().splitlines()
    assert "epoch 6/10 done  train loss" in lines[1]
    assert "epoch 7/10 done  2.0 s  647 samples/s" in lines[2]


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_shows_the_numbers_and_fits(width: int) -> None:
    console = Console(width=width, file=io.StringIO(), record=True, force_terminal=True)
    console.print(ProgressPanel(make_progress(), global_batch=128))
    text = console.export_text()
    for part in (
        "epoch 3/10",
        "step 7/11",
        "training",
        "12,346 samples/s",
        "loss 0.2346",
        "accuracy 93.10 %",
        "lr 0.05",
        "0:12",
        "ETA 1:34",
        "input 2 %",
        "compute 61 %",
        "communication 25 %",
        "waiting 12 %",
    ):
        assert part in text
    lines = text.splitlines()
    assert len(lines) == 5
    assert max(cell_len(line.rstrip()) for line in lines) <= width


@pytest.mark.parametrize("width", [80, 40])
def test_the_longest_numbers_do_not_wrap(width: int) -> None:
    progress = make_progress(
        epoch=998, epochs=1000, elapsed_s=100_000.0, eta_s=100_000.0, samples_per_s=1e7,
        loss=123.4, accuracy=1.0, lr=1.234e-5, activity="measuring validation",
        epoch_samples=127_000_000, epoch_total=128_000_000,
    )  # fmt: skip
    console = Console(width=width, file=io.StringIO(), record=True, force_terminal=True)
    console.print(ProgressPanel(progress, global_batch=128))
    assert len(console.export_text().splitlines()) == 5


def test_before_the_first_step_the_panel_says_what_is_going_on() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    starting = make_progress(epoch_total=0, activity="joining", loss=None, time_shares={})
    console.print(ProgressPanel(starting, global_batch=128))
    assert console.export_text().strip() == "joining  0:12"


def test_the_live_view_leaves_one_line_per_epoch_and_gives_the_terminal_back() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, highlight=False, record=True)
    play(LiveView(console))
    text = console.export_text()
    assert re.search(r" 1/10 +1\.2034 +61\.20 % +0\.8012 +74\.31 % +647 +2\.0 s\n", text)
    assert re.search(r" 2/10 +1\.2034 +61\.20 % +- +74\.31 % +129 +10 s\n", text)
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert out.getvalue().count(hide) == out.getvalue().count(show) == 1


def test_the_live_view_gives_the_terminal_back_when_the_run_fails() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=80, force_terminal=True))

    def fail() -> None:
        with view:
            view.run_started(Path("runs/job-1"), JOB)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert out.getvalue().count("\x1b[?25h") == 1


def test_redrawing_is_throttled() -> None:
    out = io.StringIO()
    with LiveView(Console(file=out, width=80, force_terminal=True)) as view:
        view.run_started(Path("runs/job-1"), JOB)
        view.progressed(make_progress(elapsed_s=1.0))
        before = len(out.getvalue())
        view.progressed(make_progress(elapsed_s=1.1))
        assert len(out.getvalue()) == before
        view.progressed(make_progress(elapsed_s=1.3))
        assert len(out.getvalue()) > before


def test_a_terminal_gets_the_live_view_and_everything_else_lines() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})
    pipe = Console(file=io.StringIO())
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(choose_view(terminal), LiveView)
    assert isinstance(choose_view(terminal, plain=True), PlainView)
    assert isinstance(choose_view(pipe), PlainView)
    assert isinstance(choose_view(dumb), PlainView)


@pytest.mark.parametrize("width", [1, 7, 36, 73])
def test_the_time_bar_is_filled_exactly(width: int) -> None:
    shares = {"input": 1 / 3, "compute": 1 / 3, "communication": 1 / 6, "waiting": 1 / 6}
    assert cell_len(time_bar(shares, width).plain) == width


@pytest.mark.parametrize("kind", [PlainView, LiveView])
def test_a_lost_process_is_one_line_when_it_is_lost_and_one_when_it_is_back(
    kind: type[PlainView] | type[LiveView],
) -> None:
    out = io.StringIO()
    with kind(Console(file=out, width=80, highlight=False)) as view:
        view.run_started(Path("runs/job-1"), JOB)
        before = len(out.getvalue().splitlines())
        view.process_lost(ProcessLoss("worker-1", "worker-1 was killed", "it starts again on b"))
        view.noted("worker-1 is back")
        lines = out.getvalue().splitlines()[before:]
    said = [line for line in lines if "worker-1" in line]
    assert [line.removeprefix("0:00  ") for line in said] == [
        "lost: worker-1 was killed; it starts again on b",
        "worker-1 is back",
    ]


def test_the_parts_of_the_elapsed_time_add_up() -> None:
    summary = make_summary(elapsed_s=59.0, train_s=29.0, evaluate_s=1.0, startup_s=19.0, attempts=2)
    [table] = [block for block in result_blocks(summary) if isinstance(block, Table)]
    [text] = [row[1].text for row in table.rows if row[0].text == "elapsed"]
    assert text == ("59 s in 2 attempts: training 29 s, measuring 1.0 s, starting 19 s, other 10 s")
