"""Runs with servers and runs that switch, under random faults until they end; and what must hold.

`benchmarks/soak.py` is the long form, `tests/e2e/test_soak.py` the short one. A run's steps take
their time as long as faults are to come; one or two faults are armed at a time, strike when their
processes come to the moment, and must be recovered from before the next. A run that ends by design,
because its controller or a lockstep worker is gone, is resumed.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from phalanx.records.events import Epoch, Failure, Served, Switched
from phalanx.records.rundir import RunDir
from support.faults import (
    Deed,
    Fault,
    FaultPlan,
    clock_jump,
    cut,
    delay,
    disk_full,
    disk_slow,
    duplicate,
    freeze,
    kill,
)
from support.runs import Place, events_of

NUM_TRAIN, EPOCHS, WORKERS = 1294, 16, 3
HEARTBEAT_S = 3.0
BEYOND_S = 10.0
ARM_S = 2.0
START_S = 90.0
_MOST_ATTEMPTS = 20
_POLL_S = 0.03
_STEP_S = 0.03
# A process that was replaced, or never harmed, has come to one of these.
RECOVERED = {
    "worker": {"Computing", "Starved"},
    "server": {"push received", "flushing"},
    "evaluator": {"meeting servers"},
    "controller": {"Training", "InPhase"},
}
USER_MODEL = f"""
import threading
from pathlib import Path
from torch import nn

class Net(nn.Sequential):
    def forward(self, inputs):
        if self.training and Path("slow").exists():
            threading.Event().wait({_STEP_S})
        return super().forward(inputs)

def build(input_shape, num_classes):
    height, breadth, channels = input_shape
    return Net(nn.Flatten(), nn.Linear(height * breadth * channels, 64), nn.ReLU(),
               nn.Linear(64, num_classes))
