"""Describe machines and links as tables, and as the JSON of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from phalanx.agent.line import Fault
from phalanx.pool.inventory import Inventory, Member, differences
from phalanx.pool.selection import Selection
from phalanx.report.document import Block, CellFormat, Column, Table, Value, line, tabulate
from phalanx.report.format import NOTHING, format_bytes, number_field, shown

# A matrix of more machines does not fit a screen; `--json` has all of them.
_MAX_MATRIX = 12


def format_speed(bytes_per_s: float) -> str:
    """Format the bandwidth of a link in bits, as links are sold: `95.6 Mbit/s`, `1.20 Gbit/s`."""
    bits_per_s = bytes_per_s * 8
    if bits_per_s >= 1e9:
        return f"{bits_per_s / 1e9:.2f} Gbit/s"
    return f"{bits_per_s / 1e6:.1f} Mbit/s"


def format_moment(seconds: float) -> str:
    """Format a short time: `45 µs`, `2.3 ms`, `1.2 s`."""
    size = abs(seconds)
    if size < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if size < 1 else f"{seconds:.1f} s"


def check_blocks(inventory: Inventory, faults: Mapping[str, Fault]) -> list[Block]:
    """Describe whether each machine answers, and with which versions and clock."""

    def note(member: Member) -> Value:
        fault = faults.get(member.identity)
        reason = "" if member.probe else fault.reason if fault else "not asked"
        return Value(reason, reason)

    columns: list[tuple[Column, CellFormat[Member]]] = [
        (Column("answers", "", is_text=True), lambda one: _mark(one.probe is not None)),
        (_MACHINE, _title),
        (Column("python", "python", is_text=True), lambda one: _version(one, "python")),
        (Column("torch", "torch", is_text=True), lambda one: _version(one, "torch")),
        (Column("phalanx", "phalanx", is_text=True), lambda one: _version(one, "phalanx")),
        (Column("memory_free_bytes", "free memory"), _free_memory),
        (Column("clock_offset_s", "clock"), _clock),
        (_NOTE, note),
    ]
    return [tabulate("check", inventory.members, columns), *_warnings(inventory)]


def machine_blocks(inventory: Inventory, selection: Selection | None = None) -> list[Block]:
    """Describe hardware, speed and cost of each machine, and which ones are selected."""

    def reason(member: Member) -> str:
        return "" if selection is None else selection.refused.get(member.title, "")

    def mark(member: Member) -> Value:
        if reason(member):
            return Value("·", False, "weak")
        return _mark(member.probe is not None or bool(selection))

    columns: list[tuple[Column, CellFormat[Member]]] = [
        (Column("selected", "", is_text=True), mark),
        (_MACHINE, _title),
        *_MACHINE_COLUMNS,
        (_NOTE, lambda one: Value(reason(one), reason(one))),
    ]
    blocks: list[Block] = [tabulate("machines", inventory.members, columns)]
    if selection is not None:
        chosen = ", ".join(one.title for one in selection.chosen)
        count = f"{len(selection.chosen)} of {len(inventory.members)}"
        blocks.append(line(f"selected {count}: {chosen}"))
    return [*blocks, *_warnings(inventory)]


def link_blocks(inventory: Inventory) -> list[Block]:
    """Describe bandwidth and round trip from each machine to each other one, if any is known."""
    members = inventory.members
    if not any(one.probe and (one.probe.links or one.probe.link_faults) for one in members):
        return []
    if len(members) > _MAX_MATRIX:
        return [line(f"links of {len(members)} machines: see --json", "note")]
    ends = [Column(one.title, one.title, is_text=True) for one in members]
    rows = [[_title(one), *(_link(inventory, one, end) for end in members)] for one in members]
    head = Column("from", "from ↓ to →", is_text=True)
    return [line(""), Table(id="links", caption="", columns=[head, *ends], rows=rows)]


def probe_facts(inventory: Inventory, faults: Mapping[str, Fault]) -> dict[str, Any]:
    """Return the JSON object of `check --json` and `probe --json`."""
    return _pool_facts(inventory, faults=list(faults.values()))


def inventory_facts(inventory: Inventory, selection: Selection) -> dict[str, Any]:
    """Return the JSON object of `show --json`."""
    chosen = [one.title for one in selection.chosen]
    return _pool_facts(inventory, selected=chosen, refused=selection.refused)


def _pool_facts(inventory: Inventory, **facts: object) -> dict[str, Any]:
    machines = [_member_facts(one, inventory) for one in inventory.members]
    warnings = differences(inventory)
    return {"pool": inventory.name, **facts, "machines": machines, "warnings": warnings}


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


def _title(member: Member) -> Value:
    return Value(member.title, member.title)


def _version(member: Member, name: str) -> Value:
    if member.probe is None:
        return Value(NOTHING)
    version = getattr(member.probe.looks, name)
    return Value(version or "none", version)


def _free_memory(member: Member) -> Value:
    return shown(member.probe.looks.memory_free_bytes if member.probe else None, format_bytes)


def _clock(member: Member) -> Value:
    if member.probe is None:
        return Value(NOTHING)
    clock = member.probe.clock
    error = format_moment(clock.error_s)
    return Value(f"{format_moment(clock.offset_s)} ± {error}", clock.offset_s)


def _watts(member: Member) -> Value:
    ends = (member.spec.watts_idle, member.spec.watts_full)
    if ends == (None, None):
        return Value(NOTHING, ends)
    return Value("-".join("?" if one is None else f"{one:g}" for one in ends), ends)


def _probed(member: Member) -> Value:
    if member.probe is None:
        return Value("never")
    return Value(member.probe.measured_at[:16].replace("T", " "), member.probe.measured_at)


def _probed_gflops(name: str) -> CellFormat[Member]:
    def cell(member: Member) -> Value:
        speed = member.probe.speed if member.probe else None
        return shown(getattr(speed, name) if speed else None, "{:.1f}".format)

    return cell


_MACHINE = Column("machine", "machine", is_text=True)
_NOTE = Column("note", "note", is_text=True, wraps=True)
_MACHINE_COLUMNS: list[tuple[Column, CellFormat[Member]]] = [
    (
        Column("processor", "processor", is_text=True),
        lambda one: shown(one.probe.looks.cpu if one.probe else None, str),
    ),
    number_field("cores", "cores", "{:g}".format),
    number_field("memory_bytes", "memory", format_bytes),
    (Column("gpus", "gpus"), lambda one: shown(one.num_gpus, str)),
    number_field("gflops", "GFLOP/s", "{:.1f}".format),
    (Column("conv_gflops", "conv"), _probed_gflops("conv_all_gflops")),
    (Column("bf16_gflops", "bf16"), _probed_gflops("bf16_gemm_all_gflops")),
    (
        Column("price_per_hour", "per hour"),
        lambda one: shown(one.spec.price_per_hour, "{:g}".format),
    ),
    (Column("watts", "watts"), _watts),
    (Column("probed", "probed", is_text=True), _probed),
]


def _link(inventory: Inventory, start: Member, end: Member) -> Value:
    if start is end:
        return Value("·", None, "weak")
    link = inventory.link(start, end)
    if link is not None:
        text = f"{format_speed(link.bytes_per_s)}, {format_moment(link.round_trip_s)}"
        return Value(text, link.bytes_per_s)
    failed = start.probe is not None and end.identity in start.probe.link_faults
    return Value("no route", None, "doubt") if failed else Value(NOTHING)


def _warnings(inventory: Inventory) -> list[Block]:
    found = differences(inventory)
    names = {one.identity: one.title for one in inventory.members}
    for member in inventory.members:
        faults = member.probe.link_faults if member.probe else {}
        found += [
            f"{member.title} does not reach {names[other]}: {reason}"
            for other, reason in faults.items()
            if other in names
        ]
    return [line(f"! {text}", "doubt") for text in found]


def _mark(good: bool) -> Value:
    return Value("ok", True, "good") if good else Value("! ", False, "doubt")
