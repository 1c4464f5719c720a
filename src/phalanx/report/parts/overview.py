"""Make the chapters `In short`, `What was run`, `Data distribution`, `How the figures are made`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from phalanx.errors import SpecError
from phalanx.records.distribution import Distribution
from phalanx.report.cells import Cell, differences, flatten, strategy_label
from phalanx.report.document import (
    NOTHING,
    Block,
    Column,
    Entries,
    Raw,
    Section,
    Table,
    Text,
    Value,
    join_words,
    label,
    number,
    pairs_table,
    table_of,
    text,
)
from phalanx.report.facts import RunRecord
from phalanx.report.format import count_noun, format_bytes
from phalanx.report.recommend import Advice
from phalanx.report.scope import Scope
from phalanx.spec.loader import job_from_mapping

# Listed last: these never explain a result.
_HOUSEKEEPING = (
    *("checkpoint.", "deadlines.", "observe.", "inject", "profile", "data.directory"),
    "python_path",
)


def in_short(scope: Scope, advice: Sequence[Advice]) -> Section:
    """Show the recommendation, and the number of runs that it rests on."""
    blocks: list[Block] = [
        Text(lines=advice_lines(advice), kind="lead"),
        Text(lines=[_extent(scope)]),
    ]
    if scope.left_out:
        blocks.append(Text(lines=[_left_out(scope)]))
    return Section(id="in-short", title="In short", blocks=blocks)


def _left_out(scope: Scope) -> str:
    names = [run.name for run in scope.left_out]
    more = f" and {len(names) - 4} more, listed under Doubts" if len(names) > 4 else ""
    return (
        f"{count_noun(len(names), 'run')} left out, with nothing to be compared with, on other "
        f"machines than most, or not finished: {', '.join(names[:4])}{more}."
    )


def advice_lines(advice: Sequence[Advice]) -> list[str]:
    """Write the recommendation of each task, which is named where there are several."""
    several = len(advice) > 1
    return [f"{one.task}: {one.sentence}" if several else one.sentence for one in advice]


def what_was_run(scope: Scope) -> Section:
    """Tabulate settings that all jobs share, cells, machines and versions."""
    jobs = [cell.job for cell in scope.cells]
    same, differing = differences(jobs)
    blocks: list[Block] = [
        _cells_table(scope),
        *_differences_table(scope.cells, differing),
        pairs_table("settings", "Settings that all runs share.", _grouped(same)),
        *_places(scope.material.runs),
    ]
    return Section(id="what-was-run", title="What was run", blocks=blocks)


def _extent(scope: Scope) -> str:
    runs = [run for cell in scope.cells for run in cell.runs]
    finished = sum(run.is_finished for run in runs)
    failed = sum(cell.num_failed for cell in scope.cells)
    seeds = sorted({run.seed for run in runs})
    sentence = (
        f"{count_noun(finished, 'finished run')} in {count_noun(len(scope.cells), 'cell')} "
        f"({count_noun(len(scope.tasks), 'task')}), {_seeds(seeds)}; "
        f"{count_noun(failed, 'run')} did not finish"
    )
    study = scope.material.study
    if study is not None:
        wanted = len(study.cells) * study.repeats.min
        if finished + failed < wanted:
            sentence += f"; the study is not complete, it plans at least {wanted} trials"
    return (
        f"{sentence}. Intervals are at {100 * scope.confidence:g} % unless another level is named."
    )


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 6:
        return f"{len(seeds)} seeds from {seeds[0]} to {seeds[-1]}"
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {join_words([str(seed) for seed in seeds])}"


def _cells_table(scope: Scope) -> Table:
    rows = []
    for cell in scope.cells:
        first = next((run.summary for run in cell.finished), None)
        share = cell.global_batch / cell.workers
        failed = number(cell.num_failed, 0, mark="doubt" if cell.num_failed else "")
        row = {
            label("task"): text(cell.task),
            label("method"): text(cell.method),
            label("batch"): text(cell.batch),
            label("strategy"): text(_strategy(cell)),
            Column("global_batch", "global batch", "samples"): number(cell.global_batch, 0),
            Column("worker_batch", "worker batch", "samples"): number(
                share, 0 if share.is_integer() else 1
            ),
            Column("workers", "workers"): number(cell.workers, 0),
            Column("threads", "threads each"): number(first.threads if first else None, 0),
            Column("parameters", "parameters"): number(first.parameters if first else None, 0),
            Column("updates", "updates"): number(first.updates if first else None, 0),
            Column("finished", "finished runs"): number(len(cell.finished), 0),
            Column("failed", "not finished"): failed,
        }
        rows.append(row)
    return table_of("cells", "The cells: runs in one cell differ in their seed only.", rows)


def _strategy(cell: Cell) -> str:
    """Describe the strategy of a cell with its settings, except defaults."""
    name = strategy_label(cell.job["strategy"])
    try:
        strategy = job_from_mapping(cell.job).strategy
    except SpecError:
        # Written by another version: only its name is shown.
        return name
    usual = flatten(type(strategy).model_construct().model_dump(mode="json"))
    own = flatten(strategy.model_dump(mode="json"))
    said = ("name", "consistency", "phases")
    set_ = [
        f"{key} {_setting(value)}"
        for key, value in own.items()
        if key not in said and value != usual.get(key)
    ]
    return ", ".join([name, *set_])


def _differences_table(cells: Sequence[Cell], differing: Sequence[str]) -> list[Table]:
    said = ("strategy.name", "workers", "batch.global", "model.name", "data.name")
    keys = [key for key in differing if key not in said]
    if not keys:
        return []
    rows = [
        {
            label("task"): text(cell.task),
            label("cell"): text(cell.label),
            **{label(key): text(_setting(own[key]) if key in own else NOTHING) for key in keys},
        }
        for cell in cells
        for own in [flatten(cell.job)]
    ]
    return [table_of("differences", "Other settings in which the cells differ.", rows)]


def _grouped(same: Mapping[str, object]) -> dict[str, Raw]:
    """Join the settings of each part of the job in one line, without those that are not set."""
    groups: dict[str, list[str]] = {}
    for key, value in same.items():
        if value is None or value == [] or key.startswith(_HOUSEKEEPING):
            continue
        group, _, part = key.partition(".")
        own = groups.setdefault(group, [])
        if part == "name" or not part:
            own.insert(0, _setting(value))
        else:
            own.append(f"{part} {_setting(value)}")
    return {group: ", ".join(parts) for group, parts in groups.items()}


def _places(runs: Sequence[RunRecord]) -> list[Block]:
    """Tabulate combinations of machine and versions; most runs share one."""
    places = Counter(_place(run) for run in runs)
    rows = [
        {Column("runs", "runs"): number(count, 0), **dict(place)}
        for place, count in sorted(
            places.items(), key=lambda item: (-item[1], [value.text for _, value in item[0]])
        )
    ]
    caption = "Where the runs ran, and with which versions."
    if len(rows) > 1:
        caption += " Runs on different machines or versions are compared all the same: mind it."
    return [table_of("machines", caption, rows)] if rows else []


def _place(run: RunRecord) -> tuple[tuple[Column, Value], ...]:
    manifest = run.manifest
    source = manifest.source
    state = f"{source['commit'][:10]}, {source['state']}" if "commit" in source else ""
    return (
        (label("machine"), text(", ".join(run.machines))),
        (label("processor"), text(manifest.cpu)),
        (Column("cores", "usable cores"), number(manifest.cores, 0)),
        (Column("memory_bytes", "memory"), text(format_bytes(manifest.memory_bytes))),
        (label("system"), text(manifest.system)),
        (label("phalanx", "Phalanx"), text(manifest.phalanx)),
        (label("python", "Python"), text(manifest.python)),
        (label("torch"), text(manifest.packages.get("torch", ""))),
        (label("source", "job's repository"), text(state)),
    )


def _setting(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "[" + ", ".join(_setting(one) for one in value) + "]"
    return str(value)


def notes(scope: Scope) -> Section:
    """Define every measure and statistic of the report."""
    loss = f"{scope.settings.accuracy_loss:g}"
    level = f"{100 * scope.confidence:g} %"
    lines = [
        "Training time is the time in training steps over all attempts, without start-up, "
        "evaluation and checkpoints between epochs; elapsed is from starting the processes until "
        "all have ended. Speed is samples over training time.",
        "Batch sizes: the global batch is over all workers, the worker batch that of one.",
        f"± is half the {level} t interval of the mean over runs with different seeds; n = 1 has "
        "none. Outliers are flagged and counted all the same; runs that did not finish are listed "
        "and not counted.",
        "Differences: paired t test where both cells have the same seeds, else Welch's test; "
        "p-values adjusted after Holm over all pairs. Ratios of means have Fieller's interval.",
        "Equivalence: two one-sided tests (TOST) against the stated tolerance.",
        "Pareto front: cells that no other cell beats in mean time and mean quality.",
        f"Recommendation: among cells whose mean quality is at most {loss} below "
        f"the best, the one with the least {scope.saved.title}.",
        "Every figure comes from the run directories; made again from the same records, this "
        "report has the same bytes.",
    ]
    return Section(
        id="notes", title="How the figures are made", blocks=[Text(lines=lines, kind="list")]
    )


def show_data_distribution(scope: Scope) -> Section | None:
    """Tabulate the cells whose workers owned samples; None if there are none."""
    rows = [
        {label("task"): text(cell.task), label("cell"): text(cell.label), **_values(dealt)}
        for cell in scope.cells
        for dealt in [run.distribution for run in cell.runs if run.distribution][:1]
    ]
    if not rows:
        return None
    intro = (
        "Of the first run of each cell. Skew is the mean over workers of the distance between a "
        "worker's mix of classes and that of all (0: the same, 1: nothing in common); ratio is "
        "the largest part over the smallest. Where an epoch has other than the divided samples, "
        "workers hold copies, drop some or begin again: compare by samples or updates, not by "
        "epochs. Batch normalisation uses each worker's own batch, and running statistics are "
        "averaged over workers at the end of an epoch."
    )
    table = table_of("data-spread", "How samples were partitioned.", rows)
    return Section(
        id="data-distribution", title="Data distribution", blocks=[Text(lines=[intro]), table]
    )


def _values(dealt: Distribution) -> Entries:
    named = ", ".join(f"{key} {value}" for key, value in dealt.settings.items())
    return {
        label("scheme"): text(f"{dealt.scheme} ({named})" if named else dealt.scheme),
        Column("workers", "workers"): number(len(dealt.workers), 0),
        Column("skew", "skew"): number(dealt.skew, 3),
        Column("size_ratio", "ratio"): number(dealt.size_ratio, 2),
        Column("num_samples", "samples divided"): number(dealt.num_samples, 0),
        Column("samples_per_epoch", "samples per epoch"): number(dealt.samples_per_epoch, 0),
        Column("num_steps", "steps per epoch"): number(dealt.num_steps, 0),
    }
