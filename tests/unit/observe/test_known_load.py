"""Monitoring against a known load: a child process whose own counters say what it did.

The child writes down what the kernel charged to it, what it sent and what it allocated; the real
sampler measures it and the real reader makes figures of the samples. Nothing is assumed about how
fast the machine is or how busy.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from phalanx.records.log import read_logs
from phalanx.records.usage import ResourceUse, host_uses, process_uses

LIMIT_S = 100
MEBIBYTE = 1 << 20

CHILD = """
import json, os, socket, sys, threading, time
from pathlib import Path

from phalanx.observe.sampler import Sampler
from phalanx.records.log import EventLog
from phalanx.spec.observe import ObserveSpec

{load}

log = EventLog(Path(sys.argv[1]) / "worker-0.jsonl")
with log, Sampler(ObserveSpec(interval_s=0.1), log.record, watch_host=True) as sampler:
    prepared = prepare()
    sampler.mark("begin")
    begin, begin_cpu = time.monotonic(), os.times()
    truth = work(prepared)
    end_cpu, duration = os.times(), time.monotonic() - begin
    sampler.mark("end")
    # What comes after the window must not count.
    held = bytearray(os.urandom(4096)) * 30_000
    after = time.process_time() + 0.5
    while time.process_time() < after:
        pass
print(json.dumps(dict(
    truth,
    duration_s=duration,
    cpu_user_s=end_cpu.user - begin_cpu.user,
    cpu_system_s=end_cpu.system - begin_cpu.system,
)))
"""


class Truth(msgspec.Struct):
    """What the child says about itself."""

    duration_s: float
    cpu_user_s: float
    cpu_system_s: float
    num_bytes: int = 0


def measure(folder: Path, load: str) -> tuple[Truth, ResourceUse, ResourceUse]:
    """Run a load; its own account, and what was measured of it and of the machine."""
    ended = subprocess.run(
        [sys.executable, "-c", CHILD.format(load=load), str(folder)],
        capture_output=True,
        check=True,
        timeout=LIMIT_S,
    )
    truth = msgspec.json.decode(ended.stdout, type=Truth)
    logs = read_logs(folder)
    (machine,) = host_uses(logs).values()
    return truth, process_uses(logs)["worker-0"], machine


BUSY = """
def prepare():
    return None

def work(prepared):
    # Burns until its own processor time has reached the share of the time on the wall.
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < 4.0:
        if time.process_time() - base < {share} * passed:
            for _ in range(1000):
                pass
        else:
            time.sleep(0.001)
    return dict()

base = time.process_time()
"""


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_the_share_of_a_busy_loop(tmp_path: Path, share: float) -> None:
    truth, process, machine = measure(tmp_path, BUSY.format(share=share))
    used_s = truth.cpu_user_s + truth.cpu_system_s
    assert process.duration_s == pytest.approx(truth.duration_s, rel=0.05)
    assert process.cpu_s == pytest.approx(used_s, rel=0.05)
    assert process.cpu_cores == pytest.approx(used_s / truth.duration_s, rel=0.05)
    assert process.cpu_share is not None
    assert machine.cores is not None
    assert process.cpu_share == pytest.approx(used_s / truth.duration_s / machine.cores, rel=0.05)
    # Others use the machine as well, so it did at least what this process did. The kernel counts
    # the machine by its clock's ticks, and short bursts of work fall between them: hence a tenth.
    assert machine.cpu_s >= 0.9 * used_s - 0.1
    assert max(machine.core_shares) <= 1.05
    assert sum(machine.core_shares) == pytest.approx(machine.cpu_cores, rel=0.01)


THREADS_AND_CHILDREN = """
def prepare():
    return None

def burn():
    until = time.thread_time() + 0.6
    while time.thread_time() < until:
        pass

def work(prepared):
    import subprocess
    code = "import time\\nwhile time.process_time() < 1.0: pass"
    child = subprocess.Popen([sys.executable, "-c", code])
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
    _, _, used = os.wait4(child.pid, 0)
    child.returncode = 0
    return dict(num_bytes=int(1e6 * (used.ru_utime + used.ru_stime)))
"""


def test_threads_and_children_count(tmp_path: Path) -> None:
    truth, process, _ = measure(tmp_path, THREADS_AND_CHILDREN)
    children_s = truth.num_bytes / 1e6
    assert children_s >= 1.0
    own_s = truth.cpu_user_s + truth.cpu_system_s
    assert process.cpu_s == pytest.approx(own_s + children_s, rel=0.05)


TRANSFER = """
import ctypes, fcntl, struct

NEW_NET, NEW_USER, SET_FLAGS, UP = 0x40000000, 0x10000000, 0x8914, 1

def isolate():
    # A network of its own, where nobody else talks; without the right to it, the common one.
    unshare = ctypes.CDLL(None).unshare
    if unshare(NEW_NET) and unshare(NEW_NET | NEW_USER):
        return
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))

isolate()
NUM_BYTES = 256 << 20
CHUNK = bytes(1 << 20)

def prepare():
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    return listener, sender, receiver

def work(prepared):
    listener, sender, receiver = prepared
    got = 0
    def receive():
        nonlocal got
        while data := receiver.recv(1 << 20):
            got += len(data)
    thread = threading.Thread(target=receive)
    thread.start()
    for _ in range(NUM_BYTES // len(CHUNK)):
        sender.sendall(CHUNK)
    sender.close()
    thread.join()
    receiver.close()
    listener.close()
    return dict(num_bytes=got)
"""


def test_a_transfer_through_the_loopback_counts_once_in_each_direction(tmp_path: Path) -> None:
    truth, _, machine = measure(tmp_path, TRANSFER)
    assert truth.num_bytes == 256 * MEBIBYTE
    # The headers of the packets come on top.
    assert machine.sent_bytes["lo"] == pytest.approx(truth.num_bytes, rel=0.05)
    assert machine.received_bytes["lo"] == pytest.approx(truth.num_bytes, rel=0.05)


ALLOCATION = """
def prepare():
    return None

def work(prepared):
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    held = bytearray(300 << 20)
    for start in range(0, len(held), 4096):
        held[start] = 1
    # Shorter than any interval between two samples.
    del held
    return dict(num_bytes=before + (300 << 20))
"""


def test_an_allocation_is_seen_however_short_it_was(tmp_path: Path) -> None:
    truth, process, machine = measure(tmp_path, ALLOCATION)
    assert process.memory_peak_bytes == pytest.approx(truth.num_bytes, rel=0.05)
    assert machine.memory_total_bytes is not None
    assert machine.memory_peak_bytes < machine.memory_total_bytes


WRITING = """
def prepare():
    return None

def work(prepared):
    path = Path(sys.argv[1]) / "data"
    with path.open("wb") as file:
        for _ in range(64):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
    return dict(num_bytes=64 << 20)
"""


def filesystem_of(path: Path) -> str:
    """Type of the file system that a path is on, such as ext4 or tmpfs."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(above, key=lambda one: len(one[0]))[1]


def test_bytes_written_to_a_disk(tmp_path: Path) -> None:
    truth, process, _ = measure(tmp_path, WRITING)
    if filesystem_of(tmp_path) in ("tmpfs", "ramfs"):
        assert process.written_bytes == 0, "nothing reached a disk"
        return
    assert process.written_bytes == pytest.approx(truth.num_bytes, rel=0.05)
