"""Write a server's state to the store, for its successor and for checkpoints."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import torch

from phalanx.consistency.shards import ShardLayout
from phalanx.engine.optimizer_factory import join_states
from phalanx.errors import StoreError, TimeoutExpired
from phalanx.paramserver.ledger import SegmentTickets
from phalanx.wire.moments import reach
from phalanx.worker.checkpoint.async_checkpointer import BackgroundTask
from phalanx.worker.checkpoint.torch_tensors import TorchStore

_log = logging.getLogger(__name__)

_PARAMETERS, _OPTIMIZER = "parameters", "optimizer/"
# As tensors: the header of the file has a limit of size.
_TICKETS, _SAMPLES = "tickets/", "num_samples"
# On a slow link, uploads take at most about this share of the time.
_TRAVELLING_SHARE = 0.1


@dataclass(frozen=True)
class ServerState:
    """A server's slice at one version."""

    version: int
    samples_seen: int
    parameters: torch.Tensor
    optimizer: dict[str, torch.Tensor]
    tickets: list[SegmentTickets]
    """Batches that each segment contains; see `paramserver.ledger`."""


class ServerFile:
    """Keep the newest state of one server in the store.

    Args:
        store: Where it is.
        server: Which server.
        every_s: How often it is to be replaced.
    """

    def __init__(self, store: TorchStore, server: int, *, every_s: float) -> None:
        self._store = store
        self._name = _name(server)
        self._every_s = every_s
        self._background = BackgroundTask("snapshots")
        self._due = time.monotonic() + every_s

    @property
    def is_due(self) -> bool:
        """Return whether it is time to write again.

        Raises:
            StoreError: The store refused the previous write.
        """
        return self._background.wait(0.0) and time.monotonic() > self._due

    def write(self, state: ServerState) -> None:
        """Replace the file at once."""
        # An older upload that is still under way must not arrive last.
        self._background.wait()
        self._write(state)

    def write_meanwhile(self, state: ServerState) -> None:
        """Start to replace the file; a store that does not answer is tried again the next time."""
        self._background.start(lambda: self._try_to_write(state))

    def read(self) -> ServerState | None:
        """Return the state written last; None: there is no complete file."""
        try:
            found = self._store.load(self._name)
            metadata, tensors = found.metadata, found.tensors
            return ServerState(
                version=int(metadata["version"]),
                samples_seen=int(metadata["samples_seen"]),
                parameters=tensors[_PARAMETERS],
                optimizer=_optimizer(tensors),
                tickets=_read_tickets(tensors),
            )
        except (StoreError, KeyError, ValueError) as error:
            # A damaged file counts as absent: parameters come from a worker instead.
            _log.warning("%s cannot be used, so the optimiser begins anew: %s", self._name, error)
            return None

    def forget(self) -> None:
        """Delete the file of an earlier attempt, which may have another layout."""
        self._store.drop([self._name])

    def close(self) -> None:
        """Wait for the last write: the next phase has a server of the same name."""
        self._background.wait()

    def _try_to_write(self, state: ServerState) -> None:
        try:
            self._write(state)
        except TimeoutExpired as error:
            # An older snapshot costs momentum if this server is lost; ending it costs that now.
            _log.warning("the snapshot of version %d was not written: %s", state.version, error)
            self._due = time.monotonic() + self._every_s

    def _write(self, state: ServerState) -> None:
        begin = time.monotonic()
        tensors = {_PARAMETERS: state.parameters}
        tensors |= {_OPTIMIZER + name: tensor for name, tensor in state.optimizer.items()}
        tensors |= _write_tickets(state.tickets)
        metadata = {"version": str(state.version), "samples_seen": str(state.samples_seen)}
        reach("writing snapshot")
        self._store.save(self._name, tensors, metadata)
        reach("snapshot written")
        now = time.monotonic()
        rest_s = (now - begin) / _TRAVELLING_SHARE if self._store.is_remote else 0.0
        self._due = now + max(self._every_s, rest_s)


def read_optimizer(store: TorchStore, layout: ShardLayout) -> dict[str, torch.Tensor]:
    """Return the optimiser state of all servers, joined as one optimiser would have it."""
    parts: list[dict[str, torch.Tensor]] = []
    for server in range(layout.num_servers):
        try:
            parts.append(_optimizer(store.load(_name(server), only=[_OPTIMIZER]).tensors))
        except StoreError as error:
            message = f"the state that server {server} wrote cannot be read: {error}"
            raise StoreError(message) from error
    return join_states(parts)


def _name(server: int) -> str:
    return f"servers/server-{server}.safetensors"


def _optimizer(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(_OPTIMIZER): one
        for name, one in tensors.items()
        if name.startswith(_OPTIMIZER)
    }


def _write_tickets(tickets: list[SegmentTickets]) -> dict[str, torch.Tensor]:
    written = {_SAMPLES: torch.tensor([one.num_samples for one in tickets])}
    for index, one in enumerate(tickets):
        if one.tickets:
            data = torch.frombuffer(bytearray(one.tickets), dtype=torch.uint8)
            written[f"{_TICKETS}{index}"] = data
    return written


def _read_tickets(tensors: dict[str, torch.Tensor]) -> list[SegmentTickets]:
    nothing = torch.empty(0, dtype=torch.uint8)
    return [
        SegmentTickets(
            tensors.get(f"{_TICKETS}{index}", nothing).numpy().tobytes(), int(num_samples)
        )
        for index, num_samples in enumerate(tensors[_SAMPLES].tolist())
    ]
