"""Jobs whose training code is the user's script."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx.launch.code_package import pack_user_code
from phalanx.launch.job_check import check_sizes
from phalanx.spec.loader import job_from_mapping, load_job
from phalanx.spec.render import to_mapping

PROGRAM = {"script": "train.py", "args": ["--lr", "0.1"]}


def test_a_script_lies_beside_its_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("program: {script: train.py}")
    job = load_job(tmp_path / "job.yaml")
    assert job.program is not None
    assert job.program.script == str(tmp_path / "train.py")
    assert (job.model_name, job.data_name) == ("train.py", "train.py")


def test_it_survives_the_manifest_and_has_time_to_evaluate() -> None:
    job = job_from_mapping({"program": PROGRAM, "workers": 200})
    assert job_from_mapping(to_mapping(job)) == job
    assert job.deadlines.exchange_s == 1800
    check_sizes(job, num_cores=64)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("epochs", 3, "epochs stands beside 'program', but train.py itself says this"),
        ("batch", {"global": 64}, "batch stands beside 'program'"),
        ("optimizer", "adam", "optimizer stands beside 'program'"),
        ("precision", "bf16", "precision stands beside 'program'"),
        ("evaluate", "never", "'program' has no evaluate"),
        ("backend", "ddp", "'program' has no backend"),
        ("strategy", "split", "cannot run a script"),
        ("strategy", {"name": "switch", "handover": "restart"}, "'handover: restart' begins new"),
    ],
)
def test_what_the_script_decides_is_refused(setting: str, value: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        job_from_mapping({"program": PROGRAM, setting: value})


def test_trials_step_together() -> None:
    trial = {"program": PROGRAM | {"trial": {"steps": 7}}}
    job_from_mapping(trial | {"strategy": "allreduce", "workers": 2})
    with pytest.raises(SpecError, match=r"program\.trial measures workers that step together"):
        job_from_mapping(trial | {"strategy": "parameter_server", "workers": 2})


def test_script_and_what_it_imports_are_sent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import helpers\nimport torch")
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "table.json").write_text("{}")
    job = job_from_mapping(
        {"program": {"script": str(tmp_path / "train.py")}, "code": ["table.json"]}
    )
    package = pack_user_code(job, tmp_path / "elsewhere")
    assert package is not None
    assert package.names == ("helpers.py", "table.json", "train.py")
