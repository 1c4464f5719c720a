"""Describe one machine of a pool: how to reach it, its hardware, its cost.

Plain data. `pool.probe` measures the real hardware; `pool.inventory` combines the two. Files are
read by `pool_file`.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from phalanx.spec.base import ListOf, Spec, Words, fault, number_as
from phalanx.spec.flow import quoted
from phalanx.spec.observe import Watts, check_watts
from phalanx.spec.quantity import Bytes

PositiveInt = Annotated[int, Field(gt=0)]

SECRET_KEYS = frozenset({"password", "passwd", "pass", "passphrase", "secret"})
"""Keys, in lower case, of secrets that files may not hold."""

# A letter or digit first: what begins with a dash would be an option to ssh.
_HOST = re.compile(r"[A-Za-z0-9_:\[][\w.:%\]-]*", re.ASCII)


def _host(value: object) -> object:
    if not isinstance(value, str):
        return value
    if "@" in value:
        user, _, host = value.rpartition("@")
        raise fault(f"{quoted(value)} is no host", f"; write 'host: {host}' and 'user: {user}'")
    name, colon, port = value.partition(":")
    if colon and port.isdecimal():
        raise fault(f"{quoted(value)} is no host", f"; write 'host: {name}' and 'port: {port}'")
    if not _HOST.fullmatch(value):
        raise fault(f"{quoted(value)} is no host", "; give an address, a name or an ssh alias")
    return value


def matching(pattern: str, noun: str, hint: str = "") -> BeforeValidator:
    """Refuse text that does not match as a whole: `'a b' is no name of a host; use ...`."""

    def check(value: object) -> object:
        if isinstance(value, str) and not re.fullmatch(pattern, value, re.ASCII):
            raise fault(f"{quoted(value)} is no {noun}", hint)
        return value

    return BeforeValidator(check)


class GpuSpec(Spec):
    """The GPUs of a machine."""

    count: Annotated[int, Field(ge=0)]
    """How many."""
    model: str = ""
    """Name of the model."""
    memory: Bytes | None = None
    """Memory of one card."""


UserName = Annotated[str, matching(r"[A-Za-z_][\w.-]*[$\\@\w.-]*", "user name")]
Port = Annotated[int, Field(ge=1, le=65535)]
Price = Annotated[float, Field(ge=0)]
Gpu = Annotated[GpuSpec, number_as("count")]
"""GPUs; a bare number is their count."""


MachineName = Annotated[
    str,
    matching(
        r"[A-Za-z0-9_][\w.-]*",
        "name of a machine",
        "; use letters, digits, '.', '-' and '_', and begin with a letter or digit",
    ),
]


class _Lent(Spec):
    slots: PositiveInt = 1
    """Workers that a machine runs at the same time."""
    price_per_hour: Price | None = None
    """Price per hour, in any one currency; 0 for a machine that costs nothing extra."""


class DefaultsSpec(_Lent):
    """Defaults for every machine that does not override them."""

    user: UserName | None = None
    """Login name; null: as your ssh config says, or your user name."""
    port: Port | None = None
    """Port of its ssh server; null: as your ssh config says, or 22."""
    key: str | None = None
    """Path of the private key; null: as your ssh config says."""
    agent: bool | None = None
    """true: only keys of the ssh agent; false: never the agent; null: as your ssh config says."""
    python: str = "python3"
    """The interpreter that runs Phalanx there."""
    workdir: str = "~/phalanx"
    """Directory for code and results on the machine."""


class HardwareSpec(_Lent):
    """Hardware of a machine, and what it costs."""

    gpu: Gpu = GpuSpec(count=0)
    """GPUs: a number, or a mapping."""
    watts_idle: Watts | None = None
    """Power draw when idle."""
    watts_full: Watts | None = None
    """Power draw with all cores busy."""
    energy_efficient: bool | None = None
    """Whether the policy `energy` takes it; null: decided by speed and watts."""
    labels: ListOf[str] = ()
    """Free labels to select by, such as `rack-a`."""


class MachineSpec(DefaultsSpec, HardwareSpec):
    """A machine: how to reach it, its hardware, its cost."""

    host: Annotated[
        str, BeforeValidator(_host), Words("an address, a name or an alias of your ssh config")
    ]
    """Host name or address for ssh."""
    name: MachineName | None = None
    """Name in tables and messages; null: `host`."""
    address: Annotated[str, BeforeValidator(_host), Words("an address or a name")] | None = None
    """Address for the other machines; null: found by the probe."""
    cores: Annotated[float, Field(gt=0)] | None = None
    """Cores that may be used; null: all that the probe finds."""
    memory: Bytes | None = None
    """Memory that may be used; null: all that the probe finds."""

    @model_validator(mode="before")
    @classmethod
    def _no_secrets(cls, data: object) -> object:
        if isinstance(data, dict):
            for key in data:
                if str(key).lower() in SECRET_KEYS:
                    raise fault(
                        f"'{key}' is refused: anyone who reads the file could log in with it",
                        "; use a key (`ssh-copy-id` installs it) or the ssh agent",
                        at=(str(key),),
                    )
        return data

    @model_validator(mode="after")
    def _consistent(self) -> MachineSpec:
        if self.key is not None and self.agent:
            raise fault("key and 'agent: true' exclude each other", "; keep one", at=("agent",))
        check_watts(self.watts_idle, self.watts_full)
        return self

    @property
    def title(self) -> str:
        """Name in tables and messages."""
        return self.name or self.host
