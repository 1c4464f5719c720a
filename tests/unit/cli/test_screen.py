"""Whatever a machine, a log or an error says, it cannot steer the user's terminal."""

from __future__ import annotations

import io

from rich.table import Table
from rich.text import Text

from phalanx.cli.screen import _SafeConsole

EVIL = "a\x1b]0;title\x07b\x9b2Jc\u202ed"


def test_control_characters_in_texts_never_reach_the_terminal() -> None:
    file = io.StringIO()
    console = _SafeConsole(file=file, force_terminal=True, width=100)
    table = Table(box=None)
    table.add_column(Text(EVIL))
    table.add_row(Text(EVIL, "bold"))
    console.print(table)
    console.print(Text(EVIL), soft_wrap=True)
    console.print(EVIL, markup=False, soft_wrap=True)
    said = file.getvalue()
    for word in ("\x1b]", "\x07", "\x9b", "\u202e"):
        assert word not in said
    assert "a\\x1b]0;title" in said
    assert "\x1b[1m" in said, "its own styles do"