"""


@dataclass(frozen=True)
class Scenario:
    """A kind of run.

    Attributes:
        name: For the table.
        strategy: Of its job.
        moments: Where each kind of process is struck; they come all the time.
        rare: The same for moments that come once, or after a loss only.
        switches: Whether it has lockstep phases, where the loss of a worker ends the run.
    """

    name: str
    strategy: dict[str, Any]
    moments: dict[str, tuple[str, ...]]
    rare: dict[str, tuple[str, ...]]
    switches: bool = False

    @property
    def job(self) -> dict[str, Any]:
        """The job, with deadlines that make a freeze cost seconds only."""
        return {
            "name": "soak",
            "model": "soak_net:build",
            "data": "digits",
            "batch": {"global": 64},
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
            "epochs": EPOCHS,
            "workers": WORKERS,
            "observe": {"interval_s": None},
            "deadlines": {"heartbeat_s": HEARTBEAT_S, "exchange_s": 15.0, "stop_s": 2.0},
            "strategy": self.strategy,
        }

    @property
    def processes(self) -> list[str]:
        """Every process of the run but its controller."""
        servers = self.strategy.get("servers", "colocated")
        count = servers if isinstance(servers, int) else 0
        names = [f"worker-{rank}" for rank in range(WORKERS)]
        return [*names, *(f"server-{rank}" for rank in range(count)), "evaluator-0"]


_WORKER = ("Computing", "Resting", "Starved", "Attached", "Pushing", "Awaiting")
_SERVER = ("push received", "flushing", "flushed", "writing snapshot", "snapshot written")
_EVALUATOR = ("reading servers", "saving", "writing checkpoint", "checkpoint written")
_GATES = ("Training", "Pausing", "Flushing", "Closing", "AtGate")
_ENTERING = ("Connecting", "Entering")
_RESTORED = ("making server", "donation received", "restored")
_SWITCHING = (
    *("leaving lockstep", "entering servers", "handing over"),
    *("entering lockstep", "putting together"),
)


def _serving(name: str, *, servers: int | str = 2, **settings: Any) -> Scenario:
    strategy = {
        "name": "parameter_server",
        "dispatch": "dynamic",
        "servers": servers,
        "min_shard_bytes": 1024,
        "snapshot_s": 1.0,
        "max_failures": 100_000,
        **settings,
    }
    colocated = servers == "colocated"
    moments = {
        "worker": (*_WORKER, *_SERVER) if colocated else _WORKER,
        "server": _SERVER,
        "evaluator": _EVALUATOR,
        "controller": _GATES,
    }
    rare = {
        "worker": (*_ENTERING, *_RESTORED) if colocated else _ENTERING,
        "server": _RESTORED,
        "evaluator": ("meeting servers",),
    }
    return Scenario(name, strategy, moments, rare)


def _switching(name: str, **settings: Any) -> Scenario:
    served = _serving(name, servers="colocated", **settings)
    rare = served.rare | {
        "worker": (*_SWITCHING, *_SWITCHING, *served.rare["worker"]),
        "controller": ("InPhase", "Committed"),
    }
    phases = [
        {"strategy": "allreduce"},
        {"strategy": served.strategy, "epoch": 1.5},
        {"strategy": "allreduce", "epoch": EPOCHS - 1.5},
    ]
    strategy = {"name": "switch", "phases": phases}
    return Scenario(name, strategy, served.moments, rare, switches=True)


SCENARIOS = (
    _serving("bsp", consistency="bsp"),
    _serving("async", consistency="async"),
    _serving("ssp, int8", consistency="ssp", compression="int8"),
    _serving("dssp", consistency="dssp", staleness_range=[1, 4]),
    _serving("k_async", consistency="k_async", k=2),
    _serving("bsp, colocated", servers="colocated", consistency="bsp"),
    _serving("async, overlap", consistency="async", overlap=True),
    _switching("switch to bsp", consistency="bsp"),
    _switching("switch to async", consistency="async"),
)


def draw_deed(chance: random.Random, role: str, others: Sequence[str]) -> Deed:
    """A fault at random; `others` may be struck in the same moment."""
    if role == "controller":
        deeds: list[tuple[float, Callable[[], Deed]]] = [
            (2, kill),
            (3, lambda: freeze(chance.uniform(0.5, HEARTBEAT_S + 1))),
            (4, lambda: cut("control")),
            (1, lambda: clock_jump(chance.choice([-86400.0, 86400.0]))),
            (1, lambda: disk_slow(0.1)),
        ]
    else:
        deeds = [
            (8, kill),
            (4, lambda: kill(*others)),
            (1, freeze),
            (3, lambda: freeze(chance.uniform(0.1, 1.0))),
            (4, lambda: cut("control")),
            (4, lambda: cut("bulk")),
            (2, lambda: delay(chance.uniform(0.1, 1.0))),
            (2, lambda: duplicate("control")),
            (2, lambda: duplicate("bulk")),
            (0.3, lambda: disk_full(1.0)),
            (1, lambda: disk_slow(0.1)),
            (1, lambda: clock_jump(chance.choice([-86400.0, 86400.0]))),
        ]
    return chance.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])[0]()


@dataclass
class RunReport:
    """What came of one run.

    Attributes:
        scenario: Its name.
        seed: Of its faults.
        deeds: Kinds of the faults that struck, one for each victim.
        attempts: How often it was started.
        findings: What should not have been.
        recovered_s: From each fault until everyone was back at work.
        longest_pause_s: In which nobody recorded anything, beyond what faults took by themselves.
        seconds: Duration of the whole run.
    """

    scenario: str
    seed: str
    deeds: list[str] = field(default_factory=list)
    attempts: int = 0
    findings: list[str] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)
    longest_pause_s: float = 0.0
    seconds: float = 0.0


class SoakRun:
    """One run under faults.

    Args:
        place: Where; an empty folder.
        scenario: What kind.
        seed: Of its faults.
        num_faults: How many strike at most, but for those that are armed by then.
    """

    def __init__(self, place: Place, scenario: Scenario, *, seed: str, num_faults: int) -> None:
        self._place = place
        self._scenario = scenario
        self._chance = random.Random(seed)
        self._num_faults = num_faults
        self._plan = FaultPlan(place.folder)
        self._rare: Fault | None = None
        self._pause = threading.Event()
        self._growth = Growth()
        self.report = RunReport(scenario.name, seed)
        place.environment |= self._plan.settings
        (place.folder / "soak_net.py").write_text(USER_MODEL)
        (place.folder / "slow").touch()
        place.write_job(scenario.job)

    def run(self) -> RunReport:
        """Carry it out to its end; never raises for what the run does."""
        begin = time.monotonic()
        with self._plan:
            summary = self._until_finished()
        report = self.report
        report.seconds = time.monotonic() - begin
        report.deeds = [
            fired.fault.deed.kind for fired in self._plan.fired() for _ in fired.pids or [0]
        ]
        if summary is not None:
            run = RunDir.open(Path(summary["run_dir"]))
            report.findings += judge(run, summary, self._scenario)
            report.findings += left_behind(self._place.folder)
        report.findings += self._growth.findings
        return report

    @property
    def _num_struck(self) -> int:
        return sum(max(1, len(fired.pids)) for fired in self._plan.fired())

    def _until_finished(self) -> dict[str, Any] | None:
        command = ["train", "job.yaml", "--json"]
        while True:
            self.report.attempts += 1
            begun_s = time.monotonic()
            path = self._place.folder / f"output-{self.report.attempts}"
            with (
                path.open("wb") as output,
                subprocess.Popen(
                    self._place.command(*command),
                    cwd=self._place.folder,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                ) as process,
            ):
                code = self._strike_until_it_ends(process)
            text = path.read_text(errors="replace")
            if code == 0:
                found: dict[str, Any] = json.loads(text[text.index("{") :])
                return found
            struck = [one.fault for one in self._plan.fired() if one.mono_s >= begun_s]
            by_design = any(map(self._may_end_the_run, struck))
            if code is None or not by_design or self.report.attempts > _MOST_ATTEMPTS:
                ended = "hung and was killed" if code is None else f"ended with {code}"
                last = " ".join(text.split())[-600:]
                self.report.findings.append(f"attempt {self.report.attempts} {ended}: {last}")
                return None
            command = ["train", "--resume", "last", "--json"]

    def _strike_until_it_ends(self, process: subprocess.Popen[bytes]) -> int | None:
        """Let faults strike while the process runs; returns its exit code, None: it hung."""
        movement = Movement(self._place.folder)
        while (code := process.poll()) is None:
            if not movement.goes_on(self._excused_s()):
                process.kill()
                return None
            self._growth.sample(process.pid)
            if self._num_struck >= self._num_faults:
                (self._place.folder / "slow").unlink(missing_ok=True)
                self._pause.wait(_POLL_S * 3)
                continue
            if self._rare is None or self._plan.has_fired(self._rare):
                self._rare = self._arm(self._scenario.rare)
            if self._is_at_work({}):
                self._strike(process, movement)
            else:
                self._pause.wait(_POLL_S)
        self.report.longest_pause_s = max(self.report.longest_pause_s, movement.longest_s)
        return code

    def _excused_s(self) -> float:
        """Time for which the last faults may hold everything up by themselves."""
        recent = [one.fault.deed for one in self._plan.fired()[-3:]]
        return sum(deed.seconds for deed in recent if deed.kind in ("freeze", "delay"))

    def _strike(self, process: subprocess.Popen[bytes], movement: Movement) -> None:
        """Arm a fault, and wait until it has struck and everybody is at work again."""
        fault = self._arm(self._scenario.moments)
        deadline = time.monotonic() + ARM_S
        while not self._plan.has_fired(fault):
            late = process.poll() is not None or time.monotonic() > deadline
            if late and self._plan.withdraw(fault):
                return
            self._pause.wait(_POLL_S)
        [struck] = [one for one in self._plan.fired() if one.fault.number == fault.number]
        deed = fault.deed
        lasting = deed.kind == "kill" or (deed.kind == "freeze" and not deed.seconds)
        gone = struck.pids if lasting else {}
        while process.poll() is None and not self._is_at_work(gone):
            if not movement.goes_on(self._excused_s()):
                return
            self._pause.wait(_POLL_S)
        self.report.recovered_s.append(time.monotonic() - struck.mono_s)

    def _arm(self, moments: Mapping[str, Sequence[str]]) -> Fault:
        chance, processes = self._chance, self._scenario.processes
        process = chance.choice([*processes, *processes, "controller"])
        role = process.partition("-")[0]
        if role not in moments:
            process, role = "worker-0", "worker"
        other = chance.choice([one for one in processes if one != process])
        return self._plan.fail_at(
            process,
            chance.choice(moments[role]),
            draw_deed(chance, role, [process, other]),
            occurrence=chance.randrange(1, 9) if role in ("worker", "server") else 1,
        )

    def _may_end_the_run(self, fault: Fault) -> bool:
        """Whether a fault may end the run by design, so that it has to be resumed."""
        deed = fault.deed
        if deed.kind == "disk_full" or (deed.kind == "kill" and fault.process == "controller"):
            return True
        # In lockstep everybody needs everybody.
        frozen = deed.kind == "freeze" and not 0 < deed.seconds < HEARTBEAT_S
        lost = (
            deed.kind == "kill" or frozen or (deed.kind == "cut" and deed.connection != "control")
        )
        return self._scenario.switches and lost

    def _is_at_work(self, gone: Mapping[str, int]) -> bool:
        """Whether every process, or the successor of one that is gone, takes part."""
        for name in self._scenario.processes:
            role = name.partition("-")[0]
            wanted = RECOVERED[role] | (set(_SWITCHING) if self._scenario.switches else set())
            if self._scenario.switches and role == "evaluator":
                continue
            seen = self._plan.seen(name)
            alive = [pid for pid in seen if pid != gone.get(name) and psutil.pid_exists(pid)]
            if not any(seen[pid] & wanted for pid in alive):
                return False
        return True


class Movement:
    """Whether a run gets anywhere: whether its workers record steps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends: dict[Path, int] = {}
        self._since_s = time.monotonic() + START_S
        self.longest_s = 0.0

    def goes_on(self, excused_s: float) -> bool:
        """Whether a step was recorded within the deadline and ten seconds more."""
        now = time.monotonic()
        if self._has_stepped():
            self._since_s = now
        # On a machine with more to do than it has cores everything takes longer by that much.
        crowding = max(1.0, os.getloadavg()[0] / (2 * (os.cpu_count() or 1)))
        standing_s = (now - self._since_s - excused_s) / crowding
        self.longest_s = max(self.longest_s, standing_s)
        return standing_s < HEARTBEAT_S + BEYOND_S

    def _has_stepped(self) -> bool:
        found = False
        for log in self._folder.glob("runs/*/events/worker-*.jsonl"):
            with log.open("rb") as file:
                file.seek(self._ends.get(log, 0))
                news = file.read()
                self._ends[log] = file.tell()
            found |= b'"forward_s"' in news or b'"finished"' in news
        return found


