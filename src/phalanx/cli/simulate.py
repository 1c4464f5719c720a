"""Implement `phalanx simulate`: strategies with hundreds of workers in virtual time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from phalanx.cli import output
from phalanx.cli.options import (
    CalibrateOption,
    DataOption,
    FormatOption,
    JobArgument,
    JsonOption,
    PoolOption,
    RunsOption,
    SetOption,
    examples,
    option,
    wanted,
)
from phalanx.cli.plan import announce, inventory_of
from phalanx.cli.settings import cache_root, data_root, runs_root
from phalanx.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.simulate.perturbation import Crash
    from phalanx.simulate.scenario import Figures, Stragglers
    from phalanx.spec.job import JobSpec
    from phalanx.spec.strategy import StrategySpec

EXAMPLES = examples(
    "phalanx simulate job.yaml --workers 200 --compute-ms 80 --parameters 11e6 --bandwidth 1Gbit/s",
    "phalanx simulate job.yaml --workers 64 --stragglers 0.1:4 --strategy bsp --strategy async",
    "phalanx simulate job.yaml --pool pool.yaml --crash 3@20+5 --chart stragglers.html",
)

_STRAGGLERS = re.compile(r"^([\d.]+):([\d.]+)(?::([\d.]+):([\d.]+))?$")
_CRASH = re.compile(r"^(\d+)@([\d.]+)(?:\+([\d.]+))?$")


StrategyOption = Annotated[
    list[str] | None,
    option(
        "NAME",
        "Strategy to simulate: a name, a consistency such as ssp, or a mapping as in "
        "job files; repeatable \\[default: five common ones].",
    ),
]
WorkersOption = Annotated[int | None, option("N", "Workers \\[default: the job's].", min=1)]
RoundsOption = Annotated[int, option("N", "Steps per worker to simulate.", min=1)]
StragglersOption = Annotated[
    str | None,
    option(
        "SHARE:FACTOR",
        "Slow machines: 0.1:4 makes a tenth 4 times slower; 0.1:4:30:5 in spells of "
        "5 s, 30 s apart on average.",
    ),
]
CrashOption = Annotated[
    list[str] | None,
    option(
        "RANK@SECONDS", "Crash a worker: 3@20, or 3@20+5 if it is replaced after 5 s; repeatable."
    ),
]
ComputeOption = Annotated[
    float | None, option("MS", "Compute time of one worker's step; replaces calibration.")
]
ParametersOption = Annotated[float | None, option("N", "Model parameters; with --compute-ms.")]
BandwidthOption = Annotated[str, option("SPEED", "Bandwidth of each port; with --compute-ms.")]
LatencyOption = Annotated[float, option("MS", "One-way latency; with --compute-ms.")]
JitterOption = Annotated[
    float, option(None, "Deviation of step times over their mean; with --compute-ms.", min=0)
]
ChartOption = Annotated[Path | None, option("FILE", "Write charts as .html or .svg.")]
SeedOption = Annotated[int, option("N", "Random seed.")]


def simulate(
    job: JobArgument,
    strategy: StrategyOption = None,
    workers: WorkersOption = None,
    rounds: RoundsOption = 20,
    stragglers: StragglersOption = None,
    crash: CrashOption = None,
    compute_ms: ComputeOption = None,
    parameters: ParametersOption = None,
    bandwidth: BandwidthOption = "1Gbit/s",
    latency_ms: LatencyOption = 0.2,
    jitter: JitterOption = 0.1,
    pool: PoolOption = None,
    calibrate: CalibrateOption = "auto",
    chart: ChartOption = None,
    seed: SeedOption = 1,
    settings: SetOption = None,
    runs: RunsOption = None,
    data: DataOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Simulate strategies with hundreds of workers, stragglers and crashes.

    Nothing is trained. Machines are either described by --compute-ms and --parameters, or copied
    from calibrated ones.
    """
    from phalanx import api
    from phalanx.cli.simulation import simulation_blocks, write_chart
    from phalanx.simulate.scenario import Scenario
    from phalanx.spec.loader import load_job

    if chart is not None and chart.suffix not in (".html", ".svg"):
        raise SpecError(f"--chart {chart}: the name must end in .html or .svg")
    spec = load_job(job, settings or ())
    number = workers or spec.workers
    batch = max(1, spec.global_batch // spec.workers)
    scenario = Scenario(
        workers=number,
        batch=batch,
        rounds=rounds,
        stragglers=parse_stragglers(stragglers),
        crashes=tuple(parse_crash(one) for one in crash or ()),
        seed=seed,
    )
    common = [*(settings or ()), f"workers={number}", f"batch.per_worker={batch}"]
    found = api.simulate(
        spec,
        scenario,
        strategies=[_strategy(job, common, one) for one in strategy or ()] or None,
        figures=_figures(compute_ms, parameters, bandwidth, latency_ms, jitter),
        pool=inventory_of(pool),
        calibrate=calibrate,
        runs=runs_root(runs),
        data_root=data_root(data),
        cache_root=cache_root(),
        on_trial=announce(),
    )
    if chart is not None:
        write_chart(found, scenario, chart)
    output.show(
        lambda: simulation_blocks(found, scenario),
        facts=lambda: {"scenario": scenario, "strategies": found},
        form=wanted(form, as_json),
    )


def parse_stragglers(text: str | None) -> Stragglers | None:
    """Read `SHARE:FACTOR` or `SHARE:FACTOR:NORMAL_S:SLOW_S`."""
    from phalanx.simulate.scenario import Stragglers

    if text is None:
        return None
    found = _STRAGGLERS.match(text)
    if found is None or not 0 < float(found[1]) <= 1 or float(found[2]) < 1:
        raise SpecError(
            f"--stragglers {text}: write SHARE:FACTOR, such as 0.1:4, with a share up to 1 and a "
            "factor of at least 1, or SHARE:FACTOR:SECONDS_BETWEEN:SECONDS_SLOW"
        )
    spells = [None if one is None else float(one) for one in found.groups()[2:]]
    return Stragglers(
        share=float(found[1]), factor=float(found[2]), normal_s=spells[0], slow_s=spells[1]
    )


def parse_crash(text: str) -> Crash:
    """Read `RANK@SECONDS`, with `+SECONDS` until a successor takes part."""
    from phalanx.simulate.perturbation import Crash

    found = _CRASH.match(text)
    if found is None:
        raise SpecError(f"--crash {text}: write RANK@SECONDS, such as 3@20, or 3@20+5")
    back = None if found[3] is None else float(found[3])
    return Crash(rank=int(found[1]), at_s=float(found[2]), back_s=back)


def _strategy(path: Path, overrides: Sequence[str], text: str) -> StrategySpec:
    """Read a strategy as a job file would have it; a consistency alone means its servers."""
    from phalanx.spec.loader import load_job
    from phalanx.spec.parameter_server import Consistency

    if text in get_args(Consistency):
        dispatch = ", dispatch: dynamic" if text == "async" else ""
        text = f"{{name: parameter_server, consistency: {text}{dispatch}}}"
    job: JobSpec = load_job(path, [*overrides, f"strategy={text}"])
    return job.strategy


def _figures(
    compute_ms: float | None,
    parameters: float | None,
    bandwidth: str,
    latency_ms: float,
    jitter: float,
) -> Figures | None:
    from phalanx.simulate.scenario import Figures
    from phalanx.spec.quantity import parse_bits_per_s

    if (compute_ms is None) != (parameters is None):
        raise SpecError(
            "--compute-ms and --parameters go together: one says how long a step computes, the "
            "other how much it exchanges; without both, earlier runs tell"
        )
    if compute_ms is None or parameters is None:
        return None
    speed = parse_bits_per_s(bandwidth)
    if speed is None:
        raise SpecError(f"--bandwidth {bandwidth}: write 100Mbit/s or 1Gbit/s")
    if compute_ms <= 0 or parameters < 1 or latency_ms < 0:
        raise SpecError("--compute-ms, --parameters and --latency-ms must be above zero")
    return Figures(
        compute_s=compute_ms / 1e3,
        num_parameters=int(parameters),
        bandwidth_bytes_per_s=speed / 8,
        latency_s=latency_ms / 1e3,
        jitter=jitter,
    )
