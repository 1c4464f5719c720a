"""One machine of a pool, as its owner describes it: how to reach it, what it has, what it costs.

Plain data. What a machine really has is measured by `pool.probe`; `pool.inventory` lays the two
together. Files are read by `pool_file`.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from phalanx.spec.base import ListOf, Spec, Words, fault
from phalanx.spec.flow import quoted
from phalanx.spec.observe import Watts
from phalanx.spec.quantity import Bytes

PositiveInt = Annotated[int, Field(gt=0)]

SECRET_KEYS = frozenset({"password", "passwd", "pass", "passphrase", "secret"})
"""Keys, in lower case, that hold what may not stand in a file."""

# A letter or digit first: what begins with a dash would be an option to ssh.
_HOST = re.compile(r"[A-Za-z0-9_:\[][\w.:%\]-]*", re.ASCII)
_USER = re.compile(r"[A-Za-z_][\w.-]*[$\\@\w.-]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)


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


def _user(value: object) -> object:
    if isinstance(value, str) and not _USER.fullmatch(value):
        raise fault(f"{quoted(value)} is no user name")
    return value


def _name(value: object) -> object:
    if isinstance(value, str) and not _NAME.fullmatch(value):
        raise fault(
            f"{quoted(value)} is no name of a machine",
            "; use letters, digits, '.', '-' and '_', and begin with a letter or digit",
        )
    return value


def _count_only(value: object) -> object:
    return {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value


class GpuSpec(Spec):
    """The graphics cards of a machine."""

    count: Annotated[int, Field(ge=0)]
    """How many."""
    model: str = ""
    """What they are called."""
    memory: Bytes | None = None
    """Memory of one card."""


UserName = Annotated[str, BeforeValidator(_user)]
Port = Annotated[int, Field(ge=1, le=65535)]
Price = Annotated[float, Field(ge=0)]
Gpu = Annotated[GpuSpec, BeforeValidator(_count_only)]
"""Graphics cards; a bare number is their count."""


class MachineSpec(Spec):
    """A machine: how it is reached, what it has, what it costs."""

    host: Annotated[
        str, BeforeValidator(_host), Words("an address, a name or an alias of your ssh config")
    ]
    """Where ssh connects to."""
    name: Annotated[str, BeforeValidator(_name)] | None = None
    """What tables and messages call it; null: `host`."""
    address: Annotated[str, BeforeValidator(_host), Words("an address or a name")] | None = None
    """Where the other machines reach it; null: found out by the probe."""
    user: UserName | None = None
    """Who logs in; null: as your ssh config says, or your own name."""
    port: Port | None = None
    """Port of its ssh server; null: as your ssh config says, or 22."""
    key: str | None = None
    """Path of the private key; null: as your ssh config says."""
    agent: bool | None = None
    """true: only keys of the ssh agent; false: never the agent; null: as your ssh config says."""
    cores: Annotated[float, Field(gt=0)] | None = None
    """Cores that may be used; null: all that the probe finds."""
    memory: Bytes | None = None
    """Memory that may be used; null: all that the probe finds."""
    gpu: Gpu = GpuSpec(count=0)
    """Graphics cards: a number, or a mapping."""
    slots: PositiveInt = 1
    """Workers that it takes at the same time."""
    price_per_hour: Price | None = None
    """What an hour costs, in any one currency; 0 for a machine that costs nothing extra."""
    watts_idle: Watts | None = None
    """What it draws when it does nothing."""
    watts_full: Watts | None = None
    """What it draws with all cores busy."""
    energy_efficient: bool | None = None
    """Whether the policy `energy` takes it; null: judged by speed and watts."""
    labels: ListOf[str] = ()
    """Words of your own to select by, such as `rack-a`."""
    python: str = "python3"
    """The interpreter that runs Phalanx there."""
    workdir: str = "~/phalanx"
    """Where code and results go there."""

    @model_validator(mode="before")
    @classmethod
    def _no_secrets(cls, data: object) -> object:
        if isinstance(data, dict):
            for key in data:
                if str(key).lower() in SECRET_KEYS:
                    raise fault(
                        f"'{key}' is refused: whoever reads the file could log in with it",
                        "; use a key (`ssh-copy-id` installs it) or the ssh agent",
                        at=(str(key),),
                    )
        return data

    @model_validator(mode="after")
    def _consistent(self) -> MachineSpec:
        if self.key is not None and self.agent:
            raise fault("key and 'agent: true' exclude each other", "; keep one", at=("agent",))
        idle, full = self.watts_idle, self.watts_full
        if idle is not None and full is not None and full < idle:
            raise fault(
                f"watts_full ({full:g}) is below watts_idle ({idle:g})",
                "; a busy machine draws more",
                at=("watts_full",),
            )
        return self

    @property
    def title(self) -> str:
        """What tables and messages call it."""
        return self.name or self.host
