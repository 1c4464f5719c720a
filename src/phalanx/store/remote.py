"""Checkpoint store of a process on another machine: files cross the network.

Tensors are sent from, and received into, the memory that holds them; no file is made on this
machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing_extensions import override

from phalanx.errors import StoreError
from phalanx.spec.worker import WorkerSpec
from phalanx.store.base import CheckpointStore, folder_of
from phalanx.store.client import StoreClient
from phalanx.store.tensors import (
    EVERYTHING,
    TensorAdapter,
    TensorBundle,
    TensorT,
    read_tensors,
    write_tensors,
)
from phalanx.wire.keys import KeyPair


class RemoteStore(CheckpointStore[TensorT]):
    """Save and load files in the controller's run directory through its `StoreServer`.

    Args:
        client: The connection to the server.
        adapter: The framework whose tensors are saved and loaded.
    """

    is_remote = True
    location = "the controller's run directory"

    def __init__(self, client: StoreClient, adapter: TensorAdapter[TensorT]) -> None:
        self._client = client
        self._adapter = adapter

    @classmethod
    def for_process(cls, spec: WorkerSpec, adapter: TensorAdapter[TensorT]) -> RemoteStore[TensorT]:
        """Open the store of the process that this spec describes; connects on first use."""
        # The address that leads to the controller leads to the store server as well.
        host = spec.control_address.rsplit(":", 1)[0]
        client = StoreClient(
            address=f"{host}:{spec.store_port}",
            server_key=spec.controller_key,
            keys=KeyPair(public=spec.public_key, secret=spec.secret_key),
            limit_s=spec.job.deadlines.exchange_s,
        )
        return cls(client, adapter)

    @override
    def save(self, name: str, tensors: Mapping[str, TensorT], metadata: Mapping[str, str]) -> int:
        views = {key: self._adapter.view(tensor) for key, tensor in tensors.items()}
        with self._client.upload(name) as upload:
            write_tensors(upload, views, metadata)
        return upload.size

    @override
    def load(
        self,
        name: str,
        *,
        only: Sequence[str] = EVERYTHING,
        part: tuple[int, int] | None = None,
    ) -> TensorBundle[TensorT]:
        with self._client.download(name) as file:
            try:
                return read_tensors(file, self._adapter, only=only, part=part)
            except StoreError as error:
                raise StoreError(f"cannot read {name} in {self.location}: {error}") from error

    @override
    def names(self, folder: str) -> list[str]:
        return list(self._client.list_files(folder).names)

    @override
    def is_coming(self, name: str) -> bool:
        return name in self._client.list_files(folder_of(name)).incoming

    @override
    def keep_as(self, name: str, other: str) -> None:
        self._client.link(name, other)

    @override
    def drop(self, names: Sequence[str]) -> None:
        if names:
            self._client.delete(tuple(names))
