"""The page of published tables and figures: every row has an answer, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from phalanx.cli.main import load_command
from phalanx.spec.study_file import load_study

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "ref-published.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| published")
]


def test_every_row_names_a_command_or_says_why_not() -> None:
    assert len(ROWS) >= 30
    # "The same" is what the row before has named.
    known = ("recipes/", "phalanx ", "the same", "REPORT", "not here: ", "phases:")
    unanswered = [row for row in ROWS if not any(words in row[1] for words in known)]
    assert unanswered == [["times to read and prepare the data", unanswered[0][1]]]
    assert "not as a row of its own" in unanswered[0][1]


def test_the_recipes_of_the_page_exist_and_can_be_read() -> None:
    named = set(re.findall(r"recipes/[\w./-]*\w", PAGE))
    assert len(named) >= 12
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing == []
    for name in sorted(named):
        if name.endswith(".yaml"):
            load_study(ROOT / name)


def test_the_commands_of_the_rows_exist() -> None:
    commands = {words for row in ROWS for words in re.findall(r"`phalanx ([a-z ]+)`", row[1])}
    assert {"plan", "pool show", "tune switch", "dashboard"} <= commands
    for words in commands:
        name, *rest = words.split()
        command = load_command(name)
        for word in rest:
            command = command.commands[word]


def test_the_measures_of_the_rows_are_compared_by_the_recipes() -> None:
    measures = set(re.findall(r"`(cluster_\w+)`", PAGE))
    published = (ROOT / "recipes" / "ps-vs-mirrored" / "published.yaml").read_text()
    assert measures
    assert all(f"ours: {measure}\n" in published for measure in measures)
