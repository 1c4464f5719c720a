"""Settings of a client of parameter servers."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.wire.keys import KeyPair


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Identity of a client, and how it exchanges.

    Attributes:
        worker: Rank.
        keys: Keys of the worker.
        incarnation: How often this worker has been started.
        generation: Of the run.
        compression: Of pushed gradients, by name.
        overlap: Whether the next gradient is computed while a push is outstanding; pushes are then
            sent from a copy.
        whole: Whether a server's parameters are written only when all of its segments have
            arrived, so that the copy here is always of one version and can restore a server.
        version: Of the parameters that the buffer holds already.
        samples_seen: Behind them.
        holds: Whether the buffer is what the servers begin with, so that they need not send it.
    """

    worker: int
    keys: KeyPair
    incarnation: int = 1
    generation: int = 0
    compression: str = "none"
    overlap: bool = False
    whole: bool = False
    version: int = 0
    samples_seen: int = 0
    holds: bool = False
