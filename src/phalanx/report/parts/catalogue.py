"""List the parts of a report: name, import path and place of each; open to other packages.

A part is a function of the `Scope`, and of what it `needs` besides, that makes one section, or
None where the runs give no material for it. Installed packages add parts through the entry-point
group `phalanx.report_parts`; a study file (`report_parts`) or `--part` names one by import path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, cast

from phalanx.report.document import Section
from phalanx.spec.registry import IMPORT_PATH, Registry, load

Need = Literal["pairs", "advice", "blamed", "file"]


@dataclass(frozen=True)
class ReportPart:
    """One chapter of a report.

    Attributes:
        name: Name for `--part`.
        make: Import path of the function that makes its section.
        order: Position among the others; the built-in ones are ten apart.
        needs: Further arguments of the function: `pairs` (cells compared two by two), `advice`
            (the recommendation), `blamed` (waiting by cause), `file` (path of the file that the
            study gives for it, or None).
        check: Import path of a function of that path, called before a study begins; raises
            SpecError if the file cannot be used.
        folded: A page shows only the title until the reader opens the chapter.
    """

    name: str
    make: str
    order: int = 135
    needs: tuple[Need, ...] = ()
    check: str = ""
    folded: bool = False

    def function(self) -> Callable[..., Section | None]:
        """Import the function that makes the section."""
        return cast("Callable[..., Section | None]", load(self.make))


# What few readers ask for; together they are longer than the rest.
_FOLDED = ("machines", "setup", "data", "runs", "notes")


def _built_in(*parts: tuple[str, str] | tuple[str, str, tuple[Need, ...]]) -> dict[str, ReportPart]:
    found = {}
    for number, (name, path, *needs) in enumerate(parts, start=1):
        make = f"phalanx.report.parts.{path}"
        found[name] = ReportPart(
            name=name,
            make=make,
            order=10 * number,
            needs=needs[0] if needs else (),
            folded=name in _FOLDED,
        )
    return found


REPORT_PARTS = Registry(
    "report part",
    ReportPart,
    group="phalanx.report_parts",
    built_in=_built_in(
        # The answer, its picture and its figures first; what was set up, and how, at the end.
        ("summary", "overview:in_short", ("advice",)),
        ("tradeoff", "tradeoff:tradeoff"),
        ("results", "results:results"),
        ("metrics", "metrics:show_metrics"),
        ("learning", "learning:learning"),
        ("equivalence", "contrasts:same_result", ("pairs",)),
        ("contrasts", "contrasts:head_to_head", ("pairs",)),
        ("time_to_accuracy", "tradeoff:time_to_accuracy"),
        ("scaling", "scaling:scaling"),
        ("times", "times:where_time_went", ("blamed",)),
        ("split", "split:how_it_was_split"),
        ("inference", "split:how_fast_it_answers"),
        ("machines", "machines:machines"),
        ("doubts", "run_list:doubts"),
        ("setup", "overview:what_was_run"),
        ("data", "overview:show_data_distribution"),
        ("runs", "run_list:every_run"),
        ("notes", "overview:notes"),
    ),
)


def report_parts(more: Iterable[str] = ()) -> dict[str, ReportPart]:
    """Return all parts by name, in order: built in, installed, and those named here.

    Raises:
        SpecError: A named part is unknown or cannot be imported.
    """
    # The table also holds import paths named by earlier reports of this process: leave them out.
    general = [name for name in REPORT_PARTS.names() if not IMPORT_PATH.match(name)]
    found = {name: REPORT_PARTS.find(name) for name in (*general, *more)}
    return dict(sorted(found.items(), key=lambda item: item[1].order))
