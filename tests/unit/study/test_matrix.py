from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import SpecError
from phalanx.spec.study_file import StudyFile, load_study, study_from_mapping
from phalanx.study.matrix import StudyCell, expand, label_of


def study(axes: dict[str, Any], **more: Any) -> StudyFile:
    return study_from_mapping({"study": "s", "axes": axes, **more})


def cells(axes: dict[str, Any], **more: Any) -> list[StudyCell]:
    return expand(study(axes, **more))[1]


def test_every_combination_is_a_cell_in_the_order_of_the_file() -> None:
    found = cells({"workers": [1, 2], "batch.global": [32, 64]})
    assert [tuple(cell.settings.values()) for cell in found] == [
        ("1", "32"),
        ("1", "64"),
        ("2", "32"),
        ("2", "64"),
    ]
    assert [(cell.job.workers, cell.job.global_batch) for cell in found] == [
        (1, 32),
        (1, 64),
        (2, 32),
        (2, 64),
    ]


def test_a_value_may_be_a_whole_part() -> None:
    found = cells(
        {"strategy": ["allreduce", {"name": "parameter_server", "consistency": "ssp"}]},
        job={"workers": 2, "strategy": {"name": "local_sgd", "every": 4}},
    )
    assert [cell.settings["strategy"] for cell in found] == [
        "allreduce",
        "parameter_server consistency=ssp",
    ]
    assert [cell.job.strategy.name for cell in found] == ["allreduce", "parameter_server"]


def test_a_label_may_set_several_things_at_once() -> None:
    axes = {
        "roles": {
            "PS": {"strategy": "parameter_server", "workers": 2},
            "MW": {"strategy": "allreduce", "workers": 3, "optimizer.lr": 0.5},
        }
    }
    ps, mw = cells(axes, job={"optimizer": "sgd"})
    assert (ps.id, ps.job.workers, ps.job.strategy.name) == ("PS", 2, "parameter_server")
    assert (mw.id, mw.job.workers, mw.job.optimizer.lr) == ("MW", 3, 0.5)
    assert ps.job.optimizer.lr != 0.5


def test_an_axis_replaces_what_it_excludes() -> None:
    (cell,) = cells({"batch.per_worker": [16]}, job={"batch": {"global": 64}, "workers": 2})
    assert cell.job.global_batch == 32


def test_only_and_exclude_leave_what_agrees() -> None:
    axes = {"workers": [1, 2, 3], "batch.global": [32, 64]}
    kept = cells(axes, only=[{"workers": [1, 2]}], exclude=[{"workers": 2, "batch.global": 64}])
    assert [cell.id for cell in kept] == ["1_32", "1_64", "2_32"]


def test_ids_differ_even_if_labels_look_alike_in_file_names() -> None:
    found = cells({"data": ["a/b.npz", "a-b.npz"]})
    assert [cell.id for cell in found] == ["a-b.npz", "a-b.npz-2"]


@pytest.mark.parametrize(
    ("axes", "more", "sentence"),
    [
        ({}, {}, "axes is empty"),
        ({"workers": []}, {}, "axis 'workers' must be a list of values"),
        ({"workers": 3}, {}, "axis 'workers' must be a list of values"),
        ({"workers": [1, 1]}, {}, "axis 'workers' has '1' twice"),
        ({"seed": [1, 2]}, {}, "'seed' cannot be an axis: list seeds under 'seeds'"),
        ({"x": {"a": 3}}, {}, "'a' of axis 'x' must be a mapping of settings"),
        (
            {"batch.global": [1], "sizes": {"a": {"batch": {"global": 3}}}},
            {},
            "axes 'batch.global' and 'sizes' both set batch",
        ),
        ({"workers": [1]}, {"only": [{"worker": 1}]}, "no axis 'worker'; did you mean 'workers'?"),
        ({"workers": [1]}, {"exclude": [{"workers": 2}]}, "axis 'workers' has no label '2'"),
        ({"workers": [1]}, {"exclude": [{"workers": 1}]}, "no cell is left"),
        ({"workers": list(range(1, 200)), "epochs": list(range(1, 200))}, {}, "span 39,601 cells"),
    ],
)
def test_an_axis_that_makes_no_sense_is_named(
    axes: dict[str, Any], more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence.replace("?", r"\?")):
        cells(axes, **more)


def test_a_cell_that_is_no_job_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("study: s\njob: {strategy: single}\naxes:\n  workers:\n    - 1\n    - 4\n")
    with pytest.raises(SpecError) as caught:
        expand(load_study(path))
    assert str(caught.value).startswith(f"{path}:6: strategy 'single' takes 1 worker, not 4")
    assert str(caught.value).endswith("(cell workers=4)")
    assert caught.value.exit_code == 2


def test_an_unknown_setting_of_an_axis_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("study: s\naxes:\n  worker: [1, 2]\n")
    with pytest.raises(SpecError, match=r"s\.yaml:3: unknown key 'worker'; did you mean 'workers'"):
        expand(load_study(path))


def test_labels_are_short() -> None:
    assert label_of("sgd") == "sgd"
    assert label_of(0.5) == "0.5"
    assert label_of(None) == "none"
    assert label_of(True) == "true"
    assert label_of([300, 100]) == "[300, 100]"
    assert label_of({"name": "sgd", "lr": 0.1}) == "sgd lr=0.1"
    assert label_of({"global": 64}) == "global=64"
    assert label_of({}) == "default"


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 999), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 99), min_size=1, max_size=3, unique=True),
)
def test_the_matrix_is_the_product_of_its_axes(
    workers: list[int], batches: list[int], epochs: list[int]
) -> None:
    axes = {"workers": workers, "batch.global": batches, "epochs": epochs}
    found = cells(axes)
    assert len(found) == math.prod(len(values) for values in axes.values())
    assert len({cell.id for cell in found}) == len(found)
    jobs = {(cell.job.workers, cell.job.global_batch, cell.job.epochs) for cell in found}
    assert jobs == {(w, b, e) for w in workers for b in batches for e in epochs}
    for cell in found:
        assert cell.settings["workers"] == str(cell.job.workers)
