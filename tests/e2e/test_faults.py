"""What may befall a run, each as it happens: real processes, real signals, a real full disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from data_files import write_mnist
from phalanx.records.events import Decision, Failure, Warned
from phalanx.records.rundir import RunDir
from support.runs import ENDLESS, Place, Training, events_of, is_running
from support.waiting import wait_until
from support.warm import running_fork_server, starting

# The product's promise, from the fault to its being noticed.
NOTICED_S = 10.0


def cause_and_moment(run: RunDir) -> tuple[Failure, float]:
    """The controller's first failure, and when it was noted on the machine's monotonic clock."""
    found = [event for event in events_of(run, "controller") if isinstance(event, Failure)]
    return found[0], found[0].mono_s


def last_line(errors: str) -> str:
    return errors.strip().splitlines()[-1]


def assert_ended(training: Training, pids: list[int], state: str) -> None:
    """Every process is gone and the run directory says what became of the run."""
    assert not any(map(is_running, pids))
    status = training.run.read_status()
    assert status.state == state
    assert status.cause
    assert training.run.read_summary() is None
    assert any(isinstance(event, Decision) for event in events_of(training.run, "controller"))


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (signal.SIGKILL, "worker-1 was killed by SIGKILL"),
        (signal.SIGSEGV, "worker-1 was killed by SIGSEGV"),
        (signal.SIGSTOP, "worker-1 is frozen: no sign of life for"),
    ],
    ids=["killed", "crashed", "frozen"],
)
def test_a_lost_worker_is_named_within_ten_seconds_and_ends_the_run(
    place: Place, number: signal.Signals, sentence: str, either_start: str
) -> None:
    place.write_job(ENDLESS)
    with place.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids()
        struck = time.monotonic()
        os.kill(pids[1], number)
        code, errors = training.end()
        assert code == 4
        assert last_line(errors).startswith(f"phalanx: {sentence}")
        assert_ended(training, pids, "failed")
        status = training.run.read_status()
        assert status.rank == 1
        failure, noticed = cause_and_moment(training.run)
    assert failure.rank == 1
    assert failure.cause.startswith(sentence)
    assert 0 < noticed - struck < NOTICED_S


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_lost_worker_is_named_within_ten_seconds_without_a_spare_core(
    place: Place, number: signal.Signals
) -> None:
    """Many more workers than this machine has cores, all of them training."""
    num_workers = 12
    place.write_job(ENDLESS | {"workers": num_workers, "threads": 1, "batch": {"global": 96}})
    with place.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids(num_workers)
        struck = time.monotonic()
        os.kill(pids[7], number)
        code, _ = training.end()
        assert code == 4
        assert_ended(training, pids, "failed")
        failure, noticed = cause_and_moment(training.run)
    assert failure.rank == 7
    assert 0 < noticed - struck < NOTICED_S


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_asked_to_end_does_so_in_order(
    place: Place, number: signal.Signals, code: int, either_start: str
) -> None:
    place.write_job(ENDLESS)
    with place.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids()
        listening = {
            pid: [
                connection.laddr.ip
                for connection in psutil.Process(pid).net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
            for pid in (training.process.pid, *pids)
        }
        shared_memory = [
            line
            for pid in pids
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if "/dev/shm" in line
        ]
        training.process.send_signal(number)
        found, errors = training.end()
        assert found == code
        assert "phalanx train --resume" in last_line(errors)
        assert_ended(training, pids, "interrupted")
    # The workers of a local run are nobody else's business.
    assert all(listening.values()), "somebody must listen, or nothing was looked at"
    assert {address for addresses in listening.values() for address in addresses} == {"127.0.0.1"}
    assert shared_memory == []


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["allreduce", "parameter_server"])
def test_a_suspended_controller_loses_nobody_and_says_what_happened(
    place: Place, strategy: str
) -> None:
    heartbeat_s = 3.0
    place.write_job(ENDLESS | {"strategy": strategy, "deadlines": {"heartbeat_s": heartbeat_s}})
    with place.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids()
        training.process.send_signal(signal.SIGSTOP)
        # Twice as long as a process may be silent.
        threading.Event().wait(2 * heartbeat_s)
        training.process.send_signal(signal.SIGCONT)
        said = wait_until(
            lambda: [
                event.message
                for event in events_of(training.run, "controller")
                if isinstance(event, Warned)
            ],
            "the controller to notice",
        )
        # A frozen worker would be found by now.
        threading.Event().wait(heartbeat_s)
        assert all(map(is_running, pids))
        training.process.send_signal(signal.SIGINT)
        code, _ = training.end()
    assert code == 130
    assert "the controller did not run for" in said[0]
    events = events_of(training.run, "controller")
    assert not [event for event in events if isinstance(event, Failure)]


def test_a_killed_controller_leaves_no_process(place: Place, either_start: str) -> None:
    place.write_job(ENDLESS)
    with place.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids()
        training.process.kill()
        training.end()
        wait_until(lambda: not any(map(is_running, pids)), "the workers to end themselves")


def test_a_killed_fork_server_is_noticed_as_the_loss_of_its_workers(place: Place) -> None:
    place.write_job(ENDLESS)
    with running_fork_server() as server, starting(server.address):
        with place.start("job.yaml", "--quiet") as training:
            pids = training.worker_pids()
            assert server.pid is not None
            assert {psutil.Process(pid).ppid() for pid in pids} == {server.pid}
            os.kill(server.pid, signal.SIGKILL)
            code, errors = training.end()
            assert code == 4
            assert "was killed by SIGKILL" in last_line(errors)
            assert_ended(training, pids, "failed")
        # Whoever comes later is told of no fork server, and starts cold.
        job = {key: value for key, value in ENDLESS.items() if key != "epochs"} | {"epochs": 1}
        assert place.summary(place.write_job(job))["state"] == "finished"


@pytest.fixture
def small_disk(place: Place, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A file system of a few kilobytes for the run directories."""
    place.runs.mkdir()
    size = f"size={request.param}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place.runs)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a full disk needs a file system of its own: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place.runs)], check=True, timeout=60)


