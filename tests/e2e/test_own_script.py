"""Users' own scripts under `phalanx launch`: equal to one process, resumed, refused by name."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from phalanx.records.events import Resumed
from phalanx.records.rundir import RunDir
from support.runs import Place, events_of
from support.scripts import PROGRAMS, alone, difference, launched, read, used_by_epoch

KINDS = ("cnn", "gpt", "gan", "stream", "vae", "rnn")


def test_two_workers_equal_the_script_by_itself_and_use_each_sample_once(place: Place) -> None:
    seen = place.folder / "seen"
    seen.mkdir()
    out = place.folder / "out.pt"
    program = str(PROGRAMS / "cnn.py")
    summary = launched(place, "--workers", "2", program, "--out", str(out), "--seen", str(seen))
    assert difference(alone(place, "cnn"), read(out)) < 1e-5
    once = Counter(str(number) for number in range(150))
    assert used_by_epoch(seen) == {"0": once, "1": once, "2": once}
    assert (summary["epochs"], summary["updates"], summary["samples"]) == (3, 30, 450)
    assert (summary["global_batch"], summary["model"]) == (16, "cnn.py")
    assert summary["val_accuracy"] == 1.0
    run = RunDir(Path(summary["run_dir"]))
    assert (run.path / "model.safetensors").exists()
    assert "epoch 2: accuracy 1.000" in (run.path / "logs" / "worker-0.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", KINDS)
def test_any_number_of_workers_gives_the_same(place: Place, name: str, workers: int) -> None:
    out = place.folder / "out.pt"
    program = str(PROGRAMS / f"{name}.py")
    launched(place, "--workers", str(workers), program, "--out", str(out))
    assert difference(alone(place, name), read(out)) < 1e-5


@pytest.mark.full
def test_bf16_differs_by_rounding_only(place: Place) -> None:
    out = place.folder / "out.pt"
    program = str(PROGRAMS / "gpt.py")
    launched(place, "--workers", "2", program, "--bf16", "--out", str(out))
    assert difference(alone(place, "gpt", "--bf16"), read(out)) < 3e-2


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["single", "{name: local_sgd, every: 4}"])
def test_other_strategies_use_each_sample_once(place: Place, strategy: str) -> None:
    seen = place.folder / "seen"
    seen.mkdir()
    workers = "1" if strategy == "single" else "2"
    program = str(PROGRAMS / "cnn.py")
    arguments = ("--workers", workers, "--strategy", strategy, program, "--seen", str(seen))
    summary = launched(place, *arguments)
    once = Counter(str(number) for number in range(150))
    assert used_by_epoch(seen) == {"0": once, "1": once, "2": once}
    assert summary["val_accuracy"] > 0.9


def test_own_streams_equal_one_process_that_reads_them_joined(place: Place) -> None:
    # 97 rows: the second worker's stream is a batch shorter.
    out = place.folder / "out.pt"
    summary = launched(place, "--workers", "2", str(PROGRAMS / "own.py"), "--out", str(out))
    assert difference(alone(place, "own"), read(out)) < 1e-5
    assert (summary["updates"], summary["global_batch"]) == (18, 12)


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_own_streams_end_after_so_many_steps(place: Place, workers: int) -> None:
    out = place.folder / "out.pt"
    program = str(PROGRAMS / "own.py")
    count = ("--workers", str(workers))
    summary = launched(place, *count, program, "--steps", "5", "--out", str(out))
    assert difference(alone(place, "own", "--steps", "5"), read(out)) < 1e-5
    assert summary["updates"] == 10


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["allreduce", "{name: local_sgd, every: 4}"])
def test_own_streams_that_have_all_ended_are_named(place: Place, strategy: str) -> None:
    program = str(PROGRAMS / "own.py")
    arguments = ("--workers", "2", "--strategy", strategy, program, "--steps", "30")
    done = place.run("launch", *arguments)
    assert done.returncode != 0
    assert "session.data(own=True) has no batch left" in done.stderr, done.stderr


# Killed in the fourth batch of the second epoch, once; dropout, batch norm, momentum, the schedule
# and an average have to come back.
RESUMED = """
import json, os, signal, sys
from pathlib import Path
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import phalanx

torch.manual_seed(1)
x = torch.randn(96, 6)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2))
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
session = phalanx.session()
session.setup(model, optimizer, scheduler, extra={"average": average})
feed = session.data(DataLoader(TensorDataset(x, y), 12, shuffle=True))
for epoch in session.epochs(3):
    for batch, (inputs, targets) in enumerate(feed):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        average.update_parameters(model)
        if epoch == 1 and batch == 3 and session.rank == 1 and Path("fault").exists():
            victim = Path("fault").read_text()
            Path("fault").unlink()
            newest = max(Path("runs").glob("*/status.json"), key=os.path.getmtime)
            controller = json.loads(newest.read_text())["pid"]
            os.kill(os.getpid() if victim == "worker" else controller, signal.SIGKILL)
            signal.pause()
    scheduler.step()
if session.chief:
    kept = [p.detach().clone() for p in (*model.parameters(), *average.parameters())]
    torch.save([*kept, *(b.float() for b in model.buffers())], sys.argv[1])
