"""Users' own scripts under parameter servers, and under a switch of strategy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from phalanx.records.events import ServerRestored, Switched
from phalanx.records.rundir import RunDir
from phalanx.records.script_trained import ScriptTrained
from support.runs import LIMIT_S, Place, events_of
from support.scripts import PROGRAMS, alone, difference, launched, read, used_by_epoch

BSP = "{name: parameter_server, consistency: bsp}"
# Slices of a small network on every worker; others keep it whole.
APART = "{name: parameter_server, consistency: bsp, servers: colocated, min_shard_bytes: 1024}"
KINDS = ("cnn", "momentum", "gpt", "stream", "vae", "rnn")
ONCE = Counter(str(number) for number in range(150))


def test_servers_make_the_updates_of_the_script_by_itself(place: Place) -> None:
    seen, out = place.folder / "seen", place.folder / "out.pt"
    seen.mkdir()
    arguments = ("--out", str(out), "--seen", str(seen))
    program = str(PROGRAMS / "cnn.py")
    summary = launched(place, "--workers", "2", "--strategy", BSP, program, *arguments)
    assert difference(alone(place, "cnn"), read(out)) < 1e-5
    assert used_by_epoch(seen) == {"0": ONCE, "1": ONCE, "2": ONCE}
    assert (summary["epochs"], summary["updates"], summary["samples"]) == (3, 30, 450)
    assert summary["val_accuracy"] == 1.0
    run = RunDir(Path(summary["run_dir"]))
    assert (run.path / "model.safetensors").exists()
    (trained,) = (one for one in events_of(run, "worker-0") if isinstance(one, ScriptTrained))
    assert (trained.epochs, trained.global_batch, trained.num_samples) == (3, 16, 150)
    assert (trained.num_moments, trained.in_step_only) == (2, False)
    assert trained.between_s > 0
    assert "epoch 2: accuracy 1.000" in (run.path / "logs" / "worker-0.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize("strategy", [BSP, APART])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", KINDS)
def test_any_number_of_workers_gives_the_same(
    place: Place, name: str, workers: int, strategy: str
) -> None:
    out = place.folder / "out.pt"
    program = str(PROGRAMS / f"{name}.py")
    arguments = ("--workers", str(workers), "--strategy", strategy, program, "--out", str(out))
    if strategy == APART and workers > 1 and name == "rnn":
        # It clips by a line of its own, for which the gradient is needed in one place.
        done = place.run("launch", *arguments)
        assert done.returncode != 0
        assert "clip_norm=" in done.stderr
        return
    launched(place, *arguments)
    assert difference(alone(place, name), read(out)) < 1e-5


@pytest.mark.full
@pytest.mark.parametrize(
    "rule",
    [
        "consistency: async",
        "consistency: async, overlap: true",
        "consistency: async, dispatch: dynamic, servers: colocated",
        "consistency: ssp, staleness: 2",
        "consistency: dssp",
        "consistency: k_sync, k: 2",
        "consistency: k_async, k: 2",
        "consistency: bsp, backup: 1",
    ],
)
def test_every_consistency_uses_each_sample_once(place: Place, rule: str) -> None:
    seen = place.folder / "seen"
    seen.mkdir()
    strategy = f"{{name: parameter_server, {rule}}}"
    program = str(PROGRAMS / "cnn.py")
    arguments = ("--workers", "3", "--strategy", strategy, program, "--seen", str(seen))
    summary = launched(place, *arguments)
    assert used_by_epoch(seen) == {"0": ONCE, "1": ONCE, "2": ONCE}
    assert summary["samples"] == 450
    assert summary["val_accuracy"] > 0.9


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy",
    [
        "{name: switch, at: 0.5}",
        "{name: switch, at: 0.5, phases: [allreduce, {strategy: {name: parameter_server}}]}",
        "{name: switch, at: auto}",
    ],
)
def test_a_switch_uses_each_sample_once(place: Place, strategy: str) -> None:
    seen = place.folder / "seen"
    seen.mkdir()
    program = str(PROGRAMS / "cnn.py")
    arguments = ("--workers", "2", "--strategy", strategy, program, "--seen", str(seen))
    summary = launched(place, *arguments)
    assert used_by_epoch(seen) == {"0": ONCE, "1": ONCE, "2": ONCE}
    run = RunDir(Path(summary["run_dir"]))
    switched = [one for one in events_of(run, "controller") if isinstance(one, Switched)]
    assert len(switched) == (0 if "auto" in strategy else 1)
    assert summary["val_accuracy"] > 0.9


@pytest.mark.full
@pytest.mark.parametrize("name", ["cnn", "momentum", "vae"])
def test_a_switch_to_rounds_gives_what_one_process_gives(place: Place, name: str) -> None:
    out = place.folder / "out.pt"
    program = str(PROGRAMS / f"{name}.py")
    phases = f"[allreduce, {{strategy: {APART}}}, allreduce]"
    strategy = f"{{name: switch, at: [0.3, 0.7], phases: {phases}}}"
    launched(place, "--workers", "2", "--strategy", strategy, program, "--out", str(out))
    assert difference(alone(place, name), read(out)) < 1e-5


# Killed in the fourth batch of the second epoch, once; dropout, momentum, the schedule and an
# average have to come back.
BROKEN = """
import json, os, signal, sys, time
from pathlib import Path
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import phalanx

