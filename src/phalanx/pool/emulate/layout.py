"""Assign names and addresses to every part of an emulated cluster; pure.

Every name begins with a prefix derived from the path of the cluster's state, so leftovers of a
killed command can be found without that state. Interface names have at most 15 letters.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import SpecError
from phalanx.spec.cluster import ClusterSpec, HostSpec

_FIRST_HOST = 11
_SUBNETS = "10.77.0.0/16"


@dataclass(frozen=True)
class EmulatedHost:
    """One emulated host."""

    spec: HostSpec
    address: str
    namespace: str
    interface: str
    """Its end of the link in the namespace of this machine."""
    group: str
    """Name of its control group."""
    folder: Path
    """Directory of its files."""


@dataclass(frozen=True)
class ClusterLayout:
    """All names and addresses of a cluster."""

    prefix: str
    bridge: str
    network: ipaddress.IPv4Network
    hosts: tuple[EmulatedHost, ...]

    @property
    def gateway(self) -> str:
        """Return the address of this machine on the cluster's network."""
        return f"{self.network[1]}/{self.network.prefixlen}"


def prefix_of(state: Path) -> str:
    """Return the name prefix of the cluster with this state directory."""
    return "phx" + hashlib.sha256(str(state.absolute()).encode()).hexdigest()[:6]


def plan_layout(
    spec: ClusterSpec, state: Path, taken: Iterable[ipaddress.IPv4Network]
) -> ClusterLayout:
    """Assign names and addresses to every part of a cluster.

    Args:
        spec: The hosts.
        state: Directory of the cluster's files.
        taken: Networks already in use by this machine.

    Raises:
        SpecError: The requested network is in use, or none is free.
    """
    prefix = prefix_of(state)
    network = _network(spec, tuple(taken))
    hosts = tuple(
        EmulatedHost(
            spec=host,
            address=str(network[_FIRST_HOST + index]),
            namespace=f"{prefix}-{host.name}",
            interface=f"{prefix}-{index}",
            group=f"{prefix}-{host.name}",
            folder=state / "hosts" / host.name,
        )
        for index, host in enumerate(spec.hosts)
    )
    return ClusterLayout(prefix=prefix, bridge=f"{prefix}-br", network=network, hosts=hosts)


def _network(spec: ClusterSpec, taken: tuple[ipaddress.IPv4Network, ...]) -> ipaddress.IPv4Network:
    if spec.subnet is not None:
        wanted = ipaddress.IPv4Network(spec.subnet)
        if any(wanted.overlaps(one) for one in taken):
            raise SpecError(
                f"network {wanted} is in use on this machine; choose another 'subnet', or leave "
                "it out"
            )
        return wanted
    for candidate in ipaddress.IPv4Network(_SUBNETS).subnets(new_prefix=24):
        if not any(candidate.overlaps(one) for one in taken):
            return candidate
    raise SpecError(f"all networks in {_SUBNETS} are in use on this machine; set 'subnet'")
