"""A pytest plugin: two tiers of tests, skips that fail where nothing may be skipped, durations.

`make test` runs everything but what is marked `full`; `make test-full` runs the rest. With
`--no-skips`, as in CI, a test that cannot run here fails instead of being passed over. With
`--durations-file` every test's duration is written to a CSV file, longest first, so that a slow
suite can be attributed.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

# Seconds by test: set-up, call and tear-down together.
_seconds: dict[str, float] = defaultdict(float)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("phalanx")
    group.addoption("--no-skips", action="store_true", help="fail tests that would be skipped")
    group.addoption("--durations-file", metavar="CSV", help="write every test's duration there")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        reason = call.excinfo.value if call.excinfo is not None else "skipped"
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} may not be skipped here (--no-skips): {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Modules that skip themselves while they are imported (`importorskip`)."""
    report = yield
    if report.outcome == "skipped" and collector.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} may not be skipped here (--no-skips)"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # With xdist the reports of all processes come together in the one that has the file.
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    name = config.getoption("--durations-file")
    if not name or hasattr(config, "workerinput"):
        return
    path = Path(name)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["seconds", "test"])
        for test, seconds in sorted(_seconds.items(), key=lambda item: -item[1]):
            rows.writerow([f"{seconds:.2f}", test])
