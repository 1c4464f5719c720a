"""The depot of a process on another machine: files travel over the depot's channel.

Tensors are sent from where they are and received into where they will be; no file is made on this
machine, and only what is asked for travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from typing_extensions import override

from phalanx.errors import StoreError
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.depot_client import DepotClient, Download
from phalanx.wire.keys import KeyPair
from phalanx.worker.depot import EVERYTHING, Depot, Loaded
from phalanx.worker.tensorfile import (
    LENGTH_BYTES,
    Place,
    bytes_of,
    header_length,
    parse_header,
    write_tensors,
)


class RemoteDepot(Depot):
    """On the controller's machine.

    Args:
        client: The way there.
    """

    is_far = True
    place = "the controller's run directory"

    def __init__(self, client: DepotClient) -> None:
        self._client = client

    @classmethod
    def of(cls, spec: WorkerSpec) -> RemoteDepot:
        """For the process that this spec describes."""
        # Whatever address leads to the controller leads to the depot as well.
        host = spec.control_address.rsplit(":", 1)[0]
        return cls(
            DepotClient(
                address=f"{host}:{spec.depot_port}",
                server_key=spec.controller_key,
                keys=KeyPair(public=spec.public_key, secret=spec.secret_key),
                limit_s=spec.job.deadlines.exchange_s,
            )
        )

    @override
    def save(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
    ) -> int:
        with self._client.store(name) as upload:
            write_tensors(upload, tensors, metadata)
        return upload.size

    @override
    def load(
        self,
        name: str,
        *,
        only: Sequence[str] = EVERYTHING,
        part: tuple[int, int] | None = None,
    ) -> Loaded:
        with self._client.open(name) as file:
            try:
                metadata, places = _read_header(file)
                return Loaded(
                    metadata,
                    {
                        one: _read_tensor(file, place.part(part))
                        for one, place in places.items()
                        if one.startswith(tuple(only))
                    },
                )
            except StoreError as error:
                raise StoreError(f"cannot read {name} in {self.place}: {error}") from error

    @override
    def names(self, folder: str) -> list[str]:
        return list(self._client.find(folder).names)

    @override
    def is_coming(self, name: str) -> bool:
        return name in self._client.find(name.split("/", maxsplit=1)[0]).coming

    @override
    def keep_as(self, name: str, other: str) -> None:
        self._client.link(name, other)

    @override
    def drop(self, names: Sequence[str]) -> None:
        if names:
            self._client.drop(tuple(names))


def _read_header(file: Download) -> tuple[dict[str, str], dict[str, Place]]:
    first = file.read(0, LENGTH_BYTES)
    length = header_length(first, file_bytes=file.size)
    return parse_header(file.read(LENGTH_BYTES, length), file_bytes=file.size)


def _read_tensor(file: Download, place: Place) -> torch.Tensor:
    tensor = torch.empty(place.shape, dtype=place.dtype)
    if tensor.nbytes:
        file.read_into(bytes_of(tensor), place.start)
    return tensor