class Growth:
    """Descriptors and memory of a controller, from soon after its start to its end."""

    MAX_DESCRIPTORS, MAX_BYTES = 60, 128 << 20

    def __init__(self) -> None:
        self._first: dict[int, tuple[float, int, int]] = {}
        self._due_s = 0.0
        self.findings: list[str] = []

    def sample(self, pid: int) -> None:
        """Compare once a second."""
        now = time.monotonic()
        if now < self._due_s:
            return
        self._due_s = now + 1.0
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            fds, resident = process.num_fds(), process.memory_info().rss
            began_s, fds_before, before = self._first.setdefault(pid, (now, fds, resident))
            # Connections of all processes are there by then.
            if now - began_s < 8.0:
                self._first[pid] = (began_s, fds, resident)
            elif fds - fds_before > self.MAX_DESCRIPTORS or resident - before > self.MAX_BYTES:
                grown = f"{fds_before} to {fds} descriptors, {before >> 20} to {resident >> 20} MB"
                self.findings.append(f"the controller grew from {grown}")
                self._first[pid] = (now, fds, resident)


def judge(run: RunDir, summary: dict[str, Any], scenario: Scenario) -> list[str]:
    """What is not as it should be about a finished run."""
    found = []
    total = EPOCHS * NUM_TRAIN
    if (summary["state"], summary["epochs"], summary["samples"]) != ("finished", EPOCHS, total):
        told = (summary["state"], summary["epochs"], summary["samples"])
        found.append(f"the summary says {told}, not finished after {EPOCHS} epochs, {total}")
    log = events_of(run, "controller")
    # Lockstep epochs are recorded by the chief.
    every = [*log, *events_of(run, "worker-0")]
    epochs = {event.epoch: event.samples for event in every if isinstance(event, Epoch)}
    epochs = dict(sorted(epochs.items()))
    if epochs != {epoch: NUM_TRAIN * (epoch + 1) for epoch in range(EPOCHS)}:
        found.append(f"epochs ended after {list(epochs.values())} samples")
    if not summary["test_accuracy"] > 0.6 or not math.isfinite(summary["train_loss"]):
        found.append(f"accuracy {summary['test_accuracy']}, loss {summary['train_loss']}")
    if scenario.switches:
        boundaries = {event.samples for event in log if isinstance(event, Switched)}
        if len(boundaries) < 2:
            found.append(f"it switched at {sorted(boundaries)}")
    else:
        found += _judge_servers(run, scenario, total)
    return found


