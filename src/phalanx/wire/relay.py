"""Messages that processes of another backend relay through the controller.

The backend has its own channels for parameters and commands; these carry records, so that every
process writes its own log and the controller that of the run.
"""

from __future__ import annotations

import msgspec


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class SendToProcess(_Message, frozen=True):
    """To the controller: forward this to another process.

    Attributes:
        process: Its name.
        body: Opaque to the controller.
    """

    process: str
    body: bytes


class FromProcess(_Message, frozen=True):
    """From the controller: a message of another process.

    Attributes:
        process: Name of the sender.
        body: Opaque to the controller.
    """

    process: str
    body: bytes


class ProcessNote(_Message, frozen=True):
    """To the controller: an event of the whole run for its log, as JSON."""

    event: bytes


ToPeers = SendToProcess | ProcessNote
