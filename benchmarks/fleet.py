"""A real controller and hundreds of workers that are played: what it costs to hold them together.

The controller, its coordinator, control channel and records are the real ones. Workers, servers and
the evaluator are players, many to a process: each has a real `ControlClient` with its keys,
heartbeats and clock, and says what a process of a run with parameter servers says, without
computing anything. A ticket takes a player `--step` seconds.

    python benchmarks/fleet.py [--workers 50 100 200] [--tickets 20] [--step 0.5] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import psutil

from phalanx.control.controller import Controller
from phalanx.control.process_table import RunRequest
from phalanx.launch.allocation import Allocation, LocalAllocation
from phalanx.launch.base import Launcher, LaunchRequest, ProcessStatus, WorkerGroup
from phalanx.records.manifest import describe, write_manifest
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.control import ControlServer
from phalanx.wire.control_client import ControlClient
from phalanx.wire.keys import KeyPair
from phalanx.wire.messages import Done, FromCoordinator, FromWorker, Hello, Progress, WorkTimes
from phalanx.wire.moments import plant, uproot
from phalanx.wire.parameter_server import (
    CompletedTicket,
    Connect,
    Finish,
    Flush,
    Flushed,
    Pause,
    Paused,
    ReadAndEvaluate,
    Ready,
    RequestWork,
    Save,
    ServerAddress,
    ServerUp,
    SnapshotTaken,
    Work,
    WorkDone,
)
from support.company import measured, saved, server_facts

WORKER_BATCH, SERVERS, PLAYERS = 16, 4, 2
WANT = 4
_TICK_S = 0.01
_CLOCKS = os.sysconf("SC_CLK_TCK")


class Player:
    """One process of the run, as far as the controller can tell.

    Args:
        spec: What the process was to be.
        step_s: How long a ticket takes it.
        num_samples: Of the training set.
    """

    def __init__(self, spec: WorkerSpec, *, step_s: float, num_samples: int) -> None:
        self._spec = spec
        self._step_s = step_s
        self._num_samples = num_samples
        self._tickets: deque[int] = deque()
        self._due_s = 0.0
        self._version = 0
        self._asked = False
        self.is_done = False
        self.control = ControlClient(
            spec.control_address,
            server_key=spec.controller_key,
            keys=KeyPair(public=spec.public_key, secret=spec.secret_key),
            progress=Progress,
            on_stop=lambda reason: self._finish(),
            on_clock=lambda reading: None,
        )

    def start(self) -> None:
        """Join, and say what a process says first."""
        self.control.__enter__()
        self.control.send(Hello(pid=os.getpid(), host="here"))
        if self._spec.role == "server":
            address = ServerAddress(self._spec.rank, "tcp://127.0.0.1:1", self._spec.public_key)
            self.control.send(ServerUp(address=address, restoring=False))
        else:
            self.control.send(Ready(num_samples=self._num_samples, precision="fp32"))

    def tick(self) -> None:
        """Obey what has come, and report a ticket if one is due."""
        while not self.control.inbox.empty():
            self._obey(self.control.inbox.get())
        now = time.monotonic()
        if self._tickets and now >= self._due_s:
            ticket = self._tickets.popleft()
            self._due_s = now + self._step_s
            done = CompletedTicket(ticket, num_samples=WORKER_BATCH, loss_sum=1.0, num_correct=1)
            self._say(WorkDone((done,), 1))

    def _say(self, message: FromWorker) -> None:
        if not self.is_done:
            self.control.send(message)

    def _obey(self, order: FromCoordinator) -> None:
        match order:
            case Connect() if self._spec.role == "worker" and not self._asked:
                self._asked = True
                self._say(RequestWork(WANT))
            case Work():
                if not self._tickets:
                    self._due_s = time.monotonic() + self._step_s
                self._tickets.extend(order.tickets)
            case Pause():
                self._say(Paused(b""))
            case Flush():
                self._version += 1
                self._say(Flushed(self._spec.rank, self._version))
            case ReadAndEvaluate():
                self._say(SnapshotTaken(order.look))
                if order.part is not None:
                    self._say(measured(order))
            case Save():
                self._say(saved(order))
            case Finish():
                self._say(self._last_words())
                self._finish()
            case _:
                pass  # introductions

    def _last_words(self) -> Done:
        if self._spec.role == "server":
            return Done(server=server_facts(self._spec.rank, self._version))
        if self._spec.role == "evaluator":
            return Done()
        zero = dict.fromkeys(("input_s", "compute_s", "communication_s", "wait_s", "apply_s"), 0.0)
        return Done(times=WorkTimes(sent_bytes=1, **zero))

    def _finish(self) -> None:
        self.is_done = True


def play(step_s: float, num_samples: int) -> None:
    """Play the processes whose specs come in line by line, until the input ends."""
    players: dict[str, Player] = {}
    arriving: deque[WorkerSpec] = deque()

    def read() -> None:
        for line in sys.stdin.buffer:
            arriving.append(WorkerSpec.model_validate_json(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    pause = threading.Event()
    while True:
        while arriving:
            spec = arriving.popleft()
            players[spec.process] = Player(spec, step_s=step_s, num_samples=num_samples)
            players[spec.process].start()
        for name, player in list(players.items()):
            player.tick()
            if player.is_done:
                del players[name]
                # Sends everything that is still to be sent.
                player.control.__exit__(None, None, None)
                print(name, flush=True)
        pause.wait(_TICK_S)


class PlayedGroup(WorkerGroup):
    """Processes that are played in a few others."""

    def __init__(self, command: Sequence[str], num_players: int) -> None:
        self._exits: dict[str, int | None] = {}
        self._hosts = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(num_players)
        ]
        self._threads = [
            threading.Thread(target=self._read, args=(host,), daemon=True) for host in self._hosts
        ]
        for thread in self._threads:
            thread.start()

    @property
    def cpu_s(self) -> float:
        """Processor time of the players."""
        times = [psutil.Process(host.pid).cpu_times() for host in self._hosts]
        return sum(one.user + one.system for one in times)

    def _read(self, host: subprocess.Popen[bytes]) -> None:
        assert host.stdout is not None
        for line in host.stdout:
            self._exits[line.decode().strip()] = 0

    def add(self, spec: WorkerSpec) -> None:
        """Have another process played."""
        host = self._hosts[len(self._exits) % len(self._hosts)]
        self._exits[spec.process] = None
        assert host.stdin is not None
        host.stdin.write(spec.model_dump_json().encode() + b"\n")
        host.stdin.flush()

    def poll(self) -> list[ProcessStatus]:
        """Who has said the last word."""
        return [ProcessStatus(name, code) for name, code in self._exits.items()]

    def log_tail(self, process: str, num_lines: int = 30) -> str:
        """Players print nothing."""
        return ""

    def kill(self, process: str) -> None:
        """Nobody is killed here; the run would end by it."""
        self._exits[process] = -9

    def stop(self, grace_s: float) -> None:
        """End the processes that play."""
        for host in self._hosts:
            assert host.stdin is not None
            with contextlib.suppress(OSError):
                host.stdin.close()
        for host, thread in zip(self._hosts, self._threads, strict=True):
            host.wait()
            thread.join()
            assert host.stdout is not None
            host.stdout.close()
        for name, code in self._exits.items():
            self._exits[name] = -15 if code is None else code


class PlayedLauncher(Launcher):
    """Has all processes played."""

    def __init__(self, request: LaunchRequest, command: Sequence[str]) -> None:
        super().__init__(request)
        self._command = command
        self.group: PlayedGroup | None = None

    def check(self) -> None:
        """Anything can be played."""

    def allocate(self, run: RunDir) -> Allocation:
        """Places on this machine."""
        roots = {"data_root": self.request.data_root, "cache_root": self.request.cache_root}
        return LocalAllocation(self.request.job, run_dir=run.path, **roots)

    def start(self, specs: Sequence[WorkerSpec]) -> PlayedGroup:
        """Start the players."""
        self.group = PlayedGroup(self._command, PLAYERS)
        for spec in specs:
            self.group.add(spec)
        return self.group


@dataclass(frozen=True)
class FleetFigures:
    """What one size cost."""

    workers: int
    startup_s: float
    train_s: float
    messages: int
    messages_per_s: float
    controller_cpu_share: float
    controller_mb: float
    grown_mb: float
    descriptors: int
    threads: int
    player_cpu_share: float
    log_bytes_per_s: float


class _Clock:
    """When the run entered its states, and how many messages passed."""

    def __init__(self) -> None:
        self.entered: dict[str, float] = {}
        self.messages = 0

    def __call__(self, moment: str) -> None:
        self.entered.setdefault(moment, time.monotonic())


CLOCK = _Clock()


def make_clock(process: str, control_address: str) -> _Clock:
    """The listener of the controller."""
    return CLOCK


def count_messages() -> None:
    """Count what the controller receives and sends."""
    receive, send = ControlServer.receive, ControlServer.send

    def counted_receive(self: ControlServer, timeout_s: float) -> Any:
        found = receive(self, timeout_s)
        CLOCK.messages += found is not None
        return found

    def counted_send(self: ControlServer, *arguments: Any, **settings: Any) -> Any:
        CLOCK.messages += 1
        return send(self, *arguments, **settings)

    ControlServer.receive = counted_receive  # type: ignore[method-assign]
    ControlServer.send = counted_send  # type: ignore[method-assign]


def fleet_job(workers: int, tickets: int) -> tuple[JobSpec, int]:
    """A job of two epochs, and the samples of each."""
    job = job_from_mapping(
        {
            "name": "fleet",
            "model": {"name": "mlp", "hidden": [32]},
            "data": "digits",
            "batch": {"global": WORKER_BATCH * workers},
            "epochs": 2,
            "workers": workers,
            "observe": {"interval_s": None},
            "strategy": {
                "name": "parameter_server",
                "consistency": "async",
                "dispatch": "dynamic",
                "servers": SERVERS,
                "min_shard_bytes": 1024,
            },
        }
    )
    return job, WORKER_BATCH * workers * tickets // 2


def measure(workers: int, *, tickets: int, step_s: float, folder: Path) -> FleetFigures:
    """Run one size to its end."""
    job, num_samples = fleet_job(workers, tickets)
    command = [sys.executable, __file__, "--play", "--step", str(step_s)]
    request = LaunchRequest(job, folder / "data", folder / "cache")
    launcher = PlayedLauncher(request, [*command, "--samples", str(num_samples)])
    run = RunDir.create(folder / "runs", "fleet")
    write_manifest(run, describe(job, data_root=folder, cache_root=folder))
    CLOCK.entered.clear()
    CLOCK.messages = 0
    own = psutil.Process()
    controller = Controller(
        RunRequest(job, run, folder / "data", folder / "cache"),
        launcher=launcher,
        allocation=launcher.allocate(run),
    )
    sizes: dict[str, float] = {}
    sampler = threading.Thread(target=_sample, args=(own, launcher, sizes), daemon=True)
    sampler.start()
    began, cpu = time.monotonic(), own.cpu_times()
    controller.run()
    ended, spent = time.monotonic(), own.cpu_times()
    train_s = ended - CLOCK.entered["Training"]
    busy_s = spent.user + spent.system - cpu.user - cpu.system
    return FleetFigures(
        workers=workers,
        startup_s=CLOCK.entered["Training"] - began,
        train_s=train_s,
        messages=CLOCK.messages,
        messages_per_s=CLOCK.messages / (ended - began),
        controller_cpu_share=busy_s / (ended - began),
        controller_mb=sizes["rss"] / 1e6,
        grown_mb=(sizes["rss"] - sizes["first_rss"]) / 1e6,
        descriptors=int(sizes["fds"]),
        threads=int(sizes["threads"]),
        player_cpu_share=sizes.get("player_cpu", 0.0) / (ended - began),
        log_bytes_per_s=run.events_path("controller").stat().st_size / (ended - began),
    )


def _sample(own: psutil.Process, launcher: PlayedLauncher, sizes: dict[str, float]) -> None:
    """Note the largest sizes of the controller while it runs."""
    pause = threading.Event()
    sizes["first_rss"] = own.memory_info().rss
    while True:
        now = {
            "rss": own.memory_info().rss,
            "fds": own.num_fds(),
            "threads": own.num_threads(),
        }
        for name, size in now.items():
            sizes[name] = max(sizes.get(name, 0), size)
        with contextlib.suppress(psutil.Error):
            if launcher.group is not None:
                sizes["player_cpu"] = launcher.group.cpu_s
        pause.wait(0.2)


def print_table(figures: Sequence[FleetFigures]) -> None:
    """One row for each size."""
    head = (
        *("workers", "start-up s", "training s", "messages", "per s"),
        *("controller CPU", "MB", "grown MB", "fds", "threads", "players CPU"),
    )
    print(("{:>8} {:>11} {:>11} {:>9} {:>7} {:>15} {:>6} {:>9} {:>5} {:>8} {:>12}").format(*head))
    for one in figures:
        print(
            f"{one.workers:8} {one.startup_s:11.2f} {one.train_s:11.1f} {one.messages:9,}"
            f" {one.messages_per_s:7,.0f} {one.controller_cpu_share:15.0%}"
            f" {one.controller_mb:6.0f} {one.grown_mb:9.0f} {one.descriptors:5} {one.threads:8}"
            f" {one.player_cpu_share:12.0%}"
        )


def main() -> None:
    """Measure all sizes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--tickets", type=int, default=20, help="of each worker")
    parser.add_argument("--step", type=float, default=0.5, help="seconds for a ticket")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        play(arguments.step, arguments.samples)
        return
    count_messages()
    # Under the name by which the listener is imported, not __main__'s.
    sys.modules["fleet"] = sys.modules["__main__"]
    plant("fleet:make_clock", process="controller")
    figures = []
    for workers in arguments.workers:
        with tempfile.TemporaryDirectory() as name:
            figures.append(
                measure(
                    workers, tickets=arguments.tickets, step_s=arguments.step, folder=Path(name)
                )
            )
    uproot()
    print_table(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in figures], indent=1))


if __name__ == "__main__":
    main()
