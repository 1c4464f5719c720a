"""Recommend a method and batch in a sentence, with reasons and caveats; pure.

The rule: of all cells of a task whose mean quality is at most the tolerance below the best mean,
take the one that saves most (time, cost or energy). If other such cells are not distinguishable
from it at the stated confidence, there is no winner, and that is said first. Single runs, losses
that may exceed the tolerance, failed trials and busy machines are named too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.records.study import RecommendSettings
from phalanx.report.cells import Cell
from phalanx.report.document import join_words, p_text, plain
from phalanx.report.foreign_load import disturbed
from phalanx.report.format import count_noun
from phalanx.report.measures import (
    Measure,
    contrast_cells,
    estimate_cell,
    shared_digits,
    values_by_seed,
)
from phalanx.report.scope import Scope, cost_of
from phalanx.report.stats import Contrast, Estimate


class Advice(msgspec.Struct, kw_only=True):
    """The recommendation for one task."""

    task: str
    cell: Cell | None
    """None without a finished run."""
    best: Cell | None
    """The one with the best mean quality."""
    sentence: str
    alternatives: list[str] = []
    """Labels of cells not distinguishable from it in what is saved."""


def recommend(scope: Scope) -> list[Advice]:
    """Make one recommendation per task."""
    return [_advise(task, cells, scope) for task, cells in scope.tasks.items()]


def _advise(task: str, cells: Sequence[Cell], scope: Scope) -> Advice:
    quality, saved = scope.qualities[task], scope.saved
    usable = [
        cell
        for cell in cells
        if quality and values_by_seed(cell, quality.key) and values_by_seed(cell, saved.key)
    ]
    if quality is None or not usable:
        missing = f"no finished run tells quality and {saved.title}"
        return Advice(task=task, cell=None, best=None, sentence=f"No recommendation: {missing}.")
    sign = 1 if quality.high_is_good else -1
    best = max(usable, key=lambda cell: sign * _mean(cell, quality))
    floor = sign * _mean(best, quality) - scope.settings.accuracy_loss
    # Rounding must not cost a cell that lies exactly at the tolerance.
    allowed = [cell for cell in usable if sign * _mean(cell, quality) >= floor - 1e-12]
    chosen = min(allowed, key=lambda cell: _mean(cell, saved))
    # No difference is shown; single runs never show one.
    rivals = [
        cell
        for cell in allowed
        if cell is not chosen
        and (contrast := contrast_cells(chosen, cell, saved.key)) is not None
        and not contrast.is_significant
    ]
    parts = [
        *_undecided(chosen, rivals, len(allowed), scope),
        _choice(chosen, best, scope, quality, is_open=bool(rivals), is_alone=len(usable) == 1),
        _loss(chosen, best, scope, quality),
        *_doubts(chosen, len(usable), scope),
        *_disturbance(usable),
    ]
    sentence = " ".join(parts)
    return Advice(
        task=task,
        cell=chosen,
        best=best,
        sentence=sentence,
        alternatives=[cell.label for cell in rivals],
    )


def _undecided(
    chosen: Cell, rivals: Sequence[Cell], num_allowed: int, scope: Scope
) -> Sequence[str]:
    """Say that there is no winner, if so."""
    if not rivals:
        return []
    tested = [cell for cell in rivals if _is_tested(chosen, cell, scope.saved)]
    head = "No winner" if len(rivals) == num_allowed - 1 else "No single winner"
    named = join_words([_rival(chosen, cell, scope.saved) for cell in rivals[:3]])
    more = f" and {len(rivals) - 3} more" if len(rivals) > 3 else ""
    if not tested:
        why = f"with single runs no difference in {scope.saved.title} can be told from chance"
        return [f"{head}: {why}."]
    level = f"{100 * scope.confidence:g} %"
    return [
        f"{head}: in {scope.saved.title} {chosen.phrase} is not distinguishable at {level} from "
        f"{named}{more}."
    ]


def _is_tested(chosen: Cell, cell: Cell, saved: Measure) -> bool:
    contrast = contrast_cells(chosen, cell, saved.key)
    return contrast is not None and contrast.p_value is not None


def _choice(
    chosen: Cell, best: Cell, scope: Scope, quality: Measure, *, is_open: bool, is_alone: bool
) -> str:
    saved = scope.saved
    found, price = estimate_cell(chosen, saved.key), ""
    assert found is not None
    cost = cost_of(found.mean, scope.settings) if saved.key == "machine_s" else None
    if cost is not None:
        price = f", {cost:.4g} {scope.settings.currency}"
    if is_alone:
        return f"{chosen.phrase}: {saved.title} {_figure(found, saved)}{price}."
    margin = _tolerance(scope.settings, quality)
    within = f"Of the cells within {margin} of the best {quality.title}"
    # The first sentence is the answer; pages may fold what follows it.
    text = (
        f"{within} {chosen.phrase} has the least mean {saved.title}, "
        if is_open
        else f"Use {chosen.phrase}. {within} it needs the least {saved.title}, "
    )
    text += f"{_figure(found, saved)}{price}"
    if chosen is best:
        return f"{text}, and its {quality.title} is the best as well."
    contrast = contrast_cells(chosen, best, saved.key)
    assert contrast is not None
    which = "most accurate" if quality.high_is_good else "best"
    return f"{text}, {_times(contrast)} that of the {which}, {best.phrase}."


def _loss(chosen: Cell, best: Cell, scope: Scope, quality: Measure) -> str:
    own = estimate_cell(chosen, quality.key)
    assert own is not None
    reached = f"Its {quality.title} is {_figure(own, quality)}"
    if chosen is best:
        return f"{reached}."
    contrast = contrast_cells(chosen, best, quality.key)
    assert contrast is not None
    sign = 1 if quality.high_is_good else -1
    unit = _points(quality)
    loss = plain(-sign * contrast.difference, 2 if unit else 4, scale=quality.scale)
    text = f"{reached}, {loss}{unit} {'less' if quality.high_is_good else 'more'} than the best"
    if contrast.low is None or contrast.high is None:
        return f"{text}."
    worst = max(-sign * contrast.low, -sign * contrast.high)
    if worst <= scope.settings.accuracy_loss:
        return f"{text}; with {_level(contrast)} confidence the loss is within the tolerance."
    bound = plain(worst, 2 if unit else 4, scale=quality.scale)
    return f"{text}; with {_level(contrast)} confidence it may be up to {bound}{unit}."


def _doubts(chosen: Cell, num_usable: int, scope: Scope) -> list[str]:
    doubts = []
    num_runs = len(chosen.finished)
    if num_usable == 1:
        doubts.append("There is nothing else to compare it with.")
    elif num_runs < 2:
        doubts.append("It rests on a single run, so its uncertainty is unknown.")
    if chosen.num_failed:
        doubts.append(f"{count_noun(chosen.num_failed, 'trial')} of it failed.")
    return doubts


def _disturbance(cells: Sequence[Cell]) -> list[str]:
    runs = [run for cell in cells for run in cell.finished]
    found = disturbed(runs)
    if not found:
        return []
    most = f"{100 * max(found.values()):.0f} %"
    return [
        f"Other programs used up to {most} of the machine during {len(found)} of "
        f"{count_noun(len(runs), 'run')}: their times may say more about those."
    ]


def _rival(chosen: Cell, cell: Cell, saved: Measure) -> str:
    contrast = contrast_cells(chosen, cell, saved.key)
    tested = contrast is not None and contrast.p_value is not None
    return f"{cell.phrase} (p = {p_text(contrast.p_value)})" if contrast and tested else cell.phrase


def _mean(cell: Cell, measure: Measure) -> float:
    found = estimate_cell(cell, measure.key)
    assert found is not None
    return found.mean


def _figure(found: Estimate, measure: Measure) -> str:
    digits = shared_digits(measure, [found.mean])
    mean = plain(found.mean, digits, scale=measure.scale)
    half = found.half_width
    spread = "" if half is None else f" ± {plain(half, digits, scale=measure.scale)}"
    unit = f" {measure.unit}" if measure.unit else ""
    return f"{mean}{spread}{unit} (n = {found.n})"


def _times(contrast: Contrast) -> str:
    if contrast.ratio is None:
        return "against"
    interval = ""
    if contrast.ratio_low is not None and contrast.ratio_high is not None:
        interval = f" ({contrast.ratio_low:.2f} to {contrast.ratio_high:.2f})"
    return f"{contrast.ratio:.2f}{interval} times"


def _tolerance(settings: RecommendSettings, quality: Measure) -> str:
    size = settings.accuracy_loss * quality.scale
    unit = " point" if size == 1 and _points(quality) else _points(quality)
    return f"{size:g}{unit}"


def _points(quality: Measure) -> str:
    return " points" if quality.unit == "%" else ""


def _level(contrast: Contrast) -> str:
    return f"{100 * contrast.confidence:g} %"
