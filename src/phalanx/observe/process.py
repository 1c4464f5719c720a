"""Measure the resource use of this process and its children.

Reads /proc and the system's accounting. Unreadable entries are left out, never an error, because
measuring must not end a run.
"""

from __future__ import annotations

import os
import resource
import socket
import stat
import struct
from pathlib import Path

from phalanx.cgroup import read_text
from phalanx.records.events import ProcessSample

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessMeter:
    """Meter of the process that it is constructed in.

    Processor time is what the kernel charges to all threads, ended ones included, to the
    microsecond. Children count, except in the controller, whose workers measure themselves: while
    they run to a hundredth of a second, and permanently once they have been waited for. Their
    resident memory is added, so pages shared with this process count twice.
    """

    def __init__(self, *, with_children: bool = True) -> None:
        self._with_children = with_children
        self._host = socket.gethostname()
        self._pid = os.getpid()
        self._folder = Path("/proc") / str(self._pid)
        self._peak_bytes = 0

    def read(self) -> ProcessSample:
        """Return a sample of this moment."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        user_s, system_s = own.ru_utime, own.ru_stime
        if self._with_children:
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            user_s += ended.ru_utime
            system_s += ended.ru_stime
        status = _fields(self._folder / "status")
        memory = 1024 * _number(status.get("VmRSS"))
        traffic = _traffic(self._folder)
        for child in self._children() if self._with_children else ():
            stat = _stat(child)
            if stat is not None:
                # utime, stime and resident pages, indexed from the state field after the name.
                user_s += int(stat[11]) / _TICKS_PER_S
                system_s += int(stat[12]) / _TICKS_PER_S
                memory += int(stat[21]) * _PAGE_BYTES
                traffic = _add(traffic, _traffic(child))
        self._peak_bytes = max(self._peak_bytes, memory, 1024 * _number(status.get("VmHWM")))
        return ProcessSample(
            pid=self._pid,
            host=self._host,
            cpu_user_s=user_s,
            cpu_system_s=system_s,
            memory_bytes=memory,
            memory_peak_bytes=self._peak_bytes,
            threads=_number(status.get("Threads")),
            read_bytes=traffic[0] if traffic else None,
            written_bytes=traffic[1] if traffic else None,
        )

    def _children(self) -> list[Path]:
        """Return all descendants of this process that the kernel lists."""
        found: list[Path] = []
        waiting = [self._folder]
        while waiting:
            for task in _listing(waiting.pop() / "task"):
                for pid in read_text(task / "children").split():
                    child = self._folder.parent / pid
                    found.append(child)
                    waiting.append(child)
        return found


def _traffic(folder: Path) -> tuple[int, int] | None:
    """Return the bytes read from and written to disks, or None if unknown."""
    fields = _fields(folder / "io")
    if "read_bytes" not in fields:
        return None
    return _number(fields.get("read_bytes")), _number(fields.get("write_bytes"))


def _add(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    if one is None or other is None:
        return one
    return one[0] + other[0], one[1] + other[1]


def _stat(folder: Path) -> list[str] | None:
    """Return the fields after the name in parentheses, which may itself hold spaces."""
    words = read_text(folder / "stat").rpartition(")")[2].split()
    return words if len(words) > 21 else None


def _fields(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in read_text(path).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _number(value: str | None) -> int:
    words = (value or "").split()
    return int(words[0]) if words and words[0].isdigit() else 0


def _listing(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


# Offset of tcpi_bytes_acked in struct tcp_info, <linux/tcp.h>; acknowledged bytes were sent once.
_BYTES_ACKED = 120
_INFO_BYTES = 232


def stream_bytes() -> int | None:
    """Return the bytes sent by open TCP connections of this process; None: unknown."""
    total = 0
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return None
    for descriptor in descriptors:
        total += _acknowledged(descriptor)
    return total


def _acknowledged(descriptor: int) -> int:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as one:
            if one.type != socket.SOCK_STREAM or one.family == socket.AF_UNIX:
                return 0
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        # Closed meanwhile, or a listening socket.
        return 0
    if len(info) < _BYTES_ACKED + 8:
        return 0
    (acknowledged,) = struct.unpack_from("<Q", info, _BYTES_ACKED)
    # The kernel counts the opening of a connection as one byte.
    return max(0, int(acknowledged) - 1)
