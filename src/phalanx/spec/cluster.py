"""Describe an emulated cluster: hosts on one machine with limits on CPU, memory and network.

Plain data with its checks; `pool.emulate` creates the hosts, `pool_file` reads the file.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from phalanx.spec.base import ListOf, Spec, Words, fault
from phalanx.spec.flow import quoted
from phalanx.spec.machine import HardwareSpec, matching
from phalanx.spec.quantity import BitsPerSecond, Bytes

_MAX_HOSTS = 200


def _subnet(text: str) -> str:
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError:
        raise fault(f"{quoted(text)} is no IPv4 network", "; write 10.77.5.0/24") from None
    if not network.is_private or network.prefixlen > 24:
        raise fault(f"{quoted(text)} is not private or smaller than /24", "; write 10.77.5.0/24")
    return text


HostName = Annotated[
    str,
    matching(
        r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?",
        "name of a host",
        "; use up to 32 small letters, digits and '-'",
    ),
    Words("a name of small letters and digits"),
]


class HostSpec(HardwareSpec):
    """One emulated host; slots, cost, labels and declared GPUs are copied into the pool."""

    name: HostName
    """Its host name."""
    cores: Annotated[float, Field(ge=0.05)] = 1.0
    """CPU limit, in cores; 0.5 is half of one."""
    memory: Bytes | None = None
    """Memory that it may use; null: no limit."""
    link: BitsPerSecond | None = None
    """Speed of its link in either direction; null: no limit."""


class ClusterSpec(Spec):
    """Hosts that are emulated on this machine."""

    cluster: HostName = "emulated"
    """Name of the cluster."""
    subnet: (
        Annotated[str, AfterValidator(_subnet), Words("a private IPv4 network, /24 or larger")]
        | None
    ) = None
    """Addresses of the hosts; null: the first of 10.77.0.0/24, 10.77.1.0/24, ... that is free."""
    python: str | None = None
    """The interpreter that the pool will name; null: the one that runs this command."""
    hosts: ListOf[HostSpec]
    """The hosts, in the order of their addresses."""

    @model_validator(mode="after")
    def _distinct(self) -> ClusterSpec:
        if not 1 <= len(self.hosts) <= _MAX_HOSTS:
            raise fault(
                f"a cluster has 1 to {_MAX_HOSTS} hosts, not {len(self.hosts)}", at=("hosts",)
            )
        names: dict[str, int] = {}
        for index, host in enumerate(self.hosts):
            first = names.setdefault(host.name, index)
            if first != index:
                raise fault(
                    f"hosts {first + 1} and {index + 1} have the same name '{host.name}'",
                    "; give each a different name",
                    at=("hosts", index, "name"),
                )
        return self
