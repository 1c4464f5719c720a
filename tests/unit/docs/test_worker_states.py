"""The state diagrams of worker and client say what the tables in code say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import pytest

from phalanx.paramserver.client_state import CLIENT_TRANSITIONS, Detached
from phalanx.worker.parameter_server.states import WORKER_TRANSITIONS, Ended, Joining

PAGE = Path(__file__).parents[3] / "docs" / "explain-protocol.md"
ARROW = re.compile(r"^\s*(\S+) --> (\S+?)(?:: (.+))?$")
Table = Mapping[tuple[type, StrEnum], type]
Edge = tuple[str, str, str]


def drawn(heading: str) -> tuple[set[Edge], set[str], set[str]]:
    """Edges, first states and last states of the diagram under a heading."""
    section = PAGE.read_text().split(f"\n### {heading}\n", 1)[1].split("\n### ", 1)[0]
    diagram = section.split("```mermaid\nstateDiagram-v2\n", 1)[1].split("```", 1)[0]
    edges: set[Edge] = set()
    first: set[str] = set()
    last: set[str] = set()
    for line in diagram.splitlines():
        arrow = ARROW.match(line)
        assert arrow is not None, line
        source, target, events = arrow.groups()
        if source == "[*]":
            first.add(target)
        elif target == "[*]":
            last.add(source)
        else:
            edges |= {(source, event.strip(), target) for event in events.split(",")}
    return edges, first, last


@pytest.mark.parametrize(
    ("heading", "table", "first", "last"),
    [
        ("Worker", WORKER_TRANSITIONS, {Joining.__name__}, {Ended.__name__}),
        ("Client", CLIENT_TRANSITIONS, {Detached.__name__}, {Detached.__name__}),
    ],
)
def test_the_diagram_has_the_edges_of_the_table(
    heading: str, table: Table, first: set[str], last: set[str]
) -> None:
    coded = {(one.__name__, str(event), two.__name__) for (one, event), two in table.items()}
    edges, begins, ends = drawn(heading)
    assert edges == coded
    assert (begins, ends) == (first, last)


@pytest.mark.parametrize(
    ("table", "first", "last"),
    [(WORKER_TRANSITIONS, Joining, Ended), (CLIENT_TRANSITIONS, Detached, Detached)],
)
def test_every_state_is_reached_and_leads_to_the_end(table: Table, first: type, last: type) -> None:
    states = {state for state, _ in table} | set(table.values())
    after = {state: {two for (one, _), two in table.items() if one is state} for state in states}
    before = {state: {one for (one, _), two in table.items() if two is state} for state in states}
    assert reached(first, after) == states
    assert reached(last, before) == states


def reached(start: type, edges: Mapping[type, set[type]]) -> set[type]:
    found = {start}
    while more := {two for one in found for two in edges[one]} - found:
        found |= more
    return found
