"""Register launchers: the built-in ones and those of other packages.

Another package registers one by an entry point in the group `phalanx.launchers`, or the user names
it as `package.module:name`; either refers to a `LauncherKind`.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import SpecError
from phalanx.launch.base import Launcher, LaunchRequest
from phalanx.spec.registry import Registry, load


@dataclass(frozen=True)
class LauncherKind:
    """Registration of one launcher.

    Attributes:
        name: Name for `--launch`.
        launcher: Import path of its `Launcher` class, such as `phalanx.launch.ssh:SshLauncher`;
            imported on use.
        summary: What it does, in a few words.
        takes_pool: Whether it accepts a pool; False: a pool is refused.
        needs_pool: Whether it requires a pool.
    """

    name: str
    launcher: str
    summary: str
    takes_pool: bool = True
    needs_pool: bool = False


LAUNCHERS = Registry(
    "launcher",
    LauncherKind,
    group="phalanx.launchers",
    built_in={
        "local": LauncherKind(
            "local",
            "phalanx.launch.local:LocalLauncher",
            "processes of this machine",
            takes_pool=False,
        ),
        "ssh": LauncherKind(
            "ssh",
            "phalanx.launch.ssh:SshLauncher",
            "the machines of a pool, over ssh",
            needs_pool=True,
        ),
    },
)


def make_launcher(name: str | None, request: LaunchRequest) -> Launcher:
    """Construct the launcher of this name for a run; starts nothing.

    Args:
        name: From the table, or `package.module:name`; None: `ssh` with a pool, else `local`.
        request: Job, data and machines.

    Raises:
        SpecError: The name is unknown, or the launcher does not support the request.
    """
    kind = LAUNCHERS.find(name or default_launcher(has_pool=request.pool is not None))
    if request.pool is not None and not kind.takes_pool:
        raise SpecError(
            f"launcher '{kind.name}' runs on this machine; leave out --launch, or the pool"
        )
    if request.pool is None and kind.needs_pool:
        raise SpecError(f"launcher '{kind.name}' needs machines; name a pool with --pool")
    made = load(kind.launcher)
    if not (isinstance(made, type) and issubclass(made, Launcher)):
        raise SpecError(f"launcher '{kind.name}': '{kind.launcher}' is no Launcher class")
    return made(request)


def default_launcher(*, has_pool: bool) -> str:
    """Return the name of the launcher used when a run names none."""
    return "ssh" if has_pool else "local"
