"""Pods as machines, by what `kubectl get pods` prints; no cluster runs here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.agent.kubectl import ExecRoute
from phalanx.errors import SpecError
from phalanx.pool.kubernetes import cores_of
from phalanx.pool.scheduler import lease_of, open_routes
from phalanx.spec.pool_file import load_pool


def pod(name: str, *, phase: str = "Running", cpu: str | None = None, **meta: str) -> object:
    limits = {} if cpu is None else {"cpu": cpu, "memory": "2Gi"}
    return {
        "metadata": {"name": name, "namespace": "ml", **meta},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": phase, "podIP": f"10.0.0.{len(name)}"},
    }


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kubectl").write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/pods\n'
    )
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    path = tmp_path / "pods.yaml"
    path.write_text("scheduler: {name: kubernetes, selector: app=phalanx, namespace: ml}\n")
    return path


def test_running_pods_are_machines(pool: Path) -> None:
    gone = pod("gone", deletionTimestamp="2026-01-01T00:00:00Z")
    pods = [pod("job-0", cpu="1500m"), pod("job-01"), pod("late", phase="Pending"), gone]
    pool.with_name("pods").write_text(json.dumps({"kind": "List", "items": pods}))
    spec = load_pool(pool).spec
    assert [(one.host, one.address, one.cores) for one in spec.machines] == [
        ("job-0", "10.0.0.5", 1.5),
        ("job-01", "10.0.0.6", None),
    ]
    asked = pool.with_name("asked").read_text().split()
    assert asked == ["--namespace=ml", "get", "pods", "--selector=app=phalanx", "--output=json"]
    assert lease_of(spec) is None
    with open_routes(spec) as route:
        way = route(spec.machines[0])
    assert isinstance(way, ExecRoute)
    assert way.command("true") == [
        *("kubectl", "--namespace=ml", "exec", "--stdin", "job-0", "--", "sh", "-c", "true")
    ]


def test_without_running_pods_the_labels_are_named(pool: Path) -> None:
    pool.with_name("pods").write_text(json.dumps({"items": [pod("late", phase="Pending")]}))
    with pytest.raises(SpecError, match=r"labels 'app=phalanx' is running \(1 have them\)"):
        load_pool(pool)
    pool.with_name("pods").write_text("{}")
    with pytest.raises(SpecError, match="answers what no cluster answers"):
        load_pool(pool)


@pytest.mark.parametrize(
    ("quantity", "cores"),
    [("2", 2.0), (4, 4.0), ("500m", 0.5), ("1.5", 1.5), (None, None), ("", None), ("x", None)],
)
def test_limits_of_cores_are_read(quantity: str | int | None, cores: float | None) -> None:
    assert cores_of(quantity) == cores
