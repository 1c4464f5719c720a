"""Machines and links as tables, and as the JSON of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from phalanx.agent.ssh import Fault
from phalanx.cli.screen import BAR_DONE_STYLE, WARNING_STYLE
from phalanx.pool.inventory import Inventory, Member, differences
from phalanx.pool.selection import Selection
from phalanx.report.format import NOTHING, format_bytes

# A matrix of more machines does not fit a screen; `--json` has all of them.
_MAX_MATRIX = 12
_NUMBERS = ("cores", "memory", "gpus", "GFLOP/s", "bf16", "conv", "per hour", "watts", "clock")


def format_speed(bytes_per_s: float) -> str:
    """The speed of a link in bits, as links are sold: `95.6 Mbit/s`, `1.20 Gbit/s`."""
    bits_per_s = bytes_per_s * 8
    if bits_per_s >= 1e9:
        return f"{bits_per_s / 1e9:.2f} Gbit/s"
    return f"{bits_per_s / 1e6:.1f} Mbit/s"


def format_moment(seconds: float) -> str:
    """A short time: `45 µs`, `2.3 ms`, `1.2 s`."""
    size = abs(seconds)
    if size < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if size < 1 else f"{seconds:.1f} s"


def render_check(inventory: Inventory, faults: Mapping[str, Fault]) -> list[RenderableType]:
    """One row per machine: whether it answers, and with what."""
    table = _table("", "machine", "python", "torch", "phalanx", "free memory", "clock", "note")
    for member in inventory.members:
        fault = faults.get(member.identity)
        if member.probe is None:
            reason = fault.reason if fault else "not asked"
            table.add_row(_mark(False), member.title, *[NOTHING] * 5, Text(reason))
            continue
        looks, clock = member.probe.looks, member.probe.clock
        table.add_row(
            _mark(True),
            member.title,
            looks.python,
            looks.torch or "none",
            looks.phalanx or "none",
            format_bytes(looks.memory_free_bytes),
            f"{format_moment(clock.offset_s)} ± {format_moment(clock.error_s)}",
            "",
        )
    return [table, *_warnings(inventory)]


def render_machines(
    inventory: Inventory, selection: Selection | None = None
) -> list[RenderableType]:
    """One row per machine: what it has, does and costs, and who is selected."""
    head = ("", "machine", "processor", "cores", "memory", "gpus", "GFLOP/s", "conv", "bf16")
    table = _table(*head, "per hour", "watts", "probed", "note")
    for member in inventory.members:
        reason = "" if selection is None else selection.refused.get(member.title, "")
        mark = Text("·", "dim") if reason else _mark(member.probe is not None or bool(selection))
        table.add_row(mark, *_machine_cells(member), Text(reason))
    parts: list[RenderableType] = [table]
    if selection is not None:
        chosen = ", ".join(one.title for one in selection.chosen)
        parts.append(
            Text(f"selected {len(selection.chosen)} of {len(inventory.members)}: {chosen}")
        )
    return [*parts, *_warnings(inventory)]


def render_links(inventory: Inventory) -> list[RenderableType]:
    """Speed and round trip from each machine to each other one, if any is known."""
    members = inventory.members
    if not any(one.probe and (one.probe.links or one.probe.link_faults) for one in members):
        return []
    if len(members) > _MAX_MATRIX:
        return [Text(f"links of {len(members)} machines: see --json", "dim")]
    table = _table("from ↓ to →", *(one.title for one in members))
    for start in members:
        cells = [
            Text("·", "dim") if start is end else _link_cell(inventory, start, end)
            for end in members
        ]
        table.add_row(start.title, *cells)
    return [Text(), table]


def probe_facts(inventory: Inventory, faults: Mapping[str, Fault]) -> dict[str, Any]:
    """What `check --json` and `probe --json` print."""
    return {
        "pool": inventory.name,
        "machines": [_member_facts(one, inventory) for one in inventory.members],
        "faults": list(faults.values()),
        "warnings": differences(inventory),
    }


def inventory_facts(inventory: Inventory, selection: Selection) -> dict[str, Any]:
    """What `show --json` prints."""
    return {
        "pool": inventory.name,
        "selected": [one.title for one in selection.chosen],
        "refused": selection.refused,
        "machines": [_member_facts(one, inventory) for one in inventory.members],
        "warnings": differences(inventory),
    }


def _member_facts(member: Member, inventory: Inventory) -> dict[str, Any]:
    names = {one.identity: one.title for one in inventory.members}
    probe: Any = None if member.probe is None else msgspec.to_builtins(member.probe)
    if probe is not None:
        for key in ("links", "link_faults"):
            found = probe[key].items()
            probe[key] = {names[other]: one for other, one in found if other in names}
    return {
        "name": member.title,
        "declared": member.spec.model_dump(mode="json"),
        "cores": member.cores,
        "memory_bytes": member.memory_bytes,
        "num_gpus": member.num_gpus,
        "gflops": member.gflops,
        "probe": probe,
    }


def _machine_cells(member: Member) -> list[str]:
    spec, probe = member.spec, member.probe
    speed = probe.speed if probe else None
    idle, full = spec.watts_idle, spec.watts_full
    return [
        member.title,
        probe.looks.cpu if probe else NOTHING,
        NOTHING if member.cores is None else f"{member.cores:g}",
        NOTHING if member.memory_bytes is None else format_bytes(member.memory_bytes),
        str(member.num_gpus),
        NOTHING if member.gflops is None else f"{member.gflops:.1f}",
        NOTHING if speed is None else f"{speed.conv_all_gflops:.1f}",
        NOTHING if speed is None else f"{speed.bf16_gemm_all_gflops:.1f}",
        NOTHING if spec.price_per_hour is None else f"{spec.price_per_hour:g}",
        NOTHING if idle is None and full is None else f"{_or_nothing(idle)}-{_or_nothing(full)}",
        probe.measured_at[:16].replace("T", " ") if probe else "never",
    ]


def _or_nothing(number: float | None) -> str:
    return "?" if number is None else f"{number:g}"


def _link_cell(inventory: Inventory, start: Member, end: Member) -> Text:
    link = inventory.link(start, end)
    if link is not None:
        return Text(f"{format_speed(link.bytes_per_s)}, {format_moment(link.round_trip_s)}")
    failed = start.probe is not None and end.identity in start.probe.link_faults
    return Text("no way", WARNING_STYLE) if failed else Text(NOTHING)


def _warnings(inventory: Inventory) -> list[Text]:
    found = differences(inventory)
    names = {one.identity: one.title for one in inventory.members}
    for member in inventory.members:
        faults = member.probe.link_faults if member.probe else {}
        found += [
            f"{member.title} does not reach {names[other]}: {reason}"
            for other, reason in faults.items()
            if other in names
        ]
    return [Text(f"! {text}", WARNING_STYLE) for text in found]


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in _NUMBERS else "left",
            no_wrap=heading != "note",
            overflow="fold",
        )
    return table


def _mark(good: bool) -> Text:
    return Text("ok", BAR_DONE_STYLE) if good else Text("! ", WARNING_STYLE)
