"""Create the links of an emulated cluster: a namespace per host, all on a bridge, both ends shaped.

The bridge is in this machine's namespace and has an address for the controller. Hosts have no route
beyond it and nothing is forwarded, so their traffic never leaves this machine.
"""

from __future__ import annotations

import ipaddress
import json

from phalanx.pool.emulate.layout import ClusterLayout, EmulatedHost
from phalanx.pool.emulate.system import run, run_each

# Burst size of the token bucket: small, so that short transfers are slow as well, but with room for
# the largest packet that the kernel passes on at full speed.
_BURST_S = 0.002
_MIN_BURST_BYTES = 16 * 1024
# A switch drops what its port cannot buffer, a few hundred kilobytes. A host does not: its kernel
# blocks programs before the transmit queue is full.
_SWITCH_QUEUE_MS = 25
_HOST_QUEUE_MS = 1000


def networks_in_use() -> list[ipaddress.IPv4Network]:
    """Return the networks in which this machine has addresses or to which it has routes."""
    found = []
    for interface in json.loads(run("ip", "-j", "-4", "addr") or "[]"):
        for entry in interface.get("addr_info", ()):
            text = f"{entry['local']}/{entry['prefixlen']}"
            found.append(ipaddress.IPv4Network(text, strict=False))
    routes = [route["dst"] for route in json.loads(run("ip", "-j", "-4", "route") or "[]")]
    found += [ipaddress.IPv4Network(to, strict=False) for to in routes if to != "default"]
    return found


def create_links(layout: ClusterLayout) -> None:
    """Create the bridge, the namespaces and the veth pairs between them.

    Raises:
        LaunchError: A command failed; what was created so far stays for `remove_links`.
    """
    run_each(
        [
            f"ip link add {layout.bridge} type bridge",
            f"ip addr add {layout.gateway} dev {layout.bridge}",
            f"ip link set {layout.bridge} up",
        ]
    )
    for host in layout.hosts:
        run_each(
            [
                f"ip netns add {host.namespace}",
                f"ip link add {host.interface} type veth peer name eth0 netns {host.namespace}",
                f"ip link set {host.interface} master {layout.bridge} up",
                f"ip -n {host.namespace} addr add "
                f"{host.address}/{layout.network.prefixlen} dev eth0",
                f"ip -n {host.namespace} link set lo up",
                f"ip -n {host.namespace} link set eth0 up",
            ]
        )
        if host.spec.link is not None:
            inward = shaping(host.spec.link, queue_ms=_SWITCH_QUEUE_MS)
            outward = shaping(host.spec.link, queue_ms=_HOST_QUEUE_MS)
            run_each(
                [
                    f"tc qdisc add dev {host.interface} root tbf {inward}",
                    f"tc -n {host.namespace} qdisc add dev eth0 root tbf {outward}",
                ]
            )


def shaping(bits_per_s: int, *, queue_ms: int) -> str:
    """Return the token bucket settings for a rate and a maximum queueing delay."""
    burst = max(_MIN_BURST_BYTES, round(bits_per_s / 8 * _BURST_S))
    return f"rate {bits_per_s}bit burst {burst}b latency {queue_ms}ms"


def switch_link(host: EmulatedHost, *, on: bool) -> None:
    """Take the link of a host down or up.

    Raises:
        LaunchError: There is no such link.
    """
    run("ip", "link", "set", host.interface, "up" if on else "down")


def link_is_up(host: EmulatedHost) -> bool:
    """Return whether the link of a host exists and is up."""
    shown = run("ip", "-j", "link", "show", "dev", host.interface, may_fail=True)
    return bool(shown) and "UP" in json.loads(shown)[0].get("flags", ())


def leftover_links(prefix: str) -> tuple[list[str], list[str]]:
    """Return the namespaces and interfaces whose names begin with the prefix."""
    namespaces = [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line]
    interfaces = [one["ifname"] for one in json.loads(run("ip", "-j", "link") or "[]")]
    mine = f"{prefix}-"
    return (
        [name for name in namespaces if name.startswith(mine)],
        [name for name in interfaces if name.startswith(mine)],
    )


def processes_in(namespace: str) -> list[int]:
    """Return the processes that use a namespace."""
    return [int(word) for word in run("ip", "netns", "pids", namespace, may_fail=True).split()]


def remove_links(prefix: str) -> None:
    """Remove every namespace and interface with the prefix; missing ones are ignored."""
    namespaces, interfaces = leftover_links(prefix)
    # Deleting one end of a veth pair deletes the other, so a later one may already be gone.
    for name in interfaces:
        run("ip", "link", "del", name, may_fail=True)
    for name in namespaces:
        run("ip", "netns", "del", name, may_fail=True)
