"""What runs on a machine of the pool while it is probed: looks, measures, answers.

`pool.agent` sends this very file over ssh, so nothing needs to be installed there and both sides
always are of the same version. Hence only the standard library is imported, and torch where it is
present; hence also the few lines that repeat what `observe` knows. Requests come as one JSON
object per line, answers go out likewise behind a marker, because login scripts may print. The
process ends when its input closes or its time is over, whichever comes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import math
import os
import platform
import select
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

MARKER = "@phalanx@"
TOKEN_LENGTH = 32
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "avx512_vnni", "asimd", "sve", "bf16")
_LIFETIME_S = 300
_CONNECT_S = 2.0
_GREETING_S = 5.0
_NUM_ECHOES = 40
# The first part of a transfer is TCP finding its speed, and what buffers swallow at once.
_WARM_UP_SHARE = 0.3
_NUM_SPANS = 10
_BLOCK = b"\0" * (1 << 18)
_GEMM_SIZE = 768
_UNLIMITED_BYTES = 1 << 60
_SIOCGIFADDR = 0x8915


def main() -> None:
    """Answer requests until the input ends."""
    signal.alarm(_LIFETIME_S)
    listener = Listener()
    actions: dict[str, Callable[[dict[str, Any]], object]] = {
        "clock": lambda request: {"time_s": time.time()},
        "describe": lambda request: describe(str(request["workdir"]), bool(request["quick"])),
        "speed": lambda request: measure_speed(float(request["seconds"])),
        "listen": lambda request: listener.open(str(request["token"])),
        "contact": lambda request: contact(
            [str(one) for one in request["hosts"]],
            int(request["port"]),
            str(request["token"]),
            float(request["seconds"]),
        ),
    }
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            break
        request = json.loads(line)
        try:
            answer = {"id": request.get("id"), "ok": actions[request["do"]](request)}
        except Exception as error:  # the process boundary: the asker is told, and may go on
            answer = {"id": request.get("id"), "error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(MARKER + json.dumps(answer) + "\n")
        sys.stdout.flush()
    listener.close()


def describe(workdir: str, quick: bool) -> dict[str, object]:
    """Everything that is found by looking; if quick, without importing torch or using the disk."""
    present = set(_cpu_line("flags", "features").split())
    affinity = len(os.sched_getaffinity(0))
    total_bytes, free_bytes = _memory()
    place = Path(workdir).expanduser()
    while not place.is_dir():
        place = place.parent
    torch = _version("torch")
    return {
        "host": socket.gethostname(),
        "system": _system(),
        "kernel": platform.release(),
        "cpu": _cpu_line("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in FLAGS if flag in present],
        "logical_cores": os.cpu_count() or 1,
        "usable_cores": affinity,
        "quota_cores": _cpu_quota(),
        "memory_total_bytes": total_bytes,
        "memory_free_bytes": free_bytes,
        "memory_limit_bytes": _memory_limit(),
        "disk_free_bytes": shutil.disk_usage(place).free,
        "disk_write_bytes_per_s": None if quick else _disk_speed(place),
        "python": platform.python_version(),
        "torch": torch,
        "phalanx": _version("phalanx"),
        "gpus": None if quick else _gpus(torch is not None),
        "load_1min": os.getloadavg()[0],
        "addresses": _addresses(),
    }


def measure_speed(seconds: float) -> dict[str, object] | None:
    """GEMM and convolution in GFLOP/s on one thread and on all; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    quota = _cpu_quota()
    usable = len(os.sched_getaffinity(0))
    threads = max(1, math.ceil(min(usable, quota) if quota else usable))
    torch.set_num_threads(1)
    found: dict[str, object] = {
        "threads": threads,
        "gemm_1_gflops": _gemm(seconds, torch.float32)[0],
        "conv_1_gflops": _conv(seconds)[0],
    }
    torch.set_num_threads(threads)
    found["gemm_all_gflops"], found["cores_delivered"] = _gemm(seconds, torch.float32)
    found["conv_all_gflops"] = _conv(seconds)[0]
    found["bf16_gemm_all_gflops"] = _gemm(seconds, torch.bfloat16)[0]
    return found


