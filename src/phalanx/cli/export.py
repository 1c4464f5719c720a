"""Implement `phalanx export`: write weights, and runs for TensorBoard and MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.options import (
    NewestOption,
    RunArgument,
    RunsOption,
    argument,
    examples,
    flag,
    option,
    run_names,
)
from phalanx.cli.output import print_json
from phalanx.cli.settings import runs_root

if TYPE_CHECKING:
    from phalanx.records.rundir import RunDir

app = typer.Typer(no_args_is_help=True)

TENSORBOARD_EXAMPLES = examples(
    "phalanx export tensorboard last --to logs",
    "phalanx export tensorboard demo-single demo-allreduce --to logs",
    "tensorboard --logdir logs",
)
MLFLOW_EXAMPLES = examples(
    "phalanx export mlflow last",
    "phalanx export mlflow last --to sqlite:////scratch/mlruns.db --experiment cifar",
    "phalanx export mlflow last --to http://tracking.example:5000",
)
WEIGHTS_EXAMPLES = examples(
    "phalanx export weights last -o model.safetensors",
    "phalanx export weights last --newest -o model.pt",
    "phalanx export weights last -o model.onnx",
    "phalanx export weights last -o s3://bucket/models/model.safetensors",
)

RunsArgument = Annotated[
    list[str],
    argument("RUN...", "Run names, unique prefixes, paths, or 'last'.", autocompletion=run_names),
]


@app.command("tensorboard", epilog=TENSORBOARD_EXAMPLES)
def tensorboard(
    names: RunsArgument,
    to: Annotated[Path, option("DIR", "Log directory of TensorBoard (--logdir).", "--to")],
    runs: RunsOption = None,
) -> None:
    """Write runs as TensorBoard event files: curves, system metrics, settings. Idempotent."""
    from phalanx.export.tensorboard import export_tensorboard

    for folder in export_tensorboard(_find(names, runs), to):
        print(folder)


@app.command("mlflow", epilog=MLFLOW_EXAMPLES)
def mlflow(
    names: RunsArgument,
    to: Annotated[
        str, option("URI", "Tracking URI: database or server address.", "--to")
    ] = "sqlite:///mlruns.db",
    experiment: Annotated[str, option("NAME", "Experiment name; created if missing.")] = "phalanx",
    runs: RunsOption = None,
    as_json: Annotated[bool, flag("Print a JSON list.", "--json")] = False,
) -> None:
    """Write runs into MLflow: parameters, tags, metrics. Idempotent."""
    from phalanx.export.mlflow import export_mlflow

    exported = export_mlflow(_find(names, runs), uri=to, experiment=experiment)
    if as_json:
        print_json(exported)
        return
    for one in exported:
        print(f"{one.run}: {one.what}, {one.metrics:,} figures, MLflow run {one.mlflow_run_id}")


@app.command("weights", epilog=WEIGHTS_EXAMPLES)
def weights(
    name: RunArgument,
    to: Annotated[str, option("FILE", "File or URL: .safetensors, .pt or .onnx.", "--to", "-o")],
    newest: NewestOption = False,
    runs: RunsOption = None,
) -> None:
    """Write the trained weights by name, or the whole network as ONNX."""
    from phalanx.cli.predict import open_trained_run
    from phalanx.cli.transfer import written_to
    from phalanx.spec.urls import is_url, refuse_secrets

    if is_url(to):
        refuse_secrets(to)
    with written_to(to) as path:
        open_trained_run(name, runs).save(path, best=False if newest else None)
        size = path.stat().st_size
    print(f"{to} ({size:,} bytes)")


def _find(names: list[str], runs: Path | None) -> list[RunDir]:
    from phalanx.records.rundir import find_run

    root = runs_root(runs)
    return [find_run(root, name) for name in names]
