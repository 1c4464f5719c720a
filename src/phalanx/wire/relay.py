"""What the processes of another engine tell each other by way of the controller.

Their engine has channels of its own for parameters and orders; these are for records, so that every
process keeps its own log and the controller the run's.
"""

from __future__ import annotations

import msgspec


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class SendToProcess(_Message, frozen=True):
    """To the controller: pass this on to another process.

    Attributes:
        process: Its name.
        body: What the two have agreed on.
    """

    process: str
    body: bytes


class FromProcess(_Message, frozen=True):
    """From the controller: another process says this.

    Attributes:
        process: Who.
        body: What the two have agreed on.
    """

    process: str
    body: bytes


class ProcessNote(_Message, frozen=True):
    """To the controller: a fact about the whole run for its log, as JSON."""

    event: bytes


ToPeers = SendToProcess | ProcessNote
