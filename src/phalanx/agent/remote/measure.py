"""Measure the compute speed of this machine and its links to others.

Part of the agent; torch is imported where it is installed.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import select
import socket
import statistics
import struct
import threading
import time
from typing import TYPE_CHECKING

from phalanx.cgroup import cpu_quota

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

TOKEN_LENGTH = 32
_CONNECT_S = 2.0
_GREETING_S = 5.0
_NUM_ECHOES = 40
# Discard the start of a transfer: TCP slow start, and bytes that only fill buffers.
_WARM_UP_SHARE = 0.3
_NUM_SPANS = 10
_BLOCK = b"\0" * (1 << 18)
_GEMM_SIZE = 768
# All machines of a pool may call at once.
_BACKLOG = 1024


def measure_speed(seconds: float) -> dict[str, object] | None:
    """Measure GEMM and convolution in GFLOP/s on one thread and on all; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    quota = cpu_quota()
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
    """Return GFLOP/s and processor time over elapsed time, over two or more calls after warm-up."""
    work()
    begin, used, count = time.perf_counter(), time.process_time(), 0
    while count < 2 or time.perf_counter() - begin < seconds:
        work()
        count += 1
    elapsed = time.perf_counter() - begin
    return count * flops / elapsed / 1e9, (time.process_time() - used) / elapsed


class Listener:
    """Server for link measurements by other machines; connections without the token are refused.

    The socket is open from `open` to `close`, or to the end of the process.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._token = b""

    def open(self, token: str) -> int:
        """Serve connections that begin with the token, one at a time, in a thread.

        Returns:
            The port.
        """
        self._token = token.encode()
        if len(self._token) != TOKEN_LENGTH:
            raise ValueError("the token has the wrong length")
        if self._socket is None:
            try:
                self._socket = socket.create_server(
                    ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
                )
            except (OSError, ValueError):
                self._socket = socket.create_server(("", 0), backlog=_BACKLOG)
            threading.Thread(target=self._serve, args=(self._socket,), daemon=True).start()
        port: int = self._socket.getsockname()[1]
        return port

    def close(self) -> None:
        """Close the port; the thread ends. May be called without `open`."""
        listening, self._socket = self._socket, None
        if listening is not None:
            # Wakes the thread out of `accept`, which closing alone does not.
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()

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
    """Receive for some seconds and return the median speed after warm-up to the sender."""
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
    """Measure round trip and bandwidth of the link to another machine of the pool."""
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
    """Send until the receiver has measured enough and answers."""
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
