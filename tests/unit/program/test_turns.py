"""A script and the training loop taking turns, in one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from phalanx.comm.solo import SoloCollective
from phalanx.errors import EngineError
from phalanx.program.driver import LaunchedDriver
from phalanx.program.model import ScriptModel
from phalanx.program.script import Script
from phalanx.program.session import ScriptSession
from phalanx.program.source import BatchCut, MicroBatch
from phalanx.program.stall_watch import StallWatch
from phalanx.program.taps import tapped_backward
from phalanx.program.turn import LossScale, ScriptBatch
from phalanx.program.turns import ScriptTurns
from phalanx.spec.lockstep import LocalSgdSpec
from phalanx.strategy.local_sgd import LocalSgd


@dataclass
class Parts:
    """What the scripts of these tests train."""

    session: ScriptSession
    model: nn.Module
    optimizer: torch.optim.Optimizer


def update(num_rows: int, step: int) -> ScriptBatch:
    micro = MicroBatch(torch.ones(2, 1), num_rows, 4)
    return ScriptBatch.of([micro], count=4, offset=4 * step, epoch=0, step=step)


def play(
    body: Callable[[Parts], object], model: nn.Module, rows: Sequence[int] = (2, 2, 2)
) -> Iterator[float]:
    """Run a script under a loop of so many updates; yields the sum of its weights after each."""
    driver = LaunchedDriver(BatchCut(1, 2))
    # Momentum and weight decay move weights even where gradients are zero.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    parts = Parts(ScriptSession(driver), model, optimizer)
    script = driver.script = Script(lambda: body(parts), name=os.path.basename(__file__))
    script.resume()
    watch = StallWatch(script.name, lambda _: None)
    scale = LossScale(loss="mean", count=None, total=lambda tensor: lambda: tensor)
    turns = ScriptTurns(script, scale, watch, passes=1)
    driver.model = ScriptModel(parts.session.declared.setups, turns, bucket_bytes=None)
    strategy = LocalSgd(LocalSgdSpec(every=8))
    strategy.attach(driver.model.replicas[0], SoloCollective())
    with tapped_backward(driver.backward):
        for step, num_rows in enumerate(rows):
            strategy.step(update(num_rows, step), lr=0.1, step_index=step)
            turns.run_on()
            yield float(driver.model.parameters.sum())
        driver.model.check()


def train(parts: Parts, each: Callable[[int], Any] = lambda number: None) -> None:
    parts.session.setup(parts.model, parts.optimizer)
    for number, x in enumerate(parts.session.data([torch.ones(4, 1)] * 3)):
        parts.optimizer.zero_grad()
        parts.model(x).mean().backward()
        parts.optimizer.step()
        each(number)


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 1, bias=False))


def test_a_worker_without_samples_makes_no_step_where_it_updates_alone() -> None:
    seen = list(play(train, linear(), rows=(2, 0, 2)))
    assert seen[0] == seen[1] != seen[2]


def raises(parts: Parts) -> None:
    train(parts, lambda number: 1 // (1 - number))


def exits(parts: Parts) -> None:
    train(parts, lambda number: sys.exit("no more"))


def leaves(parts: Parts) -> None:
    train(parts, lambda number: sys.exit())


def gives_more(parts: Parts) -> None:
    train(parts, lambda _: parts.optimizer.add_param_group({"params": nn.Linear(1, 1).weight}))


def grows(parts: Parts) -> None:
    train(parts, lambda number: parts.model.add_module(f"more-{number}", nn.Linear(1, 1)))


def replaces(parts: Parts) -> None:
    train(parts, lambda _: parts.model.half().float())


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 1, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x.long())


def trains_in_a_copy(parts: Parts) -> None:
    def fork(_: int) -> None:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)

    train(parts, fork)


@pytest.mark.parametrize(
    ("body", "model", "message"),
    [
        (raises, linear(), r"raised ZeroDivisionError in line \d+"),
        (exits, linear(), r"called sys.exit\('no more'\)"),
        (leaves, linear(), "ended in the middle of an epoch, with batches left"),
        (gives_more, linear(), "more parameters after session.setup"),
        (grows, linear(), "other trainable parameters than at session.setup"),
        (replaces, linear(), r"replaced parameter '0.weight' after session.setup"),
        (train, Sparse(), r"parameter 'table.weight' has sparse gradients"),
        (trains_in_a_copy, linear(), "has forked, and the copy has used the session"),
    ],
)
def test_a_script_that_cannot_go_on_is_named(
    body: Callable[[Parts], object], model: nn.Module, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        list(play(body, model))


def test_copies_for_other_work_are_left_alone() -> None:
    codes = []

    def fork(_: int) -> None:
        pid = os.fork()
        if pid == 0:
            sys.exit(7)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    assert len(list(play(lambda parts: train(parts, fork), linear()))) == 3
    assert codes == [7, 7, 7]
