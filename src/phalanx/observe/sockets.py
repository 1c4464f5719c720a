"""Read the bytes sent by this process's TCP connections, as counted by the kernel.

An independent check of a transport's own counters: `tcp_info` counts the payload bytes of each
connection, whatever code wrote them. Linux only.
"""

from __future__ import annotations

import os
import socket
import stat
import struct

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
