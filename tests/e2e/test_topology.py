"""A topology from the command line: chosen, told, recorded, kept; and refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phalanx.records.events import Warned
from phalanx.records.log import read_events
from support.runs import Place

JOB: dict[str, Any] = {
    "name": "summing",
    "model": {"name": "mlp", "hidden": [160]},
    "data": {"name": "digits", "limit": 400},
    "batch": {"global": 48},
    "epochs": 1,
    "workers": 3,
    "threads": 1,
    "precision": "fp32",
}


def summing(**settings: str) -> dict[str, Any]:
    return JOB | {"strategy": {"name": "allreduce", **settings}}


def told(run: Path) -> list[str]:
    found = read_events(run / "events" / "worker-0.jsonl", Warned)
    return [one.message for one in found if isinstance(one, Warned) and "topology" in one.message]


def test_auto_is_told_recorded_and_kept_by_a_resumed_run(place: Place) -> None:
    place.write_job(summing(topology="auto", encrypt="always"))
    first = place.summary("job.yaml")
    run = place.folder / first["run_dir"]
    (note,) = told(run)
    assert note.startswith("topology auto: ")
    assert all(f"{name} " in note for name in ("direct", "ring", "tree", "butterfly"))
    longer = place.summary("--resume", str(run), "--epochs", "2")
    assert longer["updates"] == 2 * first["updates"]
    assert told(run) == [note]


def test_what_is_no_topology_is_refused_before_anything_starts(place: Place) -> None:
    for name, words in (("rong", "did you mean 'ring'"), ("own_sums:chain", "own_sums")):
        place.write_job(summing(topology=name))
        done = place.run("train", "job.yaml")
        assert done.returncode == 2
        assert words in done.stderr
        assert not list(place.runs.glob("*"))
