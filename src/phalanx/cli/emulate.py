"""Implement `phalanx pool emulate`: start, stop or describe a cluster on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from phalanx.cli import output
from phalanx.cli.options import FormatOption, JsonOption, argument, examples, option, wanted
from phalanx.cli.screen import open_console
from phalanx.report.document import Block, CellFormat, Column, Table, Value, line, tabulate, text
from phalanx.report.format import format_bytes, number_field, shown, text_field

if TYPE_CHECKING:
    from phalanx.pool.emulate.cluster import ClusterStatus, HostStatus

EXAMPLES = examples(
    "sudo phalanx pool emulate cluster.yaml up",
    "phalanx pool probe /var/lib/phalanx/emulated/lab/pool.yaml",
    "sudo phalanx pool emulate cluster.yaml status --json",
    "sudo phalanx pool emulate cluster.yaml down",
)


def emulate(
    cluster: Annotated[Path, argument("CLUSTER", "Cluster file in YAML.")],
    action: Annotated[Literal["up", "down", "status"], argument("up|down|status", "Action.")],
    state: Annotated[
        Path | None,
        option(
            "DIR",
            "State directory for keys, logs and pool file \\[default: /var/lib/phalanx/emulated].",
        ),
    ] = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Emulate a cluster on this machine: hosts with their own limits and real ssh servers."""
    from phalanx.pool.emulate.cluster import STATE_ROOT, EmulatedCluster
    from phalanx.spec.pool_file import load_cluster

    form = wanted(form, as_json)
    spec = load_cluster(cluster)
    found = EmulatedCluster(spec, state or STATE_ROOT)
    console = open_console()
    if action == "down":
        removed = found.down()
        said = f"removed {len(removed)} parts" if removed else "nothing was there"
        if form == "text":
            console.print(f"cluster {spec.cluster} is down; {said}", soft_wrap=True)
    elif action == "up":
        notes = found.up()
        if form == "text":
            for note in notes:
                console.print(f"note: {note}", soft_wrap=True, markup=False)
    if form != "text" or action != "down":
        status = found.status()
        output.show(lambda: status_blocks(status), facts=lambda: status, form=form)


def status_blocks(status: ClusterStatus) -> list[Block]:
    """Describe an emulated cluster: its hosts, leftovers, and what to try next."""
    blocks: list[Block] = [line(f"cluster {status.cluster} is {status.state}")]
    if status.hosts:
        blocks.append(_host_table(status))
    blocks += [line(f"left over: {name}") for name in status.leftovers]
    if status.pool is not None:
        blocks.append(line(f"try `phalanx pool probe {status.pool}`"))
    return blocks


def _host_table(status: ClusterStatus) -> Table:
    from phalanx.cli.pool_tables import format_speed

    def memory(host: HostStatus) -> Value:
        used = shown(host.memory_used_bytes, format_bytes)
        limit = host.memory_limit_bytes
        return used if limit is None else Value(f"{used.text} of {format_bytes(limit)}", used.raw)

    def speed(host: HostStatus) -> Value:
        bits = host.link_bits_per_s
        return shown(None if bits is None else bits / 8, format_speed)

    columns: list[tuple[Column, CellFormat[HostStatus]]] = [
        (Column("host", "host", is_text=True), lambda host: text(host.name)),
        text_field("address", "address"),
        (
            Column("ssh", "ssh", is_text=True),
            lambda host: text("answers" if host.answers else "silent"),
        ),
        (Column("link", "link", is_text=True), lambda host: text("up" if host.link_up else "down")),
        (Column("bytes_per_s", "speed"), speed),
        number_field("cores", "cores", "{:g}".format),
        (Column("memory_used_bytes", "memory"), memory),
        (Column("processes", "processes"), lambda host: shown(host.num_processes, str)),
    ]
    return tabulate("hosts", status.hosts, columns)
