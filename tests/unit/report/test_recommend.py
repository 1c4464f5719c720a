"""The recommendation and its doubts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from phalanx.errors import SpecError
from phalanx.report.facts import read_material
from phalanx.report.gate import pair_cells
from phalanx.report.recommend import Advice, recommend
from phalanx.report.scope import Options, Scope, open_scope
from support.records import Outcome, write_run

BASE = {"name": "tiny", "model": "mlp", "data": "digits", "workers": 2}
SINGLE = {**BASE, "workers": 1, "strategy": "single"}
ALLREDUCE = {**BASE, "strategy": "allreduce"}
LOCAL = {**BASE, "strategy": "local_sgd"}
# Accuracy and seconds of seeds 1, 2 and 3.
Figures = list[tuple[float, float]]


def scope_of(
    root: Path, *methods: tuple[dict[str, object], Figures], options: Options | None = None
) -> Scope:
    for index, (job, figures) in enumerate(methods):
        for seed, (accuracy, train_s) in enumerate(figures, start=1):
            outcome = Outcome(accuracy=accuracy, train_s=train_s, watts=50.0 + 50 * index)
            write_run(root, f"run-{index}-{seed}", {**job, "seed": seed}, outcome)
    return open_scope(read_material([root]), options or Options())


def advice_of(scope: Scope) -> Advice:
    (advice,) = recommend(scope)
    return advice


def test_the_quickest_within_the_tolerance_wins(tmp_path: Path) -> None:
    scope = scope_of(
        tmp_path,
        (SINGLE, [(0.970, 20.0), (0.972, 20.2), (0.971, 19.9)]),
        (ALLREDUCE, [(0.968, 11.0), (0.969, 11.3), (0.967, 10.9)]),
        (LOCAL, [(0.930, 5.0), (0.931, 5.1), (0.932, 5.2)]),
    )
    advice = advice_of(scope)
    assert advice.cell is not None
    assert advice.cell.strategy == "allreduce"
    assert advice.best is not None
    assert advice.best.strategy == "single"
    assert advice.alternatives == []
    assert advice.sentence.startswith(
        "Use allreduce (2 workers) with batch 128. Of the cells within 0.5 points of the best test "
        "accuracy it needs the least training time, 11.1 ± 0.5 s (n = 3), 0.55 (0.54 to 0.57) "
        "times that of the most accurate, single (1 worker) with batch 128. "
        "Its test accuracy is 96.80 ± 0.25 % (n = 3)"
    )
    assert "not distinguishable" not in advice.sentence


def test_tolerance_and_preference_change_the_choice(tmp_path: Path) -> None:
    scope = scope_of(
        tmp_path,
        (SINGLE, [(0.970, 20.0), (0.972, 20.2)]),
        (ALLREDUCE, [(0.968, 11.0), (0.969, 11.3)]),
        (LOCAL, [(0.930, 5.0), (0.931, 5.1)]),
    )
    material = scope.material

    def choice(options: Options) -> str:
        cell = advice_of(open_scope(material, options)).cell
        assert cell is not None
        return cell.strategy

    assert choice(Options()) == "allreduce"
    assert choice(Options(tolerance=0.0005)) == "single"
    assert choice(Options(tolerance=0.05)) == "local_sgd"
    # 50 W for 20 s against 100 W for 11 s.
    assert choice(Options(prefer="energy")) == "single"
    assert choice(Options(prefer="cost")) == "allreduce"


def test_what_cannot_be_told_apart_is_named(tmp_path: Path) -> None:
    scope = scope_of(
        tmp_path,
        (ALLREDUCE, [(0.968, 10.0), (0.969, 14.0), (0.967, 12.5)]),
        (LOCAL, [(0.968, 13.0), (0.969, 12.0), (0.967, 13.5)]),
    )
    advice = advice_of(scope)
    assert advice.alternatives == ["local_sgd · 128"]
    assert advice.sentence.startswith(
        "No winner: in training time allreduce with batch 128 is not distinguishable at 95 % from "
        "local_sgd with batch 128 (p = 0."
    )
    assert "Use " not in advice.sentence


def test_a_third_that_is_clearly_slower_leaves_no_single_winner(tmp_path: Path) -> None:
    scope = scope_of(
        tmp_path,
        (ALLREDUCE, [(0.968, 10.0), (0.969, 14.0), (0.967, 12.5)]),
        (LOCAL, [(0.968, 13.0), (0.969, 12.0), (0.967, 13.5)]),
        (SINGLE, [(0.968, 60.0), (0.969, 64.0), (0.967, 62.0)]),
    )
    assert advice_of(scope).sentence.startswith("No single winner: in training time allreduce")


def test_a_run_of_another_task_changes_no_verdict_and_no_name(tmp_path: Path) -> None:
    methods = (
        (SINGLE, [(0.970, 20.0), (0.972, 20.2), (0.971, 19.9)]),
        (ALLREDUCE, [(0.968, 11.0), (0.969, 11.3), (0.967, 10.9)]),
    )
    alone = advice_of(scope_of(tmp_path, *methods))
    # Another network, settings that these do not have, and nothing to be compared with.
    other = {**BASE, "model": "cnn", "epochs": 7, "deadlines": {"heartbeat_s": 9.0}}
    write_run(tmp_path, "unrelated", other, Outcome(accuracy=0.5))
    write_run(tmp_path, "broken", {**other, "seed": 9}, Outcome(state="failed", cause="x"))
    scope = open_scope(read_material([tmp_path]), Options())
    assert advice_of(scope).sentence == alone.sentence
    assert {run.name for run in scope.left_out} == {"unrelated", "broken"}


def test_tasks_are_judged_each_by_a_measure_of_its_own(tmp_path: Path) -> None:
    regression = {**BASE, "model": "cnn", "loss": "mse"}
    for strategy in ("allreduce", "local_sgd"):
        write_run(tmp_path, f"values-{strategy}", {**regression, "strategy": strategy})
    for path in tmp_path.glob("values-*/summary.json"):
        summary = msgspec.json.decode(path.read_bytes())
        without = {key: None for key in summary if key.endswith("accuracy")}
        path.write_bytes(msgspec.json.encode(summary | without))
    scope = scope_of(tmp_path, (ALLREDUCE, [(0.968, 10.0)]), (LOCAL, [(0.968, 13.0)]))
    found = {task.partition(",")[0]: one and one.key for task, one in scope.qualities.items()}
    assert found == {"cnn on digits": "test_loss", "mlp on digits": "test_accuracy"}


def test_busy_machines_are_named_in_the_advice(tmp_path: Path) -> None:
    scope = scope_of(tmp_path, (ALLREDUCE, [(0.968, 10.0)]), (LOCAL, [(0.968, 13.0)]))
    assert "Other programs" not in advice_of(scope).sentence
    for cell in scope.cells:
        for run in cell.runs:
            run.resources = [
                msgspec.structs.replace(
                    one, use=msgspec.structs.replace(one.use, cpu_cores=0.9 * (one.use.cores or 1))
                )
                for one in run.resources
                if one.is_machine
            ]
    assert "Other programs used up to 90 % of the machine during 2 of 2 runs" in (
        advice_of(scope).sentence
    )


def test_single_runs_admit_that_they_are_single(tmp_path: Path) -> None:
    scope = scope_of(tmp_path, (ALLREDUCE, [(0.968, 10.0)]), (LOCAL, [(0.968, 13.0)]))
    advice = advice_of(scope)
    assert advice.sentence.startswith("No winner: with single runs no difference in training time")
    assert "rests on a single run" in advice.sentence


def test_one_cell_has_no_rival(tmp_path: Path) -> None:
    scope = scope_of(tmp_path, (ALLREDUCE, [(0.968, 10.0), (0.969, 10.1)]))
    assert "nothing else to compare" in advice_of(scope).sentence


def test_failed_runs_are_mentioned_and_not_counted(tmp_path: Path) -> None:
    write_run(tmp_path, "broken", {**ALLREDUCE, "seed": 9}, Outcome(state="failed", cause="x"))
    scope = scope_of(tmp_path, (ALLREDUCE, [(0.968, 10.0), (0.969, 10.1)]))
    advice = advice_of(scope)
    assert "1 trial of it failed." in advice.sentence
    assert "(n = 2)" in advice.sentence


def test_without_a_finished_run_there_is_no_advice(tmp_path: Path) -> None:
    write_run(tmp_path, "broken", ALLREDUCE, Outcome(state="failed", cause="x"))
    advice = advice_of(open_scope(read_material([tmp_path]), Options()))
    assert advice.cell is None
    assert advice.sentence.startswith("No recommendation")


def test_speed_is_not_compared_where_results_differ(tmp_path: Path) -> None:
    scope = scope_of(
        tmp_path,
        (SINGLE, [(0.970, 20.0), (0.9702, 20.2), (0.9701, 20.1)]),
        (ALLREDUCE, [(0.970, 11.0), (0.9701, 11.2), (0.9702, 11.1)]),
        (LOCAL, [(0.930, 5.0), (0.9302, 5.1), (0.9301, 5.2)]),
    )
    verdicts = {
        (pair.first.strategy, pair.second.strategy): (
            pair.gate.verdict if pair.gate else None,
            pair.may_compare_speed,
            pair.time_p is not None,
        )
        for pair in pair_cells(scope)
    }
    assert verdicts == {
        ("allreduce", "single"): ("equivalent", True, True),
        ("local_sgd", "single"): ("different", False, False),
        ("local_sgd", "allreduce"): ("different", False, False),
    }


def test_a_baseline_and_a_target_must_exist(tmp_path: Path) -> None:
    material = scope_of(tmp_path, (ALLREDUCE, [(0.968, 10.0)])).material
    with pytest.raises(SpecError, match="no runs of the baseline 'single'; there are: allreduce"):
        open_scope(material, Options(baseline="single"))
    with pytest.raises(SpecError, match="a target is one of val_accuracy"):
        open_scope(material, Options(target=("speed", 3.0)))
