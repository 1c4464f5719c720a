"""The page on extending shows the code of the plugin that the tests train with."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from phalanx.spec.loader import job_from_mapping
from support.plugins import PLUGINS

PAGE = Path(__file__).parents[2] / "docs" / "how-to-extend.md"


def blocks_of(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_every_block_of_code_is_the_plugins_own() -> None:
    sources = [path.read_text() for path in PLUGINS.rglob("*.py")]
    blocks = blocks_of("python")
    assert len(blocks) == 9
    for block in blocks:
        assert any(block in source for source in sources), block


def test_every_job_is_the_plugins_own_or_settings_that_a_job_takes() -> None:
    own = (PLUGINS / "job.yaml").read_text()
    blocks = blocks_of("yaml")
    assert any(block in own for block in blocks)
    for block in blocks:
        if block not in own:
            job = {"model": "mlp", "data": "digits", "python_path": [str(PLUGINS)]}
            job_from_mapping(job | yaml.safe_load(block))
