"""Encode bulk messages between clients and parameter servers: a fixed header, a payload frame.

No pickle and no self-describing format: a header is 88 bytes of numbers, a payload is memory, and
the frames after it are the batches behind parameters, as a `TicketSet` encodes them. The caller
drops what does not decode. Sockets are set up here, because ZeroMQ's defaults (queues of a thousand
4 MB frames, no heartbeats) suit small messages only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from enum import IntEnum

import msgspec
import zmq

from phalanx.wire.keys import limit_handshake

MAGIC = 0x9A1C
HEADER = struct.Struct("<HBBBBHIIIIIQQQQdQd")
# Messages in a queue before the sender has to wait; 16 frames of 4 MB are 64 MB.
HIGH_WATER = 16
# Room for a header, for the scales that precede the values in some formats, or for tickets.
FRAME_SLACK_BYTES = 1 << 16
# Longer sets of tickets travel in several frames, so that no limit of ours cuts them.
_TICKET_FRAME_BYTES = FRAME_SLACK_BYTES // 2
_MOST_FRAMES = 1 << 12


class BulkOp(IntEnum):
    """Request or reply type of a message."""

    ENTER = 1  # worker: join at this clock; reply with all segments
    PUSH = 2  # worker: a gradient; reply with parameters when the rule allows
    ASK = 3  # worker: no reply for this segment; was it received?
    LEAVE = 4  # worker: leave; no update waits for it
    PULL = 5  # reader: the present parameters of a segment
    LOAD = 6  # worker: one segment of the copy that restores a restarted server
    PARAMS = 10  # server: parameters of a segment, after ENTER, PUSH, ASK or PULL
    AGAIN = 11  # server: that push never arrived; send it again
    REFUSED = 12  # server: not, or no longer, part of the run
    LEFT = 13  # server: left; replies to LEAVE
    WHO = 14  # server: worker is not entered; send ENTER first
    LOADED = 15  # server: that segment of a copy is here, or no longer wanted
    UNEXPECTED = 16  # server: was not told to expect that copy yet; send it again later


class Kind(IntEnum):
    """Format of a payload."""

    NOTHING = 0
    F32 = 1
    BF16 = 2
    INT8 = 3  # scales of blocks in front


class Flag(IntEnum):
    """Bits of `Header.flags`."""

    DROPPED = 1  # the push was too late to count
    HELD = 2  # ENTER: holds version `readver` already; PARAMS: unchanged, nothing is sent
    ASIDE = 4  # PUSH: another push of the same batch brings this segment
    CONTINUES = 8  # PUSH: not the first one of its batch, whose samples have been counted


class Header(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first frame of every bulk message.

    Attributes:
        op: Type of the message.
        worker: Rank of the worker that sends, or receives the reply.
        generation: Number of the run's formation; messages of an older one are refused.
        incarnation: How often this worker has been started; an older one is refused.
        sender: Incarnation of the server, in replies.
        clock: Number of the worker's push that this belongs to; of LOAD and its answers, number
            of the request for a copy.
        readver: Version that the worker had read, or that it now reads.
        ticket: Batch that the gradient was computed from, for exactly-once accounting; 0: none.
        segment: Index in the layout.
        kind: Format of the payload.
        flags: Sum of `Flag`s.
        num_samples: Samples behind the gradient.
        weight: The gradient is this times the mean over its samples.
        num_bytes: Length of the payload.
        held_s: How long the rule has held this reply back since the whole push was here.
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
        """Return the 88 bytes on the wire."""
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
        """Return the header in these bytes; None: they are none."""
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
    """Set the options that bulk sockets need beyond ZeroMQ's defaults; call before bind or connect.

    Args:
        socket: ROUTER or DEALER.
        max_frame_bytes: A longer frame ends the connection.
    """
    socket.linger = 0
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
    socket.setsockopt(zmq.HEARTBEAT_TTL, 5000)
    limit_handshake(socket)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 3000)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    if socket.type == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    else:
        # Do not queue for a peer that is not connected; the caller keeps what it could not send.
        socket.setsockopt(zmq.IMMEDIATE, 1)


def take(frames: Sequence[zmq.Frame]) -> tuple[Header, memoryview | None, bytes] | None:
    """Return header, payload and tickets of a received message; None: it is malformed."""
    if not 1 <= len(frames) <= _MOST_FRAMES:
        return None
    header = Header.unpack(frames[0].buffer)
    if header is None:
        return None
    payload = frames[1].buffer if len(frames) > 1 else None
    length = 0 if payload is None else payload.nbytes
    tickets = b"".join(frame.buffer for frame in frames[2:])
    return (header, payload, tickets) if length == header.num_bytes else None


def ticket_frames(tickets: bytes) -> list[bytes]:
    """Cut an encoded set of tickets into the frames that follow a payload."""
    return [
        tickets[start : start + _TICKET_FRAME_BYTES]
        for start in range(0, len(tickets), _TICKET_FRAME_BYTES)
    ]
