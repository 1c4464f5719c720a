"""The page docs/ref-study.md, written from the models so that it cannot disagree with them.

`docs/generate_ref_study.py` writes the page; a test compares the two.
"""

from __future__ import annotations

from job_reference import settings_table

from phalanx.spec.base import Spec
from phalanx.spec.study import (
    GateSpec,
    RecommendSpec,
    RepeatsSpec,
    ReportPartSpec,
    StudySpec,
    TargetSpec,
    UntilSpec,
)

EXAMPLE = """\
study: digits
title: Two strategies and two batches on digits
job:                                    # or the path of a job file
  model: {name: mlp, hidden: [64]}
  data: digits
  epochs: 5
axes:
  strategy:                             # labels that each set one or more settings of the job
    single: {strategy: single, workers: 1}
    allreduce: {strategy: allreduce, workers: 2}
  batch.global: [32, 64]                # one setting of the job and its values
repeats:
  min: 3
  max: 10
  until: {metric: train_s, half_width: 5 %}
budget: 20min
gate: {metric: test_accuracy, tolerance: 0.01, baseline: single}
target: {val_accuracy: 0.9}
recommend: {accuracy_loss: 0.005, prefer: time}
"""

_HEAD = f"""\
<!-- Written by docs/generate_ref_study.py from the models in src/phalanx/spec; edit those. -->

# The study file

A study file is YAML 1.2 and describes many runs: a base job, axes along which it differs, how often
each cell is repeated, and the questions to the results. How to run one is in
[how-to-study](how-to-study.md); the settings of a job are in [ref-job](ref-job.md).

```yaml
{EXAMPLE}```

## Axes

| Form | Example | Labels |
|---|---|---|
| a setting of the job and a list of values | `batch.global: [32, 64]` | `32`, `64` |
| the same with whole parts | `optimizer: [adam, {{name: sgd, lr: 0.1}}]` | `adam`, `sgd lr=0.1` |
| a name of your own, and labels that set one or more settings | `roles: {{PS: {{strategy: \
parameter_server, workers: 2}}, MW: {{workers: 3}}}}` | `PS`, `MW` |

A cell is one combination; its job is the base job with the settings of its labels laid over it, by
the rules of `--set`: a whole part replaces, a dotted path changes one setting of it. Two axes may
not set the same thing, and `name` and `seed` are the study's. Every cell is checked before anything
is started.

`--set` changes the study: `--set repeats=5`, `--set job.epochs=2` for the base job, and
`--set 'axes.batch.global=[32]'` for a whole axis.

## The study
"""


def study_page() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, *settings_table(StudySpec)]
    sections: tuple[tuple[str, type[Spec]], ...] = (
        ("repeats", RepeatsSpec),
        ("repeats.until", UntilSpec),
        ("gate", GateSpec),
        ("target", TargetSpec),
        ("report_parts", ReportPartSpec),
        ("recommend", RecommendSpec),
    )
    parts += _sections(sections)
    return "\n".join(parts).rstrip() + "\n"


def _sections(sections: tuple[tuple[str, type[Spec]], ...]) -> list[str]:
    lines = []
    for title, spec in sections:
        text = " ".join((spec.__doc__ or "").split())
        lines += [f"\n## {title}\n", f"{text}\n", *settings_table(spec)]
    return lines