torch.manual_seed(1)
x = torch.randn(96, 6)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 2))
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
session = phalanx.session()
session.setup(model, optimizer, scheduler, extra={"average": average})
feed = session.data(DataLoader(TensorDataset(x, y), 12, shuffle=True))
for epoch in session.epochs(3):
    for batch, (inputs, targets) in enumerate(feed):
        # Without the other, which may start late, a worker would compute all batches.
        Path(f"here-{session.rank}").touch()
        while not all(Path(f"here-{rank}").exists() for rank in range(session.size)):
            time.sleep(0.01)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        average.update_parameters(model)
        fault = Path("fault")
        victim = fault.read_text() if epoch == 1 and batch == 3 and fault.exists() else ""
        if victim and session.chief == (victim == "chief"):
            fault.unlink()
            newest = max(Path("runs").glob("*/status.json"), key=os.path.getmtime)
            controller = json.loads(newest.read_text())["pid"]
            if victim == "controller":
                os.kill(controller, signal.SIGKILL)
                signal.pause()
            elif victim in ("worker", "chief"):
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                log = (newest.parent / "events" / "server-0.jsonl").read_text()
                os.kill(json.loads(next(one for one in log.splitlines() if '"pid"' in one))["pid"],
                        signal.SIGKILL)
    scheduler.step()
    print(epoch, session.report(rows=(1, 1)))
if session.chief:
    kept = [p.detach().clone() for p in (*model.parameters(), *average.parameters())]
    torch.save(kept, sys.argv[1])
"""


@pytest.mark.full
def test_a_killed_controller_is_resumed_to_the_same_bits(place: Place) -> None:
    (place.folder / "train.py").write_text(BROKEN)
    arguments = ("--workers", "2", "--strategy", BSP, "--set", "checkpoint.every_steps=3")
    launched(place, *arguments, "train.py", "whole.pt")
    shutil.rmtree(place.runs)
    (place.folder / "fault").write_text("controller")
    assert place.run("launch", *arguments, "train.py", "broken.pt").returncode != 0
    summary = launched(place, "--resume", "last")
    assert summary["samples"] == 3 * 96
    whole, broken = (read(place.folder / f"{name}.pt") for name in ("whole", "broken"))
    assert all(torch.equal(a, b) for a, b in zip(whole, broken, strict=True))


@pytest.mark.full
@pytest.mark.parametrize("consistency", ["bsp", "async"])
@pytest.mark.parametrize("victim", ["worker", "chief", "server"])
def test_a_run_goes_on_without_a_killed_process(
    place: Place, victim: str, consistency: str
) -> None:
    (place.folder / "train.py").write_text(BROKEN)
    (place.folder / "fault").write_text(victim)
    strategy = f"{{name: parameter_server, consistency: {consistency}}}"
    summary = launched(place, "--workers", "2", "--strategy", strategy, "train.py", "out.pt")
    assert not (place.folder / "fault").exists()
    assert summary["samples"] == 3 * 96
    assert summary["epochs"] == 3
    assert summary["serving"]["processes_replaced"] == 1
    run = RunDir(Path(summary["run_dir"]))
    restored = [one for one in events_of(run, "controller") if isinstance(one, ServerRestored)]
    assert len(restored) == (1 if victim == "server" else 0)


HEAD = """
import torch
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
for epoch in session.epochs(2):
    for (x,) in feed:
        optimizer.zero_grad()
        model(x).sum().backward()
        {before}
        optimizer.step()
