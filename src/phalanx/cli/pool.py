"""Implement `phalanx pool`: check, measure and select the machines of a pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli import output
from phalanx.cli.emulate import EXAMPLES as EMULATE_EXAMPLES
from phalanx.cli.emulate import emulate
from phalanx.cli.machines import (
    POLICIES,
    WhereOption,
    open_cache,
    read_pool,
    select_machines,
)
from phalanx.cli.options import Format, FormatOption, JsonOption, argument, examples, option, wanted
from phalanx.cli.screen import open_console
from phalanx.errors import LaunchError, PhalanxError, SpecError
from phalanx.report.document import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from phalanx.agent.line import Fault
    from phalanx.pool.inventory import Inventory
    from phalanx.pool.probe import PoolProbe, ProbeOptions
    from phalanx.spec.pool import PoolSpec

app = typer.Typer(no_args_is_help=True)

CHECK_EXAMPLES = examples(
    "phalanx pool check pool.yaml",
    "phalanx pool check pool.yaml --where name=alpha --json",
)
PROBE_EXAMPLES = examples(
    "phalanx pool probe pool.yaml",
    "phalanx pool probe pool.yaml --no-links",
    "phalanx pool probe pool.yaml --policy gpu --json > probes.json",
)
SHOW_EXAMPLES = examples(
    "phalanx pool show pool.yaml",
    "phalanx pool show pool.yaml --policy fastest:2",
    "phalanx pool show pool.yaml --policy cpu --where 'cpus: 4+' --where 'memory: 8GB+'",
    "phalanx pool show pool.yaml --policy energy",
)

PoolArgument = Annotated[Path, argument("POOL", "Pool file in YAML.")]
PolicyOption = Annotated[str, option("NAME", f"{POLICIES} of them.")]


@app.command("check", epilog=CHECK_EXAMPLES)
def check(
    pool: PoolArgument,
    policy: PolicyOption = "all",
    where: WhereOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Log in to every machine and report reachability, versions and clock offset."""
    from phalanx.cli.pool_tables import check_blocks
    from phalanx.pool.probe import ProbeOptions

    spec, found = _asked(pool, policy, where, ProbeOptions(quick=True))
    _show(spec, found, lambda one: check_blocks(one, found.faults), wanted(form, as_json))


@app.command("probe", epilog=PROBE_EXAMPLES)
def probe(
    pool: PoolArgument,
    policy: PolicyOption = "all",
    where: WhereOption = None,
    links: Annotated[
        bool, option(None, "Measure links between machines as well.", "--links/--no-links")
    ] = True,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Measure every machine and every link between two of them, and cache the results."""
    from phalanx.cli.pool_tables import link_blocks, machine_blocks
    from phalanx.pool.probe import ProbeOptions

    spec, found = _asked(pool, policy, where, ProbeOptions(links=links))
    cache = open_cache()
    for key, one in found.probes.items():
        cache.keep(key, one)
    _show(spec, found, lambda one: [*machine_blocks(one), *link_blocks(one)], wanted(form, as_json))


@app.command("show", epilog=SHOW_EXAMPLES)
def show(
    pool: PoolArgument,
    policy: PolicyOption = "all",
    where: WhereOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Show cached facts of the machines and which of them a policy selects; contacts none."""
    from phalanx.cli.pool_tables import inventory_facts, link_blocks, machine_blocks

    spec = read_pool(pool)
    inventory, selection = select_machines(spec, policy, where)
    output.show(
        lambda: [*machine_blocks(inventory, selection), *link_blocks(inventory)],
        facts=lambda: inventory_facts(inventory, selection),
        form=wanted(form, as_json),
    )


app.command("emulate", epilog=EMULATE_EXAMPLES)(emulate)


def _asked(
    pool: Path, policy: str, where: list[str] | None, options: ProbeOptions
) -> tuple[PoolSpec, PoolProbe]:
    """Probe the selected machines; progress goes to standard error if that is a terminal."""
    from phalanx.pool.probe import probe_pool

    spec = read_pool(pool)
    _, selection = select_machines(spec, policy, where)
    spec = spec.model_copy(update={"machines": tuple(one.spec for one in selection.chosen)})
    console = open_console(stderr=True)
    if not console.is_terminal:
        return spec, probe_pool(spec, options)
    with console.status(f"asking {len(spec.machines)} machines") as line:
        return spec, probe_pool(spec, options, line.update)


def _show(
    spec: PoolSpec,
    found: PoolProbe,
    blocks: Callable[[Inventory], list[Block]],
    form: Format,
) -> None:
    """Print what was found, then raise an error if a machine could not be used."""
    from phalanx.cli.pool_tables import probe_facts
    from phalanx.pool.inventory import merge

    inventory = merge(spec, found.probes)
    facts = probe_facts(inventory, found.faults)
    output.show(lambda: blocks(inventory), facts=lambda: facts, form=form)
    if found.faults:
        raise _error_for(list(found.faults.values()), len(spec.machines))


def _error_for(faults: Sequence[Fault], num_machines: int) -> PhalanxError:
    from phalanx.agent.line import MISTAKES

    # A mistake in a file is bad input; a machine that is down is not.
    kind = SpecError if all(one.kind in MISTAKES for one in faults) else LaunchError
    each = "; ".join(f"{one.machine}: {one.reason}" for one in faults)
    return kind(f"{len(faults)} of {num_machines} machines cannot be used: {each}")
