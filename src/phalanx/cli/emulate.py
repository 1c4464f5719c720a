"""`phalanx pool emulate`: a cluster on this machine, up, down, or how it stands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.errors import SpecError

if TYPE_CHECKING:
    from rich.table import Table

    from phalanx.pool.emulate.cluster import ClusterStatus

EXAMPLES = """
[bold]Examples[/bold]

sudo phalanx pool emulate cluster.yaml up

phalanx pool probe /var/lib/phalanx/emulated/lab/pool.yaml

sudo phalanx pool emulate cluster.yaml status --json

sudo phalanx pool emulate cluster.yaml down
"""

_ACTIONS = ("up", "down", "status")


def emulate(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER", help="The cluster file, in YAML.")],
    action: Annotated[str, typer.Argument(metavar="up|down|status", help="What to do.")],
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where keys, logs and the pool file go \\[default: /var/lib/phalanx/emulated].",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object.")
    ] = False,
) -> None:
    """Emulate a cluster on this machine: hosts with limits of their own and real ssh servers."""
    from phalanx.cli.screen import open_console
    from phalanx.pool.emulate.cluster import STATE_ROOT, EmulatedCluster
    from phalanx.spec.pool_file import load_cluster

    if action not in _ACTIONS:
        raise SpecError(f"unknown action '{action}'; write {', '.join(_ACTIONS[:-1])} or status")
    spec = load_cluster(cluster)
    found = EmulatedCluster(spec, state or STATE_ROOT)
    console = open_console()
    if action == "down":
        removed = found.down()
        said = f"removed {len(removed)} parts" if removed else "nothing was there"
        if not as_json:
            console.print(f"cluster {spec.cluster} is down; {said}", soft_wrap=True)
    elif action == "up":
        notes = found.up()
        if not as_json:
            for note in notes:
                console.print(f"note: {note}", soft_wrap=True, markup=False)
    if as_json:
        from phalanx.cli.train import print_json

        print_json(found.status())
    elif action != "down":
        _show(found.status())


def _show(status: ClusterStatus) -> None:
    from phalanx.cli.screen import open_console

    console = open_console()
    console.print(f"cluster {status.cluster} is {status.state}", soft_wrap=True)
    if status.hosts:
        console.print(render_hosts(status))
    for name in status.leftovers:
        console.print(f"left over: {name}", soft_wrap=True, markup=False)
    if status.pool is not None:
        console.print(f"try `phalanx pool probe {status.pool}`", soft_wrap=True, markup=False)


def render_hosts(status: ClusterStatus) -> Table:
    """One row per host."""
    from rich.table import Table

    from phalanx.cli.pool_tables import format_speed
    from phalanx.report.format import NOTHING, format_bytes

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("host", "address", "ssh", "link", "speed", "cores", "memory", "processes"):
        is_number = heading in ("speed", "cores", "memory", "processes")
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    for host in status.hosts:
        used = NOTHING if host.memory_used_bytes is None else format_bytes(host.memory_used_bytes)
        limit = host.memory_limit_bytes
        table.add_row(
            host.name,
            host.address,
            "answers" if host.answers else "silent",
            "up" if host.link_up else "down",
            NOTHING if host.link_bits_per_s is None else format_speed(host.link_bits_per_s / 8),
            f"{host.cores:g}",
            used if limit is None else f"{used} of {format_bytes(limit)}",
            str(host.num_processes),
        )
    return table