"""
FEED = "feed = session.data(DataLoader(data, 4))\n"
OWN = """
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr): super().__init__(params, {"lr": lr})
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]: p.data.add_(torch.randn_like(p), alpha=-group["lr"])
optimizer = Own(model.parameters(), 0.1)
"""
FAULTS = {
    "changes gradients": (
        HEAD + FEED + LOOP.format(before="model[0].weight.grad.mul_(0.5)"),
        "session.setup(..., clip_norm=X)",
    ),
    "changes parameters": (
        HEAD + FEED + LOOP.format(before="with torch.no_grad(): model[0].weight.clamp_(-1, 1)"),
        "changes its parameters by hand",
    ),
    "reports within its loop": (
        HEAD + FEED + LOOP.format(before="session.report(loss=(1, 1))"),
        "call it after that loop",
    ),
    "random": (HEAD + OWN + FEED + LOOP.format(before=""), "draws random numbers in its step"),
    "two steps": (
        HEAD + FEED + LOOP.format(before="optimizer.step()"),
        "calls optimizer.step() twice for one batch",
    ),
    "accumulates more": (
        HEAD
        + "feed = session.data(DataLoader(data, 4))\nsession.setup(model, optimizer, accumulate=2)"
        + LOOP.format(before="").replace("session.setup(model, optimizer)\n", ""),
        "setup(accumulate=) says how many make an update",
    ),
    "two steps of two": (
        HEAD
        + "other = nn.Linear(2, 1)\n"
        + "session.setup(other, torch.optim.SGD(other.parameters(), lr=0.1))\n"
        + FEED
        + LOOP.format(before="optimizer.step()"),
        "calls optimizer.step() twice for one batch",
    ),
    "counts and accumulates": (
        HEAD
        + "feed = session.data(DataLoader(data, 4), count=lambda batch: 3)\n"
        + LOOP.format(before="").replace("optimizer)\nfor", "optimizer, accumulate=2)\nfor"),
        "needs the counts of all workers",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_what_servers_cannot_do_is_refused_in_one_sentence(place: Place, fault: str) -> None:
    script, sentence = FAULTS[fault]
    (place.folder / "train.py").write_text(script)
    done = place.run("launch", "--workers", "2", "--strategy", BSP, "train.py")
    assert done.returncode != 0
    assert sentence in done.stderr, done.stderr


ALL_PAIRS = Counter(str(number) for number in range(90))


def test_each_of_two_optimisers_steps_on_servers(place: Place) -> None:
    seen, out = place.folder / "seen", place.folder / "out.pt"
    seen.mkdir()
    program = (str(PROGRAMS / "gan.py"), "--out", str(out), "--seen", str(seen))
    summary = launched(place, "--workers", "2", "--strategy", BSP, *program)
    assert difference(alone(place, "gan"), read(out)) < 1e-5
    assert used_by_epoch(seen) == {"0": ALL_PAIRS, "1": ALL_PAIRS}
    # Five batches in an epoch, of which each optimiser makes an update.
    assert (summary["samples"], summary["updates"]) == (180, 20)


SWITCHED = f"[allreduce, {{strategy: {APART}}}, allreduce]"


@pytest.mark.full
@pytest.mark.parametrize(
    ("workers", "strategy"),
    [(1, BSP), (3, APART), (2, f"{{name: switch, at: [0.3, 0.7], phases: {SWITCHED}}}")],
)
def test_two_optimisers_give_what_one_process_gives(
    place: Place, workers: int, strategy: str
) -> None:
    out = place.folder / "out.pt"
    program = (str(PROGRAMS / "gan.py"), "--out", str(out))
    strategy = strategy.replace("1024", "128")  # slices of both networks on every server
    launched(place, "--workers", str(workers), "--strategy", strategy, *program)
    assert difference(alone(place, "gan"), read(out)) < 1e-5


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy",
    [
        "{name: parameter_server, consistency: async, overlap: true}",
        "{name: parameter_server, consistency: ssp, staleness: 2}",
        "{name: parameter_server, consistency: dssp}",
        "{name: switch, at: 0.5}",
        "local_sgd",
    ],
)
def test_two_optimisers_use_each_sample_once(place: Place, strategy: str) -> None:
    seen = place.folder / "seen"
    seen.mkdir()
    program = (str(PROGRAMS / "gan.py"), "--seen", str(seen))
    summary = launched(place, "--workers", "3", "--strategy", strategy, *program)
    assert used_by_epoch(seen) == {"0": ALL_PAIRS, "1": ALL_PAIRS}
    assert summary["samples"] == 180


# The second network steps with every other batch; worker 1 is killed between the two steps of one.
APART_STEPS = """
import os, signal, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import phalanx

