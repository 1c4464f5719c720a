"""Every page names commands and options that exist, and files that are valid."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any

import pytest

from phalanx.cli.main import COMMANDS, load_command
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.study_file import load_study
from support.pages import DOCS, Call, WrittenFile, steps_of
from support.pools import pool_from_mapping

ROOT = DOCS.parent
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]
# A command at the beginning of a line of a block, as a reader copies it.
LINE = re.compile(r"^(?:\$ |sudo )*(phalanx (?:[a-z-]+).*)$", re.MULTILINE)
GLOBAL = {"--help", "-h", "--version", "--install-completion", "--show-completion"}


@cache
def options_of(words: tuple[str, ...]) -> tuple[set[str], list[str]] | None:
    """Options of a command, and the commands below it; None: there is no such command."""
    if words[0] not in COMMANDS:
        return None
    command: Any = load_command(words[0])
    for word in words[1:]:
        command = command.commands.get(word)
        if command is None:
            return None
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return names, list(getattr(command, "commands", {}))


def fault(line: str) -> str | None:
    """What is wrong with a command, if anything."""
    words = shlex.split(line, comments=True)[1:]
    if words and words[0].startswith("-"):
        return None if words[0] in GLOBAL else f"no option {words[0]}"
    own: tuple[str, ...] = (words[0],)
    found = options_of(own)
    if found is not None and found[1] and len(words) > 1 and words[1][0] != "-":
        own = (words[0], words[1])
        found = options_of(own)
    if found is None:
        return f"there is no command {' '.join(own)}"
    for number, word in enumerate(words):
        if word.endswith(".py") and own[0] in ("launch", "plan"):
            break  # what follows is the script's own
        if word in ("|", "&&", ">", ";", "&"):
            break
        if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in found[0] | GLOBAL:
            return f"{' '.join(own)} has no option {word} (word {number + 1})"
    return None


def test_a_command_that_is_not_there_is_found() -> None:
    assert fault("phalanx train job.yaml --workers 2 --set epochs=3") is None
    assert fault("phalanx study show study-a --json") is None
    assert fault("phalanx train job.yaml --gpus 2") is not None
    assert fault("phalanx studie run x") is not None
    assert fault("phalanx study ran x") is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_every_command_on_a_page_exists_with_its_options(page: Any) -> None:
    blocks = "\n".join(re.findall(r"^```\w*[^\n]*\n(.*?)^```$", page.read_text(), re.M | re.S))
    faults = [f"{line}: {wrong}" for line in LINE.findall(blocks) if (wrong := fault(line))]
    assert faults == []


@pytest.mark.parametrize(
    "page", [one.name for one in PAGES if one.name.startswith(("tutorial-", "question-"))]
)
def test_the_files_of_a_page_are_valid(page: str, tmp_path: Any) -> None:
    import yaml

    steps = list(steps_of(page))
    assert steps, "a page shows something to do"
    for step in steps:
        if isinstance(step, Call):
            assert step.command, page
        elif isinstance(step, WrittenFile) and step.name.startswith("job"):
            job_from_mapping(yaml.safe_load(step.text))
        elif step.name.startswith("pool"):
            pool_from_mapping(yaml.safe_load(step.text))
        elif step.name.startswith("study"):
            (tmp_path / step.name).write_text(step.text)
            load_study(tmp_path / step.name)
        else:
            compile(step.text, step.name, "exec")