@pytest.mark.parametrize(
    ("small_disk", "checkpoint", "what"),
    [
        # Room for one checkpoint of about 150 kB, not for a second one beside it. What the logs
        # need until then fits many times.
        ("256k", {"best": None, "keep": 1}, "samples-"),
        # No checkpoints: the logs fill the disk.
        ("64k", {"best": None, "every_epochs": None}, "event log"),
    ],
    ids=["checkpoint", "log"],
    indirect=["small_disk"],
)
def test_a_full_disk_ends_the_run_with_its_name(
    small_disk: Place, checkpoint: dict[str, object], what: str
) -> None:
    model = {"name": "mlp", "hidden": [512 if what == "samples-" else 8]}
    small_disk.write_job(ENDLESS | {"model": model, "checkpoint": checkpoint})
    with small_disk.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids()
        code, errors = training.end()
        assert not any(map(is_running, pids))
        status = training.run.read_status()
    sentence = last_line(errors)
    assert code == 6, errors
    assert sentence.startswith("phalanx: worker-")
    assert what in sentence
    assert "No space left on device; free some space or choose another directory" in sentence
    assert "Traceback" not in errors
    assert status.state == "failed"
    assert what in str(status.cause)
    # Nothing half-written is left beside what was whole.
    assert not list(small_disk.runs.glob("*/checkpoints/.*"))


def test_a_corrupt_data_file_is_named(place: Place) -> None:
    write_mnist(place.data / "mnist", num_train=400, num_test=40)
    path = place.data / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1000])
    place.write_job(ENDLESS | {"data": "mnist"})
    done = place.run("train", "job.yaml", "--quiet")
    assert done.returncode == 2
    assert str(path) in last_line(done.stderr)
    assert "Traceback" not in done.stderr
    [run] = place.runs.iterdir()
    assert RunDir(run).read_status().state == "failed"


# The first process to come to its fifth step fails; the others only lose a peer.
FAULTY_MODEL = """
import os
from torch import nn

class Faulty(nn.Linear):
    calls = 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls == 5:
            try:
                os.close(os.open("first", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                raise KIND("the user's own mistake")
        return super().forward(inputs.flatten(1))

def build(num_classes):
    return Faulty(64, num_classes)
"""


@pytest.mark.parametrize(("kind", "workers"), [("ValueError", 2), ("RuntimeError", 1)])
def test_an_error_in_the_users_model_shows_its_traceback_and_rank(
    place: Place, kind: str, workers: int
) -> None:
    (place.folder / "my_nets.py").write_text(FAULTY_MODEL.replace("KIND", kind))
    place.write_job(ENDLESS | {"model": "my_nets:build", "workers": workers})
    done = place.run("train", "job.yaml", "--quiet")
    assert done.returncode == 1
    found = re.match(
        r"phalanx: worker-(\d) failed: .*the user's own mistake", last_line(done.stderr)
    )
    assert found
    assert f"{kind}: the user's own mistake" in done.stderr
    assert 'my_nets.py", line 16, in forward' in done.stderr
    [run] = [RunDir(path) for path in place.runs.iterdir()]
    assert run.read_status().rank == int(found[1])
    own = [event for event in events_of(run, f"worker-{found[1]}") if isinstance(event, Failure)]
    assert "the user's own mistake" in own[0].cause
