"""Pages of the documentation as a reader follows them: their files are written, their commands run.

A block of code that begins with `# NAME.yaml` or `# NAME.py` is a file. In a `console` block each
line that begins with `$ ` is a command, and what follows is what it prints: numbers, durations,
sizes, names of runs and drawn bars may differ, `...` stands for any lines, all other words may not.
After `<!-- varies -->` a command has to end well and to print something.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.runs import LIMIT_S, Place

DOCS = Path(__file__).parents[2] / "docs"
_FENCE = re.compile(r"^(<!-- varies -->\n)?```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^# ([\w.-]+\.(?:yaml|py))\n")
_RUN_NAME = r"[\w-]*\d{8}-\d{6}-[0-9a-f]{4}"
_BAR = r"[█▓▒░━╸╺ ]*"
_UNITS = r"(?:[mµ]?s|min|h|[KMGT]?i?B|[KMGT]?(?:bit|B)/s|%)"
_NUMBER = rf"[-+]?\d[\d,.:]*(?:[ ]{_UNITS})?"
# In this order: what an earlier one matches, the later ones do not see.
_VARIABLE = (
    (re.compile(_RUN_NAME), _RUN_NAME),
    (re.compile(r"[█▓▒░━╸╺]+(?:[ ]*[█▓▒░━╸╺]+)*"), _BAR),
    # A dash is a figure that there is none of.
    (re.compile(rf"(?<![\w-]){_NUMBER}(?![\w-])|(?<![^ ])-(?![^ ])"), rf"(?:-|{_NUMBER})"),
    (re.compile(r"\bthreads?\b"), "threads?"),
    (re.compile(r"\b(?:fp32|bf16)\b"), "(?:fp32|bf16)"),
    (re.compile(r" +"), r"[ ]+"),
)


@dataclass(frozen=True)
class WrittenFile:
    """A file that the reader is to save."""

    name: str
    text: str


@dataclass(frozen=True)
class Call:
    """A command that the reader is to type, and what the page says that it prints."""

    command: str
    printed: tuple[str, ...]
    varies: bool = False
    """What it prints differs from run to run, such as who waited for whom."""

    def matches(self, output: str) -> bool:
        """Return whether the command printed what the page says."""
        if self.varies:
            return bool(output.strip())
        lines = [_any_lines() if one.strip() == "..." else _like(one) for one in self.printed]
        return re.fullmatch("".join(lines), _plain(output)) is not None


def steps_of(page: str) -> Iterator[WrittenFile | Call]:
    """Yield files and commands of a page in order."""
    for varies, language, block in _FENCE.findall((DOCS / page).read_text()):
        named = _FILE.match(block)
        if language == "console":
            yield from _calls(block, varies=bool(varies))
        elif named is not None:
            yield WrittenFile(named[1], block)


def follow(page: str, place: Place, files: Mapping[str, str] | None = None) -> None:
    """Do what a page says, in one folder; fails where it prints something else, or ends badly.

    `files` replaces files of the page, where they are about the reader's own machines.
    """
    for step in steps_of(page):
        if isinstance(step, WrittenFile):
            text = (files or {}).get(step.name, step.text)
            (place.folder / step.name).write_text(text)
            continue
        done = _run(step.command, place)
        assert done.returncode == 0, f"{page}: {step.command}: {done.stdout}"
        assert step.matches(done.stdout), f"{page}: {step.command} printed:\n{done.stdout}"


def _calls(block: str, *, varies: bool) -> Iterator[Call]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *printed = part.rstrip("\n").splitlines()
        yield Call(command, tuple(printed), varies)


def _run(command: str, place: Place) -> subprocess.CompletedProcess[str]:
    # Runs are kept in `runs` here, as on the page.
    there = [one for one in place.command() if "=" in one and not one.startswith("PHALANX_RUNS")]
    return subprocess.run(
        ["env", *there, "bash", "-c", f"PATH={Path(sys.executable).parent}:$PATH\n{command}"],
        cwd=place.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def _plain(output: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def _any_lines() -> str:
    return r"(?:[^\n]*\n)*?"


def _like(line: str) -> str:
    """Return the pattern of one line: exact but for what differs from run to run."""
    pattern, rest = "", line.strip()
    while rest:
        found = [(match, like) for one, like in _VARIABLE if (match := one.search(rest))]
        first, like = min(found, key=lambda one: one[0].start(), default=(None, ""))
        if first is None:
            pattern, rest = pattern + re.escape(rest), ""
        else:
            pattern += re.escape(rest[: first.start()]) + like
            rest = rest[first.end() :]
    return rf"[ ]*{pattern}\n"
