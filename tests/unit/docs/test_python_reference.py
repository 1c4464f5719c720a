from __future__ import annotations

import inspect
from pathlib import Path

from python_reference import PUBLIC, python_page

import phalanx
from phalanx import api

PAGE = Path(__file__).parents[3] / "docs" / "ref-python.md"


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == python_page(), "run docs/generate_ref_python.py"


def test_every_public_name_is_on_the_page() -> None:
    shown = {name for names in PUBLIC.values() for name, _ in names}
    public = {f"phalanx.{name}" for name in phalanx.__all__ if not name.startswith("__")}
    assert public - shown == set()
    functions = inspect.getmembers(api, inspect.isfunction)
    own = {
        name
        for name, function in functions
        if function.__module__ == api.__name__ and not name.startswith("_")
    }
    # `phalanx.train` and `phalanx.resume` are what users call; a survey is a part of a plan.
    assert {f"phalanx.api.{name}" for name in own - {"train", "resume", "survey"}} <= shown


def test_names_lead_to_what_is_shown() -> None:
    for names in PUBLIC.values():
        for name, home in names:
            if name.startswith("phalanx.") and not name.startswith("phalanx.api."):
                assert phalanx._HOMES[name.removeprefix("phalanx.")] == home.partition(":")[0]
