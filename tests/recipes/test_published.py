from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx_published.figures import load_published

TEXT = """\
source: somebody
measures:
  time: {title: training time, unit: s, ours: train_s}
tables:
  - title: Times
    rows:
      - settings: {batch: "128"}
        values: {time: 12.5}
      - settings: {batch: "256"}
        values: {time: {value: 7.5, printed: 75, note: the point was lost}}
curves:
  - settings: {batch: "128"}
    measure: time
    values: [1, 2.5, {value: null, printed: 3.0, note: impossible}]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "published.yaml"
    path.write_text(text)
    return path


def test_a_bare_number_is_a_figure_and_slips_are_marked(tmp_path: Path) -> None:
    published = load_published(written(tmp_path, TEXT))
    first, second = published.tables[0].rows
    assert first.values["time"].value == 12.5
    assert not first.values["time"].is_corrected
    assert second.values["time"].is_corrected
    assert [figure.value for figure in published.curves[0].values] == [1, 2.5, None]
    assert [figure.printed for figure in published.corrections] == [75, 3.0]


def test_a_measure_that_nobody_explains_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="'speed' is not among the measures"):
        load_published(written(tmp_path, TEXT.replace("measure: time", "measure: speed")))


def test_what_is_wrong_has_a_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"published\.yaml:5: unknown key 'titel' in tables\.0"):
        load_published(
            written(tmp_path, TEXT.replace("title: Times", "titel: Times\n    title: T"))
        )
