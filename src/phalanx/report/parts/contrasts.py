"""Make the chapters `Same result?` and `Head to head`: gate first, then differences and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.report.cells import Cell, differences
from phalanx.report.document import (
    MINUS,
    NOTHING,
    Block,
    Column,
    Entries,
    Section,
    Table,
    Text,
    Value,
    label,
    p_text,
    signed,
    span,
    table_of,
    text,
)
from phalanx.report.gate import GateResult, Pair, Verdict
from phalanx.report.measures import MEASURES, Measure, shared_digits
from phalanx.report.scope import Scope
from phalanx.report.stats import Contrast

_TESTS = {"paired": "paired t", "welch": "Welch", "none": "none"}
_VERDICTS = {
    "equivalent": "same within tolerance",
    "different": "different",
    "undecided": "not shown",
}


def same_result(scope: Scope, pairs: Sequence[Pair]) -> Section | None:
    """Tabulate the equivalence of every pair."""
    by_metric: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair.gate is not None:
            by_metric.setdefault(pair.gate.metric, []).append(pair)
    blocks: list[Block] = []
    for index, own in enumerate(by_metric.values()):
        blocks += _gate_blocks(own, scope, "" if index == 0 else f"-{index + 1}")
    if not blocks:
        return None
    about_backends = backend_lines(pairs)
    if about_backends:
        blocks.append(Text(lines=about_backends))
    return Section(id="same-result", title="Same result?", blocks=blocks)


def _gate_blocks(pairs: Sequence[Pair], scope: Scope, tail: str) -> list[Block]:
    gates = [pair.gate for pair in pairs if pair.gate is not None]
    measure = MEASURES.get(gates[0].metric, Measure(gates[0].metric, gates[0].metric, digits=4))
    digits = shared_digits(measure, [gate.tolerance for gate in gates])
    interval = f"{100 * gates[0].level:g} % interval"
    difference = f"{measure.title}, first {MINUS} second"
    rows = [
        {
            **_pair_of(pair, scope),
            label("verdict"): text(
                _VERDICTS[gate.verdict], "doubt" if gate.verdict == "different" else ""
            ),
            Column("difference", difference, _points(measure)): signed(
                gate.difference, digits, scale=measure.scale
            ),
            Column("interval", interval): span(
                gate.low, gate.high, digits, scale=measure.scale, sign="+"
            ),
            label("pairs_or_runs", "runs"): text(_counts(gate)),
        }
        for pair in pairs
        if (gate := pair.gate) is not None
    ]
    tolerance = f"{gates[0].tolerance * measure.scale:g} {_points(measure)}".strip()
    intro = (
        f"Speeds are only worth comparing between cells that reach the same {measure.title}. The "
        f"gate is open if the {100 * gates[0].level:g} % interval of the difference lies within "
        f"{tolerance} on either side (two one-sided tests at {100 * scope.confidence:g} %). "
        f"“{_VERDICTS['undecided']}” means that the runs neither show equality nor exclude it: "
        "more seeds would tell."
    )
    table = table_of(f"gate{tail}", f"Equivalence in {measure.title} within {tolerance}.", rows)
    return [Text(lines=[intro]), table]


def head_to_head(scope: Scope, pairs: Sequence[Pair]) -> Section | None:
    """Tabulate differences in quality and time, with intervals and tests."""
    if not pairs:
        return None
    intro = (
        "Differences are first minus second, ratios first over second: a ratio below 1 means that "
        "the first takes less time. Runs are paired by seed where both cells have the same seeds "
        "(paired t test), else Welch's test; p-values are adjusted for all pairs (Holm), "
        "intervals are those of each pair alone. Ratios are of the means, with Fieller's interval."
    )
    blocks: list[Block] = [Text(lines=[intro])]
    blocks += _quality_tables(pairs, scope)
    blocks.append(_time_table(pairs, scope))
    closed = [pair for pair in pairs if not pair.may_compare_speed]
    if closed:
        note = (
            f"{len(closed)} of {len(pairs)} pairs reach different results; their times are not "
            "compared."
        )
        blocks.append(Text(lines=[note], kind="doubt"))
    return Section(id="head-to-head", title="Head to head", blocks=blocks)


def _quality_tables(pairs: Sequence[Pair], scope: Scope) -> list[Table]:
    """Make one table per measure of quality; the tasks of loose runs may differ in theirs."""
    found: dict[Measure, list[Pair]] = {}
    for pair in pairs:
        measure = scope.qualities[pair.first.task]
        if measure is not None:
            found.setdefault(measure, []).append(pair)
    return [
        _quality_table(own, scope, measure, "" if index == 0 else f"-{index + 1}")
        for index, (measure, own) in enumerate(found.items())
    ]


def _quality_table(pairs: Sequence[Pair], scope: Scope, measure: Measure, tail: str) -> Table:
    digits = measure.digits or 4
    rows = [
        {
            **_pair_of(pair, scope),
            label("verdict"): text(_verdict(found, pair.quality_p, "higher", "lower")),
            Column("difference", "difference", _points(measure)): signed(
                found.difference if found else None, digits, scale=measure.scale
            ),
            Column("interval", "95 % interval"): _span(found, digits, measure.scale),
            Column("p_holm", "p"): Value(p_text(pair.quality_p), pair.quality_p),
            label("test"): text(_TESTS[found.method] if found else ""),
        }
        for pair in pairs
        for found in [pair.quality]
    ]
    return table_of(f"head-to-head-quality{tail}", f"Differences in {measure.title}.", rows)


def _time_table(pairs: Sequence[Pair], scope: Scope) -> Table:
    digits = shared_digits(
        MEASURES["train_s"], [pair.time.difference for pair in pairs if pair.time]
    )
    rows = []
    for pair in pairs:
        found = pair.time if pair.may_compare_speed else None
        ratio = found.ratio if found else None
        row = {
            **_pair_of(pair, scope),
            label("verdict"): _time_verdict(pair, found),
            Column("difference_s", "difference", "s"): signed(
                found.difference if found else None, digits
            ),
            Column("interval", "95 % interval", "s"): _span(found, digits, 1.0),
            Column("ratio", "ratio"): Value(NOTHING if ratio is None else f"{ratio:.2f}", ratio),
            Column("ratio_interval", "95 % interval"): span(
                found.ratio_low if found else None, found.ratio_high if found else None, 2
            ),
            Column("p_holm", "p"): Value(p_text(pair.time_p), pair.time_p),
        }
        rows.append(row)
    caption = "Differences in training time. * Provisional: that both reach the same is not shown."
    return table_of("head-to-head-time", caption, rows)


def _time_verdict(pair: Pair, found: Contrast | None) -> Value:
    if found is None:
        return text("not compared", "weak")
    verdict = _verdict(found, pair.time_p, "slower", "faster")
    provisional = pair.gate is not None and not pair.gate.is_open
    return text(f"{verdict} *", "weak") if provisional else text(verdict)


def _verdict(found: Contrast | None, p: float | None, more: str, less: str) -> str:
    if found is None or p is None:
        return "one run: no test"
    if p >= 1 - found.confidence:
        return "not distinguishable"
    return f"first {more if found.difference > 0 else less}"


def _pair_of(pair: Pair, scope: Scope) -> Entries:
    task = {label("task"): text(pair.first.task)} if len(scope.tasks) > 1 else {}
    return {
        **task,
        label("first"): text(pair.first.label),
        label("second"): text(pair.second.label),
    }


def _counts(gate: GateResult) -> str:
    one, other = gate.num_runs
    return f"{one} pairs" if gate.paired else f"{one} and {other}"


def _span(found: Contrast | None, digits: int, scale: float) -> Value:
    low, high = (found.low, found.high) if found else (None, None)
    return span(low, high, digits, scale=scale, sign="+")


def _points(measure: Measure) -> str:
    return "points" if measure.unit == "%" else measure.unit


_WORDS: Mapping[Verdict, str] = {
    "equivalent": "the same within tolerance",
    "different": "different",
    "undecided": "not shown to be the same",
}


def backend_lines(pairs: Sequence[Pair]) -> list[str]:
    """Write one sentence per pair of backends; none if no cells differ in the backend alone."""
    found: dict[tuple[str, str], dict[Verdict, list[str]]] = {}
    for pair in pairs:
        if pair.gate is None or differences([pair.first.job, pair.second.job])[1] != ["backend"]:
            continue
        names = (str(pair.first.job["backend"]), str(pair.second.job["backend"]))
        places = found.setdefault(names, {}).setdefault(pair.gate.verdict, [])
        places.append(_place(pair.first, backend=names[0]))
    if not found:
        return []
    sentences = [
        f"{first} against {second}: "
        + "; ".join(
            f"{_WORDS[verdict]} for {' and '.join(dict.fromkeys(places))}"
            for verdict, places in verdicts.items()
        )
        + "."
        for (first, second), verdicts in found.items()
    ]
    intro = (
        "Backends, all other settings equal (built-in networks are one computation in every "
        "backend; first weights follow the same law, but TensorFlow draws them from a generator of "
        "its own):"
    )
    return [" ".join([intro, *sentences])]


def _place(cell: Cell, *, backend: str) -> str:
    """Name a cell without its backend: task, the rest of its method, batch."""
    method = [part for part in cell.method.split(", ") if part != backend]
    return ", ".join([cell.task, *method, f"batch {cell.batch}"])