"""


@pytest.mark.full
@pytest.mark.parametrize("victim", ["worker", "controller"])
def test_a_killed_run_goes_on_to_the_same_bits(place: Place, victim: str) -> None:
    (place.folder / "train.py").write_text(RESUMED)
    steps = "checkpoint.every_steps=3"
    arguments = ("--workers", "2", "--set", steps, "train.py")
    launched(place, *arguments, "whole.pt")
    shutil.rmtree(place.runs)
    (place.folder / "fault").write_text(victim)
    assert place.run("launch", *arguments, "broken.pt").returncode != 0
    summary = launched(place, "--resume", "last")
    assert summary["samples"] == 3 * 96
    whole, broken = (read(place.folder / f"{name}.pt") for name in ("whole", "broken"))
    assert all(torch.equal(a, b) for a, b in zip(whole, broken, strict=True))
    (resumed,) = [
        one
        for one in events_of(RunDir(Path(summary["run_dir"])), "worker-0")
        if isinstance(one, Resumed)
    ]
    assert (resumed.epoch, resumed.samples) in {(1, 96 + 12), (1, 96)}


HEAD = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import phalanx
session = phalanx.session()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.ones(40, 2))
"""
LOOP = """
session.setup(model, optimizer)
feed = session.data(DataLoader(data, 4))
for epoch in session.epochs(3):
    for number, (x,) in enumerate(feed):
        optimizer.zero_grad()
        {before}
        model(x).sum().backward()
        optimizer.step()
        {after}
"""
FAULTS = {
    "no session": ("print('hello')", "ended without a session"),
    "no loop": (HEAD + "session.setup(model, optimizer)", "ended before its loop"),
    "raises": (
        HEAD + LOOP.format(before="", after="if session.rank: raise ValueError('seven')"),
        "raised ValueError in line 20: seven",
    ),
    "exits": (HEAD + LOOP.format(before="", after="sys.exit(3)"), "called sys.exit(3)"),
    "leaves its loop": (
        HEAD + LOOP.format(before="", after="if session.rank and number == 2: break"),
        "has left its loop",
    ),
    "skips a batch": (
        HEAD + LOOP.format(before="if number == 1: continue", after=""),
        "asks for the next batch before the backward pass",
    ),
    "two passes": (
        HEAD + LOOP.format(before="model(x).sum().backward()", after=""),
        "passes=N",
    ),
    "differs": (
        HEAD
        + "data = TensorDataset(torch.ones(40 + session.rank, 2))"
        + LOOP.format(before="", after=""),
        "differs between workers",
    ),
    "sparse": (
        HEAD
        + "model = nn.Embedding(3, 2, sparse=True)\n"
        + "optimizer = torch.optim.SparseAdam(model.parameters())\n"
        + "data = TensorDataset(torch.zeros(40, dtype=torch.int64))"
        + LOOP.format(before="", after=""),
        "has sparse gradients",
    ),
    "adds parameters": (
        HEAD
        + LOOP.format(
            before="if number == 2: optimizer.add_param_group({'params': nn.Linear(1, 1).weight})",
            after="",
        ),
        "more parameters after session.setup()",
    ),
    "forks": (
        "import os" + HEAD + LOOP.format(before="", after="if os.fork(): os.wait()"),
        "has forked, and the copy has used the session",
    ),
    "no length": (
        HEAD + "session.setup(model, optimizer)\nnext(iter(session.data(x for x in [])))",
        "without a length",
    ),
}


QUICK_FAULT = "no session"


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=() if one == QUICK_FAULT else pytest.mark.full) for one in FAULTS],
)
def test_a_script_that_cannot_be_run_is_refused_in_one_sentence(place: Place, fault: str) -> None:
    script, sentence = FAULTS[fault]
    (place.folder / "train.py").write_text(script)
    done = place.run("launch", "--workers", "2", "train.py")
    assert done.returncode != 0
    assert sentence in done.stderr, done.stderr


@pytest.mark.full
def test_only_the_chief_is_heard(place: Place) -> None:
    says = LOOP.format(before="", after="print('rank', session.rank, 'says', epoch, number)")
    (place.folder / "train.py").write_text(HEAD + says)
    done = place.run("launch", "--workers", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert len(re.findall("rank 0 says", done.stdout)) == 30
    assert "rank 1 says" not in done.stdout
    (run,) = place.runs.iterdir()
    assert len(re.findall("rank 1 says", (run / "logs" / "worker-1.log").read_text())) == 30


@pytest.mark.full
def test_a_script_that_hangs_is_named_while_the_others_wait(place: Place) -> None:
    hangs = LOOP.format(before="if session.rank and number == 3: time.sleep(600)", after="")
    (place.folder / "train.py").write_text(HEAD + hangs)
    # The deadline only ends the test: without it the others would wait for half an hour.
    limit = "deadlines.exchange_s=25"
    done = place.run("launch", "--workers", "2", "--set", limit, "train.py")
    assert done.returncode != 0
    assert re.search(r"worker-1 has been \d+ s on one batch, in line 17 of train.py", done.stdout)


def test_settings_of_a_script_are_refused_before_anything_starts(place: Place) -> None:
    (place.folder / "train.py").write_text("")
    done = place.run("launch", "--dry-run", "train.py", "--set", "epochs=3")
    assert done.returncode == 0, done.stderr
    assert '"epochs=3"' in done.stdout
    done = place.run("launch", "--set", "epochs=3", "train.py")
    assert done.returncode == 2
    assert "train.py itself says this" in done.stderr
    assert place.run("launch", "missing.py").returncode == 2
    assert not place.runs.exists()
