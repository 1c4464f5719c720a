"""The published blueprint: its faults are mended, and every mending is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import SpecError
from phalanx.spec.pool_file import load_pool
from phalanx_blueprint.lenient_json import read_leniently

# As published: no comma after GPUS, yes and no bare, no comma between objects, two key names.
PUBLISHED = """\
{
 "connections": [
  {
   "IP": "147.102.19.131",
   "Password": "pas131",
   "GPUS": 0
   "energy efficient": yes
  }
  {
   "IP": "147.102.19.4",
   "Password": "pas4",
   "GPUS": 1
   "energy_efficient": no
  }
 ]
}
"""


def load(tmp_path: Path, text: str) -> tuple[list[tuple[str, int, bool | None]], list[str]]:
    path = tmp_path / "blueprint.json"
    path.write_text(text, encoding="utf-8")
    file = tmp_path / "pool.yaml"
    file.write_text("inventory: {name: 'phalanx_blueprint:BLUEPRINT', file: blueprint.json}\n")
    pool = load_pool(file)
    machines = [(one.host, one.gpu.count, one.energy_efficient) for one in pool.spec.machines]
    return machines, [note.replace(str(path), "blueprint.json") for note in pool.notes]


def test_the_published_blueprint_is_mended_with_a_message_for_each_fault(tmp_path: Path) -> None:
    machines, notes = load(tmp_path, PUBLISHED)
    assert machines == [("147.102.19.131", 0, True), ("147.102.19.4", 1, False)]
    assert notes == [
        "blueprint.json:6: added the missing comma after '0'",
        "blueprint.json:7: took the bare word yes for text",
        "blueprint.json:8: added the missing comma after '}'",
        "blueprint.json:12: added the missing comma after '1'",
        "blueprint.json:13: took the bare word no for text",
        "blueprint.json:5: left out the password; Phalanx logs in with a key or the ssh agent",
        "blueprint.json:7: took 'energy efficient' for 'energy_efficient'",
        "blueprint.json:11: left out the password; Phalanx logs in with a key or the ssh agent",
    ]
    assert not any("pas131" in note or "pas4" in note for note in notes)


def test_curly_quotes_trailing_commas_and_numbers_as_text_are_mended(tmp_path: Path) -> None:
    text = '{"connections": [{“IP”: “192.0.2.1”, "GPUS": "2",},]}'
    machines, notes = load(tmp_path, text)
    assert machines == [("192.0.2.1", 2, None)]
    assert len(notes) == 5


def test_a_clean_blueprint_needs_no_mending(tmp_path: Path) -> None:
    connection = {"IP": "192.0.2.1", "username": "ada", "GPUS": 0, "energy_efficient": "yes"}
    machines, notes = load(tmp_path, json.dumps({"connections": [connection]}))
    assert (machines, notes) == ([("192.0.2.1", 0, True)], [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"connections": [{"IP": "a"', "'}' is missing at the end of the file"),
        ('{"connections": [{"IP": "a"}, {"IP": "a"}]}', "have the same address 'a'"),
        ('{"connections": []}', "a pool needs at least one machine"),
        ('{"connections": {}}[', "stands after the end"),
        ('{"connections": 3}', "'connections' must be a list"),
        ('{"connections": [{"IP": "a", "energy_efficient": "perhaps"}]}', "must be yes or no"),
        ('{"connections": [{"IP": "a" "IP": "b"}]}', "key 'IP' is given twice"),
        ('{"connections": [{"IP": "a}]}', "a quote opens here"),
        ('{"connections": [{"IP" "a"}]}', "':' is missing after the key 'IP'"),
    ],
)
def test_what_cannot_be_mended_is_said_in_one_sentence(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, text)
    assert expected in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from([None, 1]))
def test_valid_json_is_read_as_it_is(value: object, indent: int | None) -> None:
    read = read_leniently(json.dumps(value, indent=indent), "x.json")
    assert (read.data, read.notes) == (value, [])
    plain = read_leniently(json.dumps(value, indent=indent, ensure_ascii=False), "x.json")
    assert plain.data == value


@given(st.text(alphabet='{}[]:,"“ \nayes10'))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    try:
        read_leniently(text, "x.json")
    except SpecError as error:
        assert str(error).startswith("x.json")  # noqa: PT017 (either way is right)
