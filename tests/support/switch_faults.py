"""Faults at named moments of a switch, in real processes: a network of the user's that plants them.

The module is copied into the folder of a run, where the job names it as its model. Whoever builds
the network gets hooks into its own process; `fault.json` says which of them kills whom. Each fault
happens once: the file that tells of it is there for the test to see, and for successors to heed.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from phalanx.wire.parameter_server import Flush
from phalanx.worker.context import WorkerContext
from phalanx.worker.parameter_server.evaluator import _Evaluator
from phalanx.worker.parameter_server.server import HostedServer
from phalanx.worker.parameter_server.worker import ParameterServerWorker
from phalanx.worker.switch.worker import SwitchingWorker

PLAN, FIRED = Path("fault.json"), Path("fault.fired")


def strike(moment: str, context: WorkerContext) -> None:
    """Kill what the plan says if this is its moment, in its process, for the first time."""
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else {}
    if (plan.get("moment"), plan.get("process")) != (moment, context.spec.process):
        return
    try:
        FIRED.touch(exist_ok=False)
    except FileExistsError:
        return
    context.log.flush()
    if plan.get("victim") != "controller":
        os.kill(os.getpid(), signal.SIGKILL)
    # Its own parent may be a fork server, which other tests need.
    newest = max(Path("runs").glob("*/status.json"), key=os.path.getmtime)
    os.kill(json.loads(newest.read_text())["pid"], signal.SIGKILL)
    signal.pause()  # until the lifeline ends this process


def _always(*_: Any, **__: Any) -> bool:
    return True


def _hook(
    owner: Any,
    name: str,
    moment: str,
    *,
    when: Callable[..., bool] = _always,
    after: bool = False,
    station_of: Callable[..., WorkerContext] = lambda self, *_, **__: self._context,
) -> None:
    """Let a method be a moment, before or after it has done its work."""
    original = getattr(owner, name)

    def hooked(*arguments: Any, **settings: Any) -> Any:
        if not after and when(*arguments, **settings):
            strike(moment, station_of(*arguments, **settings))
        result = original(*arguments, **settings)
        if after and when(*arguments, **settings):
            strike(moment, station_of(*arguments, **settings))
        return result

    setattr(owner, name, hooked)


def plant() -> None:
    """The moments, in the order in which they come."""
    worker, served = SwitchingWorker, ParameterServerWorker
    # The last step of a lockstep phase is done, and nobody has said so.
    _hook(worker, "_end", "leaving lockstep")
    # All have, and were told of the phase with servers.
    _hook(worker, "_serve", "entering servers")
    _hook(
        HostedServer,
        "__init__",
        "making server",
        station_of=lambda self, context, *_, **__: context,
    )
    _hook(_Evaluator, "_connect", "meeting servers")
    # A place at every server is taken; the state at the switch is not written yet.
    _hook(served, "_join", "joined", after=True)
    # The servers are told to apply the last updates.
    _hook(HostedServer, "obey", "flushing", when=lambda _, order: isinstance(order, Flush))
    _hook(_Evaluator, "_save", "saving")
    # A worker is told to take what the servers hold, and has not said that it did.
    _hook(served, "_hand_over", "handing over")
    # All have, and were told of the lockstep phase.
    later: Callable[..., bool] = lambda _, order: order.phase > 0  # noqa: E731
    _hook(worker, "_train", "entering lockstep", when=later)
    # The group stands, and what each took is about to be put together.
    _hook(worker, "_take_back", "putting together", when=lambda self, _: self._served is not None)


def build(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A small network."""
    size = math.prod(input_shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, num_classes))


plant()
