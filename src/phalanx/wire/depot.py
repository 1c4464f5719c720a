"""What a process and the depot say to each other: files to the controller's machine and back.

A file travels in parts of bounded size. Every message names the transfer that it belongs to, and
may be sent again: whoever asks does so until it is answered, over a new connection if need be, and
the depot does nothing twice that must not be done twice. Payloads are frames of their own.
"""

from __future__ import annotations

import msgspec

PART_BYTES = 1 << 19
"""Longest payload of a message."""
WINDOW = 16
"""Parts on their way at a time; with parts of half a megabyte enough for 1 Gbit/s over 60 ms."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    number: int
    """Of the transfer, or of the question: random, chosen by whoever asks."""


class Store(_Message, frozen=True):
    """Take a file of this name, which `Part`s will bring; answered by `Received`."""

    name: str


class Part(_Message, frozen=True):
    """With a payload: the bytes of the file from here on; answered by `Received`."""

    offset: int


class Commit(_Message, frozen=True):
    """That was all of it: let it take its place, durably; answered by `Carried`."""

    size: int


class Open(_Message, frozen=True):
    """Hold a file as it is now, to read from; answered by `Opened`."""

    name: str


class Fetch(_Message, frozen=True):
    """A part of an opened file; answered by `Piece`."""

    offset: int
    length: int


class Close(_Message, frozen=True):
    """The transfer is over, or given up; answered by `Carried`, which nobody need wait for."""


class Find(_Message, frozen=True):
    """Which files of a folder are there? Answered by `Found`."""

    folder: str


class Link(_Message, frozen=True):
    """Keep a file under another name as well; answered by `Carried`."""

    name: str
    other: str


class Drop(_Message, frozen=True):
    """Remove files, those that are there; answered by `Carried`."""

    names: tuple[str, ...]


class Received(_Message, frozen=True):
    """So many bytes of the file have arrived without a gap."""

    end: int


class Opened(_Message, frozen=True):
    """The file is held open."""

    size: int


class Piece(_Message, frozen=True):
    """With a payload: what was fetched."""

    offset: int


class Found(_Message, frozen=True):
    """Names of files, and of those that are on their way."""

    names: tuple[str, ...]
    coming: tuple[str, ...]


class Carried(_Message, frozen=True):
    """Done."""


class Refused(_Message, frozen=True):
    """It cannot be done; the reason is for people."""

    reason: str


Question = Store | Part | Commit | Open | Fetch | Close | Find | Link | Drop
Answer = Received | Opened | Piece | Found | Carried | Refused
