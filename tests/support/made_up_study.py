"""One study that has everything a report can show, with figures made by hand."""

from __future__ import annotations

from pathlib import Path

from phalanx.records.study import PlannedGate, StudyDir
from support.records import Outcome, write_study

PUBLISHED_PART = Path(__file__).parents[2] / "recipes" / "published"
ROLES = {
    "ONE": {"workers": 1, "strategy": "single"},
    "AR": {"workers": 2, "strategy": "allreduce"},
    "PS": {"workers": 2, "strategy": "parameter_server"},
}
PUBLISHED = """
source: A. Author, A <script>alert(1)</script> study, 2020
setup: Nine machines.
missing: [the optimiser]
measures:
  acc: {title: test accuracy, ours: test_accuracy}
  time: {title: time, unit: s, ours: train_s}
  cpu: {title: processor, unit: "%"}
  epoch_acc: {title: accuracy, ours: train_accuracy}
tables:
  - title: Headline figures
    where: table 3
    rows:
      - settings: {network: small, roles: AR, batch: "32"}
        values: {acc: 0.9804, time: 144.703, cpu: 9.7}
      - settings: {network: small, roles: PS, batch: "32"}
        values: {acc: {value: 0.978, printed: 0.9838, note: the text has it right}, time: 173.9}
curves:
  - settings: {network: small, roles: PS, batch: "32"}
    measure: epoch_acc
    where: table 1
    values: [0.5, 0.8, {value: null, printed: 1.0015, note: above 1}, 0.9]
claims:
  - {text: PS is slower, holds: true, where: page 9}
  - {text: MW uses more memory, holds: false, note: 14.5 against 14.0, where: page 10}
"""


def write_made_up_study(path: Path) -> StudyDir:
    """Two networks, three strategies, two batches, three seeds; one outlier, two failures."""
    cells = {
        f"{network}-{roles}-{batch}": (
            {"network": network, "roles": roles, "batch": batch},
            {
                "name": "made-up",
                "model": model,
                "data": "digits",
                "batch": {"global": int(batch)},
                "python_path": [str(PUBLISHED_PART)],
                **settings,
            },
        )
        for network, model in (("small", "mlp"), ("large", "cnn"))
        for roles, settings in ROLES.items()
        for batch in ("32", "64")
    }
    trials = [
        (cell, seed, _outcome(index, seed))
        for index, cell in enumerate(cells)
        for seed in (1, 2, 3)
    ]
    trials.append(("small-PS-32", 4, Outcome(state="failed", cause="worker-1 was killed")))
    trials.append(("large-PS-64", 4, Outcome(state="unborn", cause="no such data")))
    return write_study(
        path,
        cells,
        trials,
        gate=PlannedGate(metric="test_accuracy", tolerance=0.01, axis="roles", baseline="AR"),
        target={"val_accuracy": 0.9},
        published=PUBLISHED,
    )


def _outcome(index: int, seed: int) -> Outcome:
    return Outcome(
        accuracy=0.93 + 0.001 * seed + 0.004 * (index % 5),
        train_s=20.0 - index + 0.1 * seed + (30.0 if (index, seed) == (3, 2) else 0.0),
        warning="the clock is off & <b>late</b>" if seed == 1 else "",
        watts=60.0,
    )
