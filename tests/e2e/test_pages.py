"""Tutorials and questions of the documentation: their commands work and print what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.pool.emulate.cluster import EmulatedCluster
from phalanx.pool.emulate.system import obstacle
from phalanx.spec.pool_file import load_cluster
from support.pages import DOCS, Call, follow, steps_of
from support.runs import Place

FIRST, FIVE = "tutorial-first-run.md", "tutorial-five-pcs.md"
CLUSTER = """\
cluster: room
hosts:
  - {name: pc1, cores: 0.5, memory: 2GB, link: 1Gbit/s}
  - {name: pc2, cores: 0.4, memory: 2GB, link: 1Gbit/s}
  - {name: pc3, cores: 0.4, memory: 2GB, link: 1Gbit/s}
  - {name: pc4, cores: 0.4, memory: 2GB, link: 1Gbit/s}
  - {name: pc5, cores: 0.3, memory: 2GB, link: 100Mbit/s}
"""
# Each runs commands of its own; the one of the first run has what all have.
LONG = sorted(
    path.name
    for kind in ("tutorial-*.md", "question-*.md")
    for path in DOCS.glob(kind)
    if path.name not in (FIRST, FIVE)
    and any(isinstance(step, Call) for step in steps_of(path.name))
)


@pytest.mark.parametrize(
    "page", [FIRST, *(pytest.param(one, marks=pytest.mark.full) for one in LONG)]
)
def test_a_page_does_and_prints_what_it_says(page: str, place: Place) -> None:
    follow(page, place)


@pytest.mark.full
def test_the_five_pcs_of_the_tutorial_can_be_emulated(place: Place) -> None:
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    (place.folder / "cluster.yaml").write_text(CLUSTER)
    (place.folder / "home").mkdir()
    place.environment["HOME"] = str(place.folder / "home")
    state = place.folder / "state"
    cluster = EmulatedCluster(load_cluster(place.folder / "cluster.yaml"), state)
    try:
        cluster.up()
        follow(FIVE, place, {"pool.yaml": _pool(state)})
    finally:
        cluster.down()


def _pool(state: Path) -> str:
    text = (state / "room" / "pool.yaml").read_text()
    # It names a file beside it, and is written elsewhere.
    return text.replace(": ssh_config", f": {state / 'room' / 'ssh_config'}")
