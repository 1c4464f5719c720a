"""A script and the training loop taking turns, in one process."""

from __future__ import annotations

import torch
from torch import nn

from phalanx.comm.solo import SoloCollective
from phalanx.program.driver import LaunchedDriver
from phalanx.program.model import ScriptModel, ScriptTurns
from phalanx.program.script import Script
from phalanx.program.session import ScriptSession
from phalanx.program.source import BatchCut, MicroBatch
from phalanx.program.stall_watch import StallWatch
from phalanx.program.taps import tapped_backward
from phalanx.program.turn import LossScale, ScriptBatch
from phalanx.spec.lockstep import LocalSgdSpec
from phalanx.strategy.local_sgd import LocalSgd


def update(num_rows: int, step: int) -> ScriptBatch:
    micro = MicroBatch(torch.ones(2, 1), num_rows, 4)
    return ScriptBatch.of([micro], count=4, offset=4 * step, epoch=0, step=step)


def test_a_worker_without_samples_makes_no_step_where_it_updates_alone() -> None:
    driver = LaunchedDriver(BatchCut(1, 2))
    session = ScriptSession(driver)
    model = nn.Linear(1, 1, bias=False)
    # Momentum and weight decay move weights even where gradients are zero.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    def body() -> None:
        session.setup(model, optimizer)
        for x in session.data([torch.ones(4, 1)] * 3):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()

    script = driver.script = Script(body, name="train.py")
    script.resume()
    watch = StallWatch(script.name, lambda _: None)
    scale = LossScale(sums=False, count=None, total=lambda tensor: lambda: tensor)
    turns = ScriptTurns(script, scale, watch, passes=1)
    driver.model = ScriptModel(session.declared.setups, turns, bucket_bytes=None)
    strategy = LocalSgd(LocalSgdSpec(every=8))
    strategy.attach(driver.model.replicas[0], SoloCollective())
    seen = []
    with tapped_backward(driver.backward):
        for step, num_rows in enumerate((2, 0, 2)):
            strategy.step(update(num_rows, step), lr=0.1, step_index=step)
            turns.run_on()
            seen.append(model.weight.item())
    assert seen[0] == seen[1] != seen[2]
