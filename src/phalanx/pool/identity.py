"""Which machine is meant, whatever the pool file calls it: the key of caches and links."""

from __future__ import annotations

from phalanx.spec.machine import MachineSpec


def identity(machine: MachineSpec, ssh_config: str | None) -> str:
    """Where ssh goes and which interpreter is asked there; names and prices do not matter."""
    user = f"{machine.user}@" if machine.user else ""
    port = f":{machine.port}" if machine.port else ""
    config = f" by {ssh_config}" if ssh_config else ""
    return f"{user}{machine.host.lower()}{port} {machine.python}{config}"