torch.manual_seed(2)
x = torch.randn(48, 4)
judge, maker = nn.Linear(4, 1), nn.Linear(4, 4)
first = torch.optim.SGD(judge.parameters(), lr=0.1, momentum=0.9)
second = torch.optim.Adam(maker.parameters(), lr=0.01)
session = phalanx.session()
session.setup(judge, first)
session.setup(maker, second)
feed = session.data(DataLoader(TensorDataset(x), 8))
for epoch in session.epochs(2):
    for number, (rows,) in enumerate(feed):
        first.zero_grad()
        judge(maker(rows).detach()).pow(2).mean().backward()
        first.step()
        if Path("fault").exists() and session.rank == 1 and (epoch, number) == (1, 1):
            Path("fault").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if number % 2 == 1:
            second.zero_grad()
            judge(maker(rows)).sub(1).pow(2).mean().backward()
            second.step()
if session.chief:
    parameters = (*judge.parameters(), *maker.parameters())
    torch.save([p.detach().clone() for p in parameters], sys.argv[1])
"""


@pytest.mark.full
@pytest.mark.parametrize("fault", [False, True])
def test_optimisers_may_step_unequally_often_and_workers_be_lost_between(
    place: Place, fault: bool
) -> None:
    (place.folder / "train.py").write_text(APART_STEPS)
    script = (sys.executable, "train.py", "alone.pt")
    subprocess.run(script, cwd=place.folder, check=True, timeout=LIMIT_S, capture_output=True)
    if fault:
        (place.folder / "fault").touch()
    summary = launched(place, "--workers", "2", "--strategy", BSP, "train.py", "out.pt")
    assert summary["samples"] == 96
    assert not (place.folder / "fault").exists()
    assert summary["serving"]["processes_replaced"] == int(fault)
    out = read(place.folder / "out.pt")
    if not fault:  # what a lost worker has pushed of its batch is an update by itself
        assert difference(read(place.folder / "alone.pt"), out) < 1e-5


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("allreduce", BSP, "was trained without parameter servers"),
        (BSP, "allreduce", "was trained by parameter servers or a switch"),
    ],
)
def test_a_checkpoint_of_the_other_form_is_refused(
    place: Place, before: str, after: str, sentence: str
) -> None:
    fault = place.folder / "fault"
    fault.touch()
    stop = f"if epoch == 2 and Path({str(fault)!r}).exists(): raise ValueError(epoch)"
    script = "from pathlib import Path\n" + HEAD + FEED + LOOP.format(before=stop)
    script = script.replace("lr=0.1)", "lr=0.1, momentum=0.9)").replace("epochs(2)", "epochs(3)")
    (place.folder / "train.py").write_text(script)
    done = place.run("launch", "--workers", "2", "--strategy", before, "train.py")
    assert "raised ValueError" in done.stderr
    fault.unlink()
    done = place.run("launch", "--resume", "last", "--set", f"strategy={after}")
    assert done.returncode != 0
    assert sentence in done.stderr, done.stderr
    done = place.run("launch", "--resume", "last", "--set", f"strategy={before}")
    assert done.returncode == 0, done.stderr
