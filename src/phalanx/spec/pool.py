"""Describe a pool: the machines of a user, described once.

Plain data with its checks; `pool_file` reads it from YAML. `INVENTORIES` is an open table: a kind
reads machines from a file of another format. `scheduler` has the table of those that lend machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import model_validator

from phalanx.spec.base import ListOf, Spec, fault
from phalanx.spec.machine import DefaultsSpec, MachineSpec
from phalanx.spec.registry import Registry
from phalanx.spec.scheduler import SchedulerField


@dataclass(frozen=True)
class InventoryKind:
    """Describe a format of files that list machines."""

    name: str
    read: str
    """Import path of a function of the file's path; returns a `spec.pool_file.ReadInventory`."""


INVENTORIES: Registry[InventoryKind] = Registry(
    "inventory",
    InventoryKind,
    group="phalanx.inventories",
    built_in={},
    adapt=lambda path, _: InventoryKind(path, read=path),
)


class InventorySpec(Spec):
    """A file of another format that lists the machines."""

    name: str
    """Name of an installed format, or `package.module:name` of an `InventoryKind` or function."""
    file: str
    """Path of the file; a relative path is seen from the pool file."""
    python_path: ListOf[str] = ()
    """Folders from which the format is imported; relative ones are seen from the pool file."""


class PoolSpec(Spec):
    """Machines, and how all of them are reached."""

    pool: str = "pool"
    """Name of the pool."""
    ssh_config: str | None = None
    """A file for ssh instead of your own `~/.ssh/config`; a relative path is seen from this
    file."""
    build_env: bool = False
    """Build an environment with the versions in use here on every machine, instead of using the
    packages of its `python`; kept there for the next run."""
    defaults: DefaultsSpec = DefaultsSpec()
    """Defaults for every machine that does not override them."""
    inventory: InventorySpec | None = None
    """Read the machines from a file of another format, instead of listing them."""
    scheduler: SchedulerField | None = None
    """Take the machines that a scheduler has lent, instead of listing them: `slurm`,
    `kubernetes`, `ray`, `spark`."""
    machines: ListOf[MachineSpec]
    """The machines; their order is the order of ranks. A host alone, such as `pc-1`, stands for
    `{host: pc-1}`."""

    @model_validator(mode="before")
    @classmethod
    def _lay_defaults(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        defaults, machines = data.get("defaults"), data.get("machines")
        if isinstance(machines, list):
            machines = [{"host": one} if isinstance(one, str) else one for one in machines]
            data = {**data, "machines": machines}
        if not isinstance(defaults, dict) or not isinstance(machines, list):
            return data
        # Faults of the defaults are reported there, not once more for every machine.
        known = {key: defaults[key] for key in DefaultsSpec.model_fields if key in defaults}
        # A machine's own key or agent makes both defaults meaningless.
        others = {key: value for key, value in known.items() if key not in ("key", "agent")}
        laid = [
            {**(others if {"key", "agent"} & one.keys() else known), **one}
            if isinstance(one, dict)
            else one
            for one in machines
        ]
        return {**data, "machines": laid}

    @property
    def reached_by(self) -> str | None:
        """Name what its machines are reached by: scheduler or ssh config; None: plain ssh."""
        return self.ssh_config if self.scheduler is None else self.scheduler.name

    @model_validator(mode="after")
    def _distinct(self) -> PoolSpec:
        if not self.machines:
            raise fault(
                "a pool needs at least one machine",
                ", such as 'machines: [{host: 192.0.2.11}]'",
                at=("machines",),
            )
        addresses: dict[tuple[str, int | None], int] = {}
        names: dict[str, int] = {}
        for index, machine in enumerate(self.machines):
            address = (machine.host.lower(), machine.port)
            first = addresses.setdefault(address, index)
            if first != index:
                raise fault(
                    f"machines {first + 1} and {index + 1} have the same address '{machine.host}'",
                    "; a machine stands in a pool once, with 'slots' for more workers",
                    at=("machines", index, "host"),
                )
            first = names.setdefault(machine.title.lower(), index)
            if first != index:
                raise fault(
                    f"machines {first + 1} and {index + 1} have the same name '{machine.title}'",
                    "; give each a different name",
                    at=("machines", index, "name"),
                )
        return self
