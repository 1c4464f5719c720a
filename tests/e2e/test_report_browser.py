"""The page of a report in a real browser: drawn, quiet, alone, and no wider than the screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

from phalanx.api import make_report
from support.made_up_study import write_made_up_study

WIDTHS = (1280, 390)
LIMIT_MS = 100_000
# A chart is drawn when it has marks: bars, lines, areas, points or rules.
MARKS = "g.mark-rect path, g.mark-line path, g.mark-area path, g.mark-symbol path, g.mark-rule line"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    page = folder / "report.html"
    make_report([write_made_up_study(folder / "study").path], page=page)
    return page


@pytest.mark.parametrize("width", WIDTHS)
def test_every_chart_is_drawn_and_nothing_else_happens(
    browser: Browser, page_file: Path, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    asked: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        said.append(f"{message.type}: {message.text}")

    page.on("console", hear)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    _open(page, page_file)

    first = page.evaluate("document.querySelector('.chart').getBoundingClientRect().top")
    assert first < 900, "answer and picture are on the first screen"
    reasons = page.locator(".reasons p").first
    assert reasons.is_visible() == (width > 640)
    if width <= 640:
        page.locator(".reasons summary").first.click()
        assert reasons.is_visible(), "a touch shows what the answer rests on"
    page.locator("#open-all").click()
    page.wait_for_function(
        "document.querySelectorAll('.chart:not(.drawn)').length === 0", timeout=LIMIT_MS
    )
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    charts = page.query_selector_all(".chart")
    assert len(charts) >= 30
    for chart in charts:
        number = chart.get_attribute("data-chart")
        box = chart.bounding_box()
        assert box is not None, number
        assert box["height"] > 80, number
        assert box["width"] <= width, number
        sizes = chart.eval_on_selector_all(
            MARKS, "marks => marks.map(m => m.getBBox()).map(b => Math.max(b.width, b.height))"
        )
        assert any(size > 1 for size in sizes), f"chart {number} has no marks"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    _nothing_sticks_out(page, width)


def _open(page: Page, file: Path) -> None:
    page.goto(file.as_uri(), timeout=LIMIT_MS)
    page.wait_for_selector("html[data-charts=drawn]", timeout=LIMIT_MS, state="attached")


def _nothing_sticks_out(page: Page, width: int) -> None:
    """Text and charts end inside the screen; only tables and contents scroll, in their boxes."""
    wide = page.eval_on_selector_all(
        "h1, h2, p, main li, figcaption, .chart svg, .legend",
        "(all, width) => all.filter(e => e.getBoundingClientRect().right > width + 1)"
        ".map(e => e.textContent.slice(0, 60))",
        width,
    )
    assert wide == []


def test_texts_of_a_chart_do_not_overlap(browser: Browser, page_file: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    _open(page, page_file)
    clashes = page.evaluate(
        """() => Array.from(document.querySelectorAll('.chart')).flatMap((chart) => {
          const texts = Array.from(chart.querySelectorAll('text'))
            .filter((t) => t.textContent.trim() && getComputedStyle(t).opacity !== '0'
                    && getComputedStyle(t).display !== 'none')
            .map((t) => [t.textContent, t.getBoundingClientRect()]);
          const found = [];
          texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
            // A pixel or two of touching boxes is the font's own leading.
            const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
            const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
            if (across > 2 && down > 4) found.push(`${chart.dataset.chart}: ${a} / ${b}`);
          }));
          return found;
        })"""
    )
    assert clashes == []


def test_without_scripts_the_tables_remain(browser: Browser, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri(), timeout=LIMIT_MS)
    assert page.locator("noscript p").is_visible()
    assert page.locator("table").count() >= 20
    assert page.locator("#in-short p").first.is_visible()
    assert page.locator("table").first.is_visible()
    context.close()


def test_charts_follow_the_width_of_the_window(browser: Browser, page_file: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    _open(page, page_file)
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function(
        "Array.from(document.querySelectorAll('.chart svg')).every("
        "e => e.getBoundingClientRect().right <= 391)",
        timeout=LIMIT_MS,
    )


def test_curves_can_be_hidden_zoomed_smoothed_and_drawn_over_another_axis(
    browser: Browser, page_file: Path
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    _open(page, page_file)
    figure = page.locator("figure#curves-1")
    figure.scroll_into_view_if_needed()
    chart = figure.locator(".chart").first

    def drawn() -> str:
        return str(chart.locator("svg").inner_html())

    def wait_for_another(before: str) -> str:
        page.wait_for_function(
            "before => document.querySelector('figure#curves-1 .chart svg')?.innerHTML !== before"
            " && document.querySelector('figure#curves-1 .chart svg') !== null",
            arg=before,
            timeout=LIMIT_MS,
        )
        return drawn()

    seen = [drawn()]
    name = figure.locator(".legend button").first
    name.click()
    seen.append(wait_for_another(seen[-1]))
    assert name.get_attribute("aria-pressed") == "false"
    figure.locator("input[name=smoothing]").fill("0.5")
    seen.append(wait_for_another(seen[-1]))
    figure.locator("input[name=log]").check()
    seen.append(wait_for_another(seen[-1]))
    figure.locator("select[name=x]").first.select_option("samples")
    seen.append(wait_for_another(seen[-1]))
    assert "samples seen" in chart.inner_text()
    reset = figure.locator("button[name=reset]")
    assert not reset.is_visible()
    box = chart.bounding_box()
    assert box is not None
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.4 * box["width"], height)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], height, steps=4)
    page.mouse.up()
    zoomed = wait_for_another(seen[-1])
    reset.click()
    wait_for_another(zoomed)
    assert not reset.is_visible()


def test_a_click_on_a_head_sorts_a_table_by_its_numbers(browser: Browser, page_file: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    _open(page, page_file)
    head = page.locator("#table-results-1 th", has_text="training time")
    place = int(head.get_attribute("data-column") or -1)
    cells = f"#table-results-1 tbody td:nth-child({place + 1})"
    for order, sign in (("ascending", 1), ("descending", -1)):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == order
        values = page.eval_on_selector_all(cells, "all => all.map(e => Number(e.dataset.value))")
        assert len(values) >= 2
        assert [sign * one for one in values] == sorted(sign * one for one in values)


def test_a_link_opens_a_folded_chapter(browser: Browser, page_file: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    _open(page, page_file)
    chapter = page.locator("#what-was-run details")
    assert chapter.get_attribute("open") is None
    page.locator("nav a[href='#what-was-run']").click()
    page.wait_for_selector("#what-was-run details[open]", timeout=LIMIT_MS)
