"""The command shows, writes and exits as its page says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from phalanx.adopt.findings import STRATEGIES
from phalanx.cli.main import app
from phalanx.errors import SpecError
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = HERE / "scripts" / "vae_sum.py"
REFUSED = HERE / "refused" / "lbfgs.py"


def adopt(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["adopt", *map(str, arguments)])


def test_shows_findings_diff_and_strategies_and_writes_nothing(tmp_path: Path) -> None:
    script = Path(shutil.copy(SCRIPT, tmp_path))
    done = adopt(script)
    assert done.exit_code == 0
    assert f"{script}:31: changed: `optimizer` is given to the session" in done.output
    assert '+session.setup(model, optimizer, loss="sum")' in done.output
    assert f"strategies: {', '.join(STRATEGIES)}\n" in done.output
    assert script.read_text() == SCRIPT.read_text()


def test_write_changes_the_script_in_place_once(tmp_path: Path) -> None:
    script = Path(shutil.copy(SCRIPT, tmp_path))
    done = adopt(script, "--write")
    assert done.exit_code == 0
    assert "session.data(" in script.read_text()
    assert f"phalanx launch --workers 2 {script}" in done.output
    once = script.read_text()
    assert adopt(script, "--write").exit_code == 0
    assert script.read_text() == once
    assert [path.name for path in tmp_path.iterdir()] == [script.name]


def test_output_writes_another_file(tmp_path: Path) -> None:
    script = Path(shutil.copy(SCRIPT, tmp_path))
    assert adopt(script, "-o", tmp_path / "new.py").exit_code == 0
    assert script.read_text() == SCRIPT.read_text()
    assert "session.data(" in (tmp_path / "new.py").read_text()


def test_a_refused_script_is_not_written_and_the_code_is_2(tmp_path: Path) -> None:
    script = Path(shutil.copy(REFUSED, tmp_path))
    done = adopt(script, "--write")
    assert done.exit_code == 2
    assert ":7: refused: L-BFGS evaluates the loss several times" in done.output
    assert "do: a first-order optimiser" in done.output
    assert script.read_text() == REFUSED.read_text()


def test_json_is_for_machines() -> None:
    facts = json.loads(adopt(SCRIPT, "--json").stdout)
    assert facts["refused"] is False
    assert facts["written"] is None
    assert facts["changed_lines"] <= 8
    assert facts["diff"].startswith("--- ")
    assert set(facts["findings"][0]) == {"line", "severity", "name", "what", "why", "todo"}
    refused = json.loads(adopt(REFUSED, "--json").stdout)
    assert refused["refused"] is True
    assert refused["strategies"] == []
    assert [one["name"] for one in refused["findings"]] == ["lbfgs"]


def test_the_real_command_ends_with_one_sentence_for_bad_input(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'hello'\n")
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "adopt", "old.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "old.py, line 1: not Python 3" in done.stderr
    assert len(done.stderr.splitlines()) <= 3


def test_without_libcst_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("libcst", "phalanx.adopt"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    done = adopt(SCRIPT)
    assert "phalanx[adopt]" in str(done.exception)


def test_strategies_are_those_that_run_scripts(tmp_path: Path) -> None:
    """Fails as soon as jobs with a script take another strategy: then say so here, too."""
    if "program" not in JobSpec.model_fields:
        pytest.skip("no jobs with scripts")
    (tmp_path / "train.py").write_text("")
    taken = []
    for name in STRATEGIES:
        job = {"program": {"script": str(tmp_path / "train.py")}, "workers": 2, "strategy": name}
        try:
            job_from_mapping(job | ({"workers": 1} if name == "single" else {}))
        except SpecError:
            continue
        taken.append(name)
    assert taken == list(STRATEGIES)


def test_the_page_names_every_refusal() -> None:
    page = (ROOT / "docs" / "how-to-adopt.md").read_text()
    code = "\n".join(path.read_text() for path in (ROOT / "src/phalanx/adopt").glob("*.py"))
    names = set(re.findall(r'refuse\(\s*[^"]*?"([a-z]+(?:-[a-z]+)+|lbfgs|slices|closure)"', code))
    internal = {"shared-line", "not-written", "not-visible", "epoch-range", "unknown-parameters",
                "untraceable", "optimizer-changes", "no-loop", "no-optimizer", "mixed-precision",
                "accelerate-accumulate"}  # fmt: skip
    assert len(names) > 30
    assert {name for name in names - internal if f"`{name}`" not in page} == set()