def _judge_servers(run: RunDir, scenario: Scenario, total: int) -> list[str]:
    found = []
    count = scenario.strategy["servers"]
    names = (
        [f"worker-{rank}" for rank in range(WORKERS)]
        if count == "colocated"
        else [f"server-{rank}" for rank in range(count)]
    )
    for name in names:
        told = [event.facts for event in events_of(run, name) if isinstance(event, Served)]
        if told and told[-1].samples != total:
            found.append(f"{name} counted {told[-1].samples} samples, not {total}")
        if told:
            last = told[-1]
            if last.pushes != last.applied + last.dropped + last.lost + last.gathered:
                found.append(f"{name} lost track of its pushes: {last}")
    return found


def left_behind(folder: Path) -> list[str]:
    """Processes and temporary files of runs in a folder that have ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != psutil.Process().pid and process.cwd() == str(folder):
                found.append(f"process {process.pid} is left: {' '.join(process.cmdline())}")
    unfinished = [
        path.name
        for path in folder.glob("runs/**/.*")
        # A killed process leaves what it was writing; see `phalanx.store.atomic`.
        if path.is_file()
    ]
    if len(unfinished) > 20:
        found.append(f"{len(unfinished)} temporary files are left: {unfinished[:3]}")
    return found


def causes_of(run: RunDir) -> list[str]:
    """What the controller took for the causes of losses."""
    return [e.cause for e in events_of(run, "controller") if isinstance(e, Failure)]
