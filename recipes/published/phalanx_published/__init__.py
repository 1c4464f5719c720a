"""Show published figures beside those of a study: a part of its report.

Study files name it with the file of figures, which is checked when the study is planned:

    report_parts: [{name: "phalanx_published:PUBLISHED", file: published.yaml}]
"""

from __future__ import annotations

from phalanx.report.parts.catalogue import ReportPart

PUBLISHED = ReportPart(
    name="published",
    make="phalanx_published.chapter:published",
    needs=("file",),
    check="phalanx_published.figures:load_published",
)
