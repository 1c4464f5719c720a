"""Backends as the axis of a study: the gate judges them, and the report says so in words."""

from __future__ import annotations

from pathlib import Path

from phalanx.records.study import PlannedGate
from phalanx.report.make import make_document
from phalanx.report.scope import Options
from phalanx.report.table_formats import to_markdown
from phalanx.spec.study_file import study_from_mapping
from phalanx.study.plan import plan_study
from support.records import Outcome, write_study

BACKENDS = ("native", "ddp", "tensorflow")
# By backend and network: ddp equals native; tensorflow does so on one network only.
ACCURACY = {
    ("native", "mlp"): 0.95,
    ("ddp", "mlp"): 0.951,
    ("tensorflow", "mlp"): 0.949,
    ("native", "cnn"): 0.97,
    ("ddp", "cnn"): 0.97,
    ("tensorflow", "cnn"): 0.90,
}


def written(path: Path, backends: tuple[str, ...]) -> str:
    """The report of a made-up study over backends and networks, as Markdown."""
    cells = {
        f"{network}-{backend}": (
            {"network": network, "backend": backend},
            {
                "name": "peers",
                "model": network,
                "data": "digits",
                "batch": {"global": 32},
                "workers": 2,
                "backend": backend,
            },
        )
        for network in ("mlp", "cnn")
        for backend in backends
    }
    trials = [
        (
            f"{network}-{backend}",
            seed,
            Outcome(accuracy=ACCURACY[backend, network] + 0.0005 * seed, train_s=10.0 + seed),
        )
        for network in ("mlp", "cnn")
        for backend in backends
        for seed in (1, 2, 3, 4)
    ]
    gate = PlannedGate(metric="test_accuracy", tolerance=0.01, axis="backend", baseline="native")
    study = write_study(path, cells, trials, gate=gate)
    return to_markdown(make_document([study.path], Options()))


def test_the_report_states_which_backends_learn_the_same(tmp_path: Path) -> None:
    report = written(tmp_path / "study", BACKENDS)
    assert (
        "ddp against native: the same within tolerance for mlp, batch 32 and cnn, batch 32."
        in report
    )
    assert (
        "tensorflow against native: the same within tolerance for mlp, batch 32; different for "
        "cnn, batch 32." in report
    )


def test_without_another_backend_nothing_is_said_of_them(tmp_path: Path) -> None:
    assert "Backends, all other" not in written(tmp_path / "study", ("native",))


def test_a_backend_can_be_an_axis_and_the_baseline_of_the_gate() -> None:
    study = study_from_mapping(
        {
            "study": "peers",
            "job": {"workers": 2, "strategy": "allreduce", "model": "mlp"},
            "axes": {"backend": list(BACKENDS)},
            "gate": {"tolerance": 0.01, "baseline": "native"},
        }
    )
    manifest = plan_study(study, data_root=Path(), cache_root=Path())
    assert manifest.gate is not None
    assert (manifest.gate.axis, manifest.gate.baseline) == ("backend", "native")
    assert [cell.job["backend"] for cell in manifest.cells] == list(BACKENDS)
