"""Find the processes of a run under way, to strike at them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from phalanx.records.events import Served, ServerRestored, Started
from phalanx.records.rundir import RunDir
from phalanx.wire.server_stats import ServerStats
from support.runs import LIMIT_S, Training, events_of
from support.waiting import wait_until

# A user's network whose steps take their time as long as the file `slow` is there: faults then
# fall inside the run, however fast the machine is.
STEP_S = 0.03
SLOW_MODEL = f"""
import threading
from pathlib import Path
from torch import nn

class Net(nn.Sequential):
    def forward(self, inputs):
        if self.training and Path("slow").exists():
            threading.Event().wait({STEP_S})
        return super().forward(inputs)

def build(input_shape, num_classes):
    height, breadth, channels = input_shape
    return Net(nn.Flatten(), nn.Linear(height * breadth * channels, 64), nn.ReLU(),
               nn.Linear(64, num_classes))
"""


class Victims:
    """The processes of a run under way, found by the log files that they print to."""

    def __init__(self, training: Training) -> None:
        self.run = training.run
        self.struck: set[int] = set()

    def pids(self) -> dict[str, int]:
        found = {}
        # Children of the fork server that the session shares, or of the controller.
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                names = [
                    Path(f.path).stem
                    for f in process.open_files()
                    if f.path.endswith(".log") and Path(f.path).is_relative_to(self.run.path)
                ]
                if names and process.status() != psutil.STATUS_ZOMBIE:
                    found[names[0]] = process.pid
        return found

    def ready(self, name: str) -> int | None:
        """The process id, once it takes part in the run and as long as nothing befell it."""
        pid = self.pids().get(name)
        if pid is None or pid in self.struck:
            return None
        if name.startswith("worker"):
            started = [e.pid for e in events_of(self.run, name) if isinstance(e, Started)]
            return pid if started and started[-1] == pid else None
        with suppress(psutil.Error):
            connections = psutil.Process(pid).net_connections("inet")
            listening = [c for c in connections if c.status == psutil.CONN_LISTEN]
            connected = [c for c in connections if c.status == psutil.CONN_ESTABLISHED]
            # A server listens at two ports; an evaluator has found the controller and a server.
            if len(listening) == 2 or (name.startswith("evaluator") and len(connected) >= 2):
                return pid
        return None

    def wait_for(self, name: str) -> int:
        """The process id of a process that takes part, as soon as it does."""
        found = wait_until(lambda: self.ready(name), f"{name} to be there", limit_s=LIMIT_S)
        assert found is not None
        return found

    def wait_for_steps(self, count: int) -> None:
        wait_until(lambda: self.num_steps() >= count, "some more tickets", limit_s=LIMIT_S)

    def num_steps(self) -> int:
        """Tickets in all records so far."""
        logs = self.run.path.glob("events/worker-*.jsonl")
        return sum(log.read_bytes().count(b'"forward_s"') for log in logs)

    def num_restored(self) -> int:
        """Servers that the controller has seen restored so far."""
        return sum(isinstance(one, ServerRestored) for one in events_of(self.run, "controller"))


def last_totals(run: RunDir, host: str) -> ServerStats:
    """What the last server in a process said of itself."""
    [*_, last] = [event.facts for event in events_of(run, host) if isinstance(event, Served)]
    return last
