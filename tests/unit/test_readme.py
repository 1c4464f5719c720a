"""The README's promises that can be checked without running anything long."""

from __future__ import annotations

import re
from pathlib import Path

from phalanx.spec.loader import job_from_mapping

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_paths_that_are_named_exist() -> None:
    paths = re.findall(r"`((?:src|docs)/[\w./-]+)`", README)
    assert len(paths) >= 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_job_in_the_readme_is_valid() -> None:
    from ruamel.yaml import YAML

    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    job = job_from_mapping(YAML(typ="safe", pure=True).load(block))
    assert (job.workers, job.global_batch, job.strategy.name) == (2, 128, "allreduce")


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_package_is_on_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rooms = [
        one.name for one in (ROOT / "src" / "phalanx").iterdir() if (one / "__init__.py").exists()
    ]
    assert [room for room in rooms if f"{room}/" not in page] == []
