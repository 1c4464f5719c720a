"""Derive the jobs of a search for the switch share from the user's job; pure.

Only the strategy is changed; everything else stays as the user wrote it, so that the resulting job
file resembles the given one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.errors import SpecError
from phalanx.spec.flow import flow
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import spelled_out
from phalanx.study.tune.policy import SYNCHRONOUS, Method, bar_epoch

Mapped = Mapping[str, object]
_MOMENTS = ("at", "epoch", "lr_drop")


def check_tunable(given: Mapped, method: Method) -> JobSpec:
    """Refuse jobs whose switch share cannot be searched; returns the job.

    Raises:
        SpecError: The job cannot be searched; names the reason and a remedy.
    """
    job = job_from_mapping(given)
    if job.workers < 2:
        raise SpecError("tune switch needs at least 2 workers: a single one never waits")
    if job.loss.name != "cross-entropy":
        raise SpecError("tune switch compares accuracy, which a job with loss 'mse' has not")
    if job.evaluate == "never":
        raise SpecError("tune switch needs evaluation; set 'evaluate: epoch' or 'end'")
    strategy = job.strategy
    phases = strategy.resolved
    if phases:
        if len(phases) != 2:
            raise SpecError(
                f"tune switch searches one moment, but the job has {len(phases) - 1} switches"
            )
        if not phases[0].strategy.synchronous:
            raise SpecError("tune switch needs a synchronous first phase, such as allreduce")
    if method == "halving":
        _check_for_bars(job)
    # With every strategy of the search, not only the one in the file.
    job_from_mapping(with_share(given, 0.5))
    job_from_mapping(with_share(given, SYNCHRONOUS))
    return job


def accuracy_of(job: JobSpec) -> str:
    """Return the key of the summary that a search compares.

    The test set must not choose a setting, so it is used only without validation data.
    """
    return "test_accuracy" if job.data.validation == 0 else "val_accuracy"


def with_share(given: Mapped, share: float) -> dict[str, object]:
    """Return the job with another switch share; a share of 1: without a switch."""
    strategy = job_from_mapping(given).strategy
    raw = given.get("strategy", "allreduce")
    if share == SYNCHRONOUS:
        return {**given, "strategy": _first(strategy, raw)}
    if not strategy.resolved:
        return {**given, "strategy": _switch_of(strategy, raw, share)}
    settings: dict[str, Any] = spelled_out(raw) if isinstance(raw, Mapping) else {"name": "switch"}
    if not settings.get("phases"):
        short = {key: value for key, value in settings.items() if key not in _MOMENTS}
        return {**given, "strategy": {**short, "at": share}}
    first, second = settings["phases"]
    second = {key: value for key, value in second.items() if key not in _MOMENTS}
    return {**given, "strategy": {**settings, "phases": [first, {**second, "at": share}]}}


def with_bar(given: Mapped, epoch: int, value: float) -> dict[str, object]:
    """Return the job, ended after an epoch unless it has reached a validation accuracy."""
    bar = {"epoch": epoch, "value": value}
    return {
        **given,
        "early_stop": {"monitor": "val_accuracy", "patience": None, "bar": bar},
    }


def as_file(given: Mapped, heading: str) -> str:
    """Format the job as a file, a setting per line."""
    lines = [f"# {line}" for line in heading.splitlines()]
    return "\n".join([*lines, *(f"{key}: {flow(value)}" for key, value in given.items())]) + "\n"


def _first(strategy: StrategySpec, raw: object) -> object:
    """Return the synchronous strategy, as the user wrote it."""
    if not strategy.resolved:
        return raw if strategy.synchronous else "allreduce"
    settings: dict[str, Any] = spelled_out(raw) if isinstance(raw, Mapping) else {}
    return settings["phases"][0]["strategy"] if settings.get("phases") else "allreduce"


def _switch_of(strategy: StrategySpec, raw: object, share: float) -> dict[str, object]:
    """Make the switch strategy of a job that has none yet."""
    if not strategy.synchronous:
        return {
            "name": "switch",
            "phases": [{"strategy": "allreduce"}, {"strategy": raw, "at": share}],
        }
    if raw in ("allreduce", {"name": "allreduce"}):
        return {"name": "switch", "at": share}
    servers = {"name": "parameter_server", "servers": "colocated", "dispatch": "dynamic"}
    return {"name": "switch", "phases": [{"strategy": raw}, {"strategy": servers, "at": share}]}


def _check_for_bars(job: JobSpec) -> None:
    if job.data.validation == 0:
        raise SpecError(
            "method halving reads validation during the run, but data.validation is 0; hold "
            "some samples out or use --method binary"
        )
    if job.early_stop is not None:
        raise SpecError(
            "method halving ends runs at bars of its own; leave early_stop out or use --method "
            "binary"
        )
    if bar_epoch(job, 0.0) is None:
        raise SpecError(
            f"method halving needs epochs after the first decay of the rate, but the job has only "
            f"{job.epochs}; use --method binary"
        )
