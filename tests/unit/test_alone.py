"""A test that is about speeds has the machine for itself, as far as tests go."""

import re
import subprocess
import sys
from pathlib import Path

TESTS = """
import os, time
import pytest

def during(name):
    print_to(f"{name} begins")
    for _ in range(100):
        os.sched_yield()
    print_to(f"{name} ends")

def print_to(line):
    with open("order.txt", "a") as file:
        file.write(line + "\\n")

@pytest.mark.parametrize("number", range(20))
MARK
def test_it(number):
    during(f"NAME{number}")
"""
CONFTEST = """
from support.alone import pytest_runtest_protocol

def pytest_configure(config):
    config.addinivalue_line("markers", "alone: as in the real suite")
"""


def test_nothing_runs_beside_a_test_that_is_alone(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name, mark in (("a", "@pytest.mark.alone"), ("b", ""), ("c", "")):
        text = TESTS.replace("MARK", mark).replace("NAME", name)
        (tmp_path / f"test_{name}.py").write_text(text)
    support = Path(__file__).parents[1]
    subprocess.run(
        [
            # Options of this session mean nothing there.
            *("env", "-u", "PYTEST_ADDOPTS"),
            *(sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile"),
            *("-o", f"pythonpath={support}", "--rootdir", "."),
        ],
        cwd=tmp_path,
        check=True,
        timeout=60,
        capture_output=True,
    )
    lines = (tmp_path / "order.txt").read_text().splitlines()
    begun = [place for place, line in enumerate(lines) if re.fullmatch(r"a\d+ begins", line)]
    assert len(lines) == 120
    assert len(begun) == 20
    for place in begun:
        name = lines[place].split()[0]
        assert lines[place + 1] == f"{name} ends"
        others = [line.split()[1] for line in lines[:place] if not line.startswith("a")]
        assert others.count("begins") == others.count("ends"), "another test was under way"