def _gemm(seconds: float, kind: torch.dtype) -> tuple[float, float]:
    import torch

    left = torch.ones(_GEMM_SIZE, _GEMM_SIZE, dtype=kind)
    return _rate(lambda: torch.mm(left, left), 2 * _GEMM_SIZE**3, seconds)


def _conv(seconds: float) -> tuple[float, float]:
    import torch

    layer = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)
    images = torch.ones(8, 64, 32, 32)
    with torch.no_grad():
        return _rate(lambda: layer(images), 2 * 64 * 64 * 9 * 32 * 32 * 8, seconds)


def _rate(work: Callable[[], object], flops: int, seconds: float) -> tuple[float, float]:
    """GFLOP/s, and processor time per time, over at least two calls after one to warm up."""
    work()
    begin, used, count = time.perf_counter(), time.process_time(), 0
    while count < 2 or time.perf_counter() - begin < seconds:
        work()
        count += 1
    elapsed = time.perf_counter() - begin
    return count * flops / elapsed / 1e9, (time.process_time() - used) / elapsed


class Listener:
    """Lets other machines of the pool measure the way to this one; strangers are turned away."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._token = b""

    def open(self, token: str) -> dict[str, object]:
        """Accept connections that begin with the token, one at a time, in a thread."""
        self._token = token.encode()
        if len(self._token) != TOKEN_LENGTH:
            raise ValueError("the token has the wrong length")
        if self._socket is None:
            try:
                self._socket = socket.create_server(
                    ("", 0), family=socket.AF_INET6, dualstack_ipv6=True
                )
            except (OSError, ValueError):
                self._socket = socket.create_server(("", 0))
            threading.Thread(target=self._serve, args=(self._socket,), daemon=True).start()
        return {"port": self._socket.getsockname()[1]}

    def close(self) -> None:
        """Stop listening; the thread ends with the process."""
        if self._socket is not None:
            self._socket.close()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError, ValueError, struct.error), connection:
                connection.settimeout(_GREETING_S)
                greeting = _receive(connection, TOKEN_LENGTH + 9)
                if not hmac.compare_digest(greeting[:TOKEN_LENGTH], self._token):
                    continue
                kind, seconds = struct.unpack("!cd", greeting[TOKEN_LENGTH:])
                if kind == b"e":
                    _echo(connection)
                else:
                    _swallow(connection, min(seconds, 10.0))


def _echo(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        data = connection.recv(64)
        if not data:
            return
        connection.sendall(data)


def _swallow(connection: socket.socket, seconds: float) -> None:
    """Receive for some seconds and tell the typical speed after warming up."""
    buffer = bytearray(1 << 20)
    connection.recv_into(buffer)
    begin = time.perf_counter()
    since, num_bytes, speeds = None, 0, []
    while True:
        got = connection.recv_into(buffer)
        now = time.perf_counter()
        if not got:
            return
        if since is None:
            if now - begin >= seconds * _WARM_UP_SHARE:
                since = now
            continue
        num_bytes += got
        if now - since >= seconds * (1 - _WARM_UP_SHARE) / _NUM_SPANS:
            speeds.append(num_bytes / (now - since))
            since, num_bytes = now, 0
        if now - begin >= seconds and speeds:
            break
    # The median, because one lost packet stops a transfer for a fifth of a second.
    connection.sendall(struct.pack("!d", statistics.median(speeds)))


def contact(hosts: list[str], port: int, token: str, seconds: float) -> dict[str, object]:
    """Measure round trip and speed of the way to another machine of the pool."""
    host, trips = _round_trips(hosts, port, token.encode())
    with _greet(host, port, token.encode(), b"s", seconds) as connection:
        bytes_per_s = _pour(connection, seconds)
    return {
        "address": host,
        "round_trip_s": statistics.median(trips),
        "round_trip_min_s": min(trips),
        "bytes_per_s": bytes_per_s,
    }


def _round_trips(hosts: list[str], port: int, token: bytes) -> tuple[str, list[float]]:
    reasons = []
    for host in hosts:
        try:
            with _greet(host, port, token, b"e", 0.0) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                trips = []
                for _ in range(_NUM_ECHOES):
                    begin = time.perf_counter()
                    connection.sendall(b".")
                    _receive(connection, 1)
                    trips.append(time.perf_counter() - begin)
                return host, trips[5:]
        except OSError as error:
            reasons.append(f"{host} port {port}: {error.strerror or error}")
    raise ConnectionError("; ".join(reasons) or "no address is known")


def _pour(connection: socket.socket, seconds: float) -> float:
    """Send until the other side has seen enough and answers."""
    connection.setblocking(False)
    giving_up = time.monotonic() + seconds + 10.0
    while time.monotonic() < giving_up:
        readable, writable, _ = select.select([connection], [connection], [], 1.0)
        if readable:
            connection.settimeout(_GREETING_S)
            return float(struct.unpack("!d", _receive(connection, 8))[0])
        if writable:
            with contextlib.suppress(BlockingIOError):
                connection.send(_BLOCK)
    raise TimeoutError("the other side did not answer")


def _greet(host: str, port: int, token: bytes, kind: bytes, seconds: float) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=_CONNECT_S)
    connection.settimeout(_GREETING_S)
    connection.sendall(token + struct.pack("!cd", kind, seconds))
    return connection


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        more = connection.recv(num_bytes - len(data))
        if not more:
            raise ConnectionError("the other side closed the connection")
        data += more
    return data


def _cpu_line(*names: str) -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in names:
            return value.strip()
    return ""


def _memory() -> tuple[int, int]:
    rows = {}
    for line in _text("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        rows[name] = int(value.split()[0]) * 1024
    free_bytes = rows.get("MemAvailable", rows["MemFree"])
    limit, used = _memory_limit(), _memory_used()
    if limit is not None and used is not None:
        free_bytes = min(free_bytes, max(0, limit - used))
    return rows["MemTotal"], free_bytes


def _cpu_quota() -> float | None:
    found = []
    for folder in _groups(""):
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            found.append(int(words[0]) / int(words[1]))
    for folder in _groups("cpu"):
        quota = _text(folder / "cpu.cfs_quota_us")
        period = _text(folder / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            found.append(int(quota) / int(period))
    return min(found) if found else None


def _memory_limit() -> int | None:
    texts = [_text(folder / "memory.max") for folder in _groups("")]
    texts += [_text(folder / "memory.limit_in_bytes") for folder in _groups("memory")]
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if limit < _UNLIMITED_BYTES), default=None)


def _memory_used() -> int | None:
    texts = [_text(folder / "memory.current") for folder in _groups("")]
    texts += [_text(folder / "memory.usage_in_bytes") for folder in _groups("memory")]
    return next((int(text) for text in texts if text.isdigit()), None)


def _groups(controller: str) -> list[Path]:
    """This process's control group and all around it; an empty name stands for version 2."""
    top = Path("/sys/fs/cgroup") / controller
    found = []
    for line in _text("/proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(",") and (controller or number == "0"):
            folder = top / path.lstrip("/")
            while folder != top:
                found.append(folder)
                folder = folder.parent
    return [*found, top]


def _disk_speed(place: Path) -> float | None:
    """Bytes per second of writing 16 MiB through to the disk; None where nothing may be written."""
    size_bytes = 1 << 24
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".phalanx-probe-") as file:
            begin = time.perf_counter()
            file.write(os.urandom(size_bytes))
            file.flush()
            os.fsync(file.fileno())
            return size_bytes / (time.perf_counter() - begin)
    except OSError:
        return None


def _gpus(has_torch: bool) -> list[str]:
    """The graphics cards that torch can compute on, or, without torch, that the driver lists."""
    if has_torch:
        import torch

        if not torch.cuda.is_available():
            return []
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.decode().splitlines() if line.strip()]


def _addresses() -> list[str]:
    """IPv4 addresses by which others may reach this machine; the one that ssh came to is first."""
    found = []
    came_to = os.environ.get("SSH_CONNECTION", "").split()  # noqa: TID251 (sshd's message)
    if len(came_to) == 4:
        found.append(came_to[2])
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            request = struct.pack("256s", name[:15].encode())
            answer = fcntl.ioctl(one.fileno(), _SIOCGIFADDR, request)
            found.append(socket.inet_ntoa(answer[20:24]))
    usable = [one for one in found if not one.startswith("127.") and one != "::1"]
    return list(dict.fromkeys(usable))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _system() -> str:
    for line in _text("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
