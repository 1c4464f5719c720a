"""Bulk data between a worker and a server of parameters: one fixed header, one payload frame.

No pickle and no self-describing format: a header is 88 bytes of numbers, a payload is memory. What
does not decode is dropped by the caller and changes nothing. Sockets are set up here, because
ZeroMQ's defaults (queues of a thousand 4 MB frames, no heartbeats) suit small messages only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from enum import IntEnum

import msgspec
import zmq

MAGIC = 0x9A1C
HEADER = struct.Struct("<HBBBBHIIIIIQQQQdQd")
# Messages in a queue before the sender has to wait; 16 frames of 4 MB are 64 MB.
HIGH_WATER = 16
# Room for a header, or for the scales that some formats carry in front of the values.
FRAME_SLACK_BYTES = 1 << 16


class BulkOp(IntEnum):
    """What a message asks for or answers."""

    ENTER = 1  # worker: I take my place at this clock; send me everything
    PUSH = 2  # worker: a gradient; answer with parameters when I may read
    ASK = 3  # worker: I have heard nothing about this segment; where does it stand?
    LEAVE = 4  # worker: do not wait for me from now on
    PULL = 5  # reader: the present parameters of a segment
    LOAD = 6  # worker: parameters from which a server that lost its own goes on
    PARAMS = 10  # server: parameters of a segment, after ENTER, PUSH, ASK or PULL
    AGAIN = 11  # server: that push never arrived; send it again
    REFUSED = 12  # server: you are not, or no longer, part of the run
    LEFT = 13  # server: nobody waits for you any longer, after LEAVE
    WHO = 14  # server: you have no place here yet; enter first


class Kind(IntEnum):
    """What the payload's bytes are."""

    NOTHING = 0
    F32 = 1
    BF16 = 2
    INT8 = 3  # scales of blocks in front


class Flag(IntEnum):
    """Bits of `Header.flags`."""

    DROPPED = 1  # the push was too late to count
    HELD = 2  # in ENTER: I hold version `readver` already; in PARAMS: so you do, nothing is sent


class Header(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first frame of every bulk message.

    Attributes:
        op: What the message is.
        worker: Rank of the worker that asks, or that is answered.
        generation: Number of the run's formation; messages of an older one are refused.
        incarnation: How often this worker has been started; an older one is refused.
        sender: Incarnation of the server, in its answers.
        clock: Number of the worker's push that this belongs to.
        readver: Version that the worker had read, or that it now reads.
        ticket: Batch that the gradient was computed from, for exactly-once accounting; 0: none.
        segment: Index in the layout.
        kind: Format of the payload.
        flags: Sum of `Flag`s.
        num_samples: Samples behind the gradient.
        weight: The gradient is this times the mean over its samples.
        num_bytes: Length of the payload.
        held_s: How long the rule has held this answer back since the whole push was here.
    """

    op: BulkOp
    worker: int
    generation: int = 0
    incarnation: int = 0
    sender: int = 0
    clock: int = 0
    readver: int = 0
    ticket: int = 0
    segment: int = 0
    kind: Kind = Kind.NOTHING
    flags: int = 0
    num_samples: int = 0
    weight: float = 1.0
    num_bytes: int = 0
    held_s: float = 0.0

    def pack(self) -> bytes:
        """The 88 bytes that travel."""
        return HEADER.pack(
            MAGIC,
            self.op,
            self.kind,
            self.flags,
            0,
            0,
            self.worker,
            self.generation,
            self.incarnation,
            self.sender,
            self.segment,
            self.clock,
            self.readver,
            self.ticket,
            self.num_samples,
            self.weight,
            self.num_bytes,
            self.held_s,
        )

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Header | None:
        """The header, or None if these bytes are none."""
        if len(data) != HEADER.size:
            return None
        magic, op, kind, flags, _, _, worker, generation, incarnation, sender, segment, *rest = (
            HEADER.unpack(data)
        )
        clock, readver, ticket, num_samples, weight, num_bytes, held_s = rest
        known = magic == MAGIC and op in _OPS and kind in _KINDS
        if not known or not 0 <= weight < math.inf or not 0 <= held_s < math.inf:
            return None
        return cls(
            op=_OPS[op],
            worker=worker,
            generation=generation,
            incarnation=incarnation,
            sender=sender,
            clock=clock,
            readver=readver,
            ticket=ticket,
            segment=segment,
            kind=_KINDS[kind],
            flags=flags,
            num_samples=num_samples,
            weight=weight,
            num_bytes=num_bytes,
            held_s=held_s,
        )


_OPS = {op.value: op for op in BulkOp}
_KINDS = {kind.value: kind for kind in Kind}


def tune(socket: zmq.Socket[bytes], *, max_frame_bytes: int) -> None:
    """Set everything that bulk sockets need and ZeroMQ leaves off; call before bind or connect.

    Args:
        socket: ROUTER or DEALER.
        max_frame_bytes: A peer that sends a longer frame is cut off.
    """
    socket.linger = 0
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
    socket.setsockopt(zmq.HEARTBEAT_TTL, 5000)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 3000)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    if socket.type == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    else:
        # Do not queue for a peer that is not there; the caller keeps what it could not send.
        socket.setsockopt(zmq.IMMEDIATE, 1)


def take(frames: Sequence[zmq.Frame]) -> tuple[Header, memoryview | None] | None:
    """Header and payload of a received message, or None if it is not one of ours."""
    if not 1 <= len(frames) <= 2:
        return None
    header = Header.unpack(frames[0].buffer)
    if header is None:
        return None
    payload = frames[1].buffer if len(frames) == 2 else None
    length = 0 if payload is None else payload.nbytes
    return (header, payload) if length == header.num_bytes else None
