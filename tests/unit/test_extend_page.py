"""The page on extending shows the code of the plugin that the tests train with."""

from __future__ import annotations

import re
from pathlib import Path

from support.plugins import PLUGINS

PAGE = Path(__file__).parents[2] / "docs" / "how-to-extend.md"


def test_every_block_of_code_is_the_plugins_own() -> None:
    sources = [path.read_text() for path in PLUGINS.rglob("*.py")]
    sources.append((PLUGINS / "job.yaml").read_text())
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 9
    for block in blocks:
        assert any(block in source for source in sources), block
