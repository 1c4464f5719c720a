"""The diagrams in the docs are the tables in the code, and every table leads to its end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.control.parameter_server import evaluation
from phalanx.control.parameter_server import states as gates
from phalanx.control.state_machine import StateMachine, Transitions
from phalanx.control.switch import states as switch

DOCS = Path(__file__).parents[3] / "docs"


@dataclass(frozen=True)
class Table:
    """One table of transitions, and the page that shows it."""

    page: str
    initial: type
    final: tuple[type, ...]
    transitions: Transitions[Any]
    events: type[StrEnum]

    @property
    def states(self) -> set[type]:
        return {state for state, _ in self.transitions} | set(self.transitions.values())

    def after(self, state: type) -> set[type]:
        return {to for (source, _), to in self.transitions.items() if source is state}


TABLES = {
    "gates": Table(
        "explain-protocol.md", gates.INITIAL, gates.FINAL, gates.TRANSITIONS, gates.GateEvent
    ),
    "evaluation": Table(
        "explain-protocol.md",
        evaluation.INITIAL,
        evaluation.FINAL,
        evaluation.TRANSITIONS,
        evaluation.EvaluationEvent,
    ),
    "switch": Table(
        "explain-switch.md", switch.INITIAL, switch.FINAL, switch.TRANSITIONS, switch.SwitchEvent
    ),
}
every_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)

# A state is only named here: what it holds does not matter for its transitions.
STATES = {state: object.__new__(state) for table in TABLES.values() for state in table.states}


def diagram_of(table: Table) -> set[tuple[str, str, str]]:
    """Edges of the diagram that begins where the table does."""
    text = (DOCS / table.page).read_text()
    blocks = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", text, flags=re.DOTALL)
    found = []
    for block in blocks:
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        edges = [re.fullmatch(r"(\S+) --> (\S+?)(?:: (.+))?", line) for line in lines]
        assert all(edges), f"{table.page} has a line that is no edge: {lines}"
        found.append({(edge[1], edge[3] or "", edge[2]) for edge in edges if edge is not None})
    [one] = [edges for edges in found if ("[*]", "", table.initial.__name__) in edges]
    return one


@every_table
def test_the_diagram_in_the_docs_is_the_table_in_the_code(table: Table) -> None:
    edges = {
        (source.__name__, str(event), target.__name__)
        for (source, event), target in table.transitions.items()
    }
    edges |= {("[*]", "", table.initial.__name__)}
    edges |= {(state.__name__, "", "[*]") for state in table.final}
    assert diagram_of(table) == edges


@every_table
def test_every_state_can_be_reached_and_can_reach_the_end(table: Table) -> None:
    def reachable(state: type) -> set[type]:
        seen, new = set(), {state}
        while new:
            seen |= new
            new = {to for one in new for to in table.after(one)} - seen
        return seen

    assert reachable(table.initial) == table.states
    for state in table.states:
        assert reachable(state) & set(table.final), f"{state.__name__} leads nowhere"


@every_table
def test_every_event_leads_somewhere(table: Table) -> None:
    assert {event for _, event in table.transitions} == set(table.events)


@every_table
@given(data=st.data())
def test_random_events_are_taken_or_refused_as_the_table_says(
    table: Table, data: st.DataObject
) -> None:
    machine = StateMachine[Any](STATES[table.initial], table.transitions)
    for _ in range(data.draw(st.integers(1, 30))):
        before = machine.state
        event = data.draw(st.sampled_from(list(table.events)))
        target = data.draw(st.sampled_from(sorted(table.states, key=lambda one: one.__name__)))
        if table.transitions.get((type(before), event)) is target:
            machine.advance(event, STATES[target])
            assert type(machine.state) is target
        else:
            with pytest.raises(AssertionError, match=f"{type(before).__name__} on {event}"):
                machine.advance(event, STATES[target])
            assert machine.state is before


def test_what_is_known_in_a_state_changes_only_within_it() -> None:
    machine = StateMachine[gates.RunState](gates.Pausing(frozenset({0, 1})), gates.TRANSITIONS)
    machine.update(gates.Pausing(frozenset({1})))
    assert machine.state == gates.Pausing(frozenset({1}))
    with pytest.raises(AssertionError, match="is not the current state"):
        machine.update(gates.Closing())
