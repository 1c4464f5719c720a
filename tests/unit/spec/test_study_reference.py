from __future__ import annotations

from pathlib import Path

from study_reference import EXAMPLE, study_page

from phalanx.spec.study_file import load_study
from phalanx.study.matrix import expand

PAGE = Path(__file__).parents[3] / "docs" / "ref-study.md"


def test_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == study_page(), "run docs/generate_ref_study.py"


def test_the_example_is_a_study(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(EXAMPLE)
    axes, cells = expand(load_study(tmp_path / "study.yaml"))
    assert [axis.name for axis in axes] == ["strategy", "batch.global"]
    assert len(cells) == 4
