"""The documentation site: built without a broken link, quiet, searchable from disk."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
LIMIT_MS = 30_000
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    _build(ROOT / "mkdocs.yml", folder)
    return folder


def _build(settings: Path, to: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", settings, "-d", to],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )


def test_every_page_is_built_and_asks_for_nothing_from_elsewhere(site: Path) -> None:
    pages = {one.stem for one in (ROOT / "docs").glob("*.md")}
    assert pages <= {one.stem for one in site.glob("*.html")}
    loads = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(https?:)?//"
        r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*\bhref=[\"']?(https?:)?//"
        r"|@import|url\([\"']?https?:"
    )
    files = [one for end in ("html", "css") for one in site.rglob(f"*.{end}")]
    assert [str(one) for one in files if loads.search(one.read_text(encoding="utf-8"))] == []


def test_a_broken_link_fails(tmp_path: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    head = text[: text.index("\nnav:") + 1].replace("docs_dir: docs", "docs_dir: pages")
    (tmp_path / "mkdocs.yml").write_text(head)
    (tmp_path / "pages").mkdir()
    page = tmp_path / "pages" / "index.md"
    page.write_text("# One\n\n[two](index.md#one)\n")
    _build(tmp_path / "mkdocs.yml", tmp_path / "site")
    for wrong in ("two.md", "index.md#two"):
        page.write_text(f"# One\n\n[two]({wrong})\n")
        with pytest.raises(subprocess.CalledProcessError):
            _build(tmp_path / "mkdocs.yml", tmp_path / "site")


@pytest.mark.parametrize("width", WIDTHS)
def test_search_finds_a_page_without_a_network(browser: Browser, site: Path, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((site / "index.html").as_uri(), timeout=LIMIT_MS)
    if width < 1000:
        page.locator("label.md-header__button[for=__search]").click()
    page.locator("input.md-search__input").press_sequentially("my link is slow")
    found = page.locator(".md-search-result__link").first
    found.wait_for(timeout=LIMIT_MS)
    assert "question-slow-link.html" in (found.get_attribute("href") or "")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [one for one in asked if not one.startswith(("file:", "data:", "blob:"))] == []
    assert said == []
    context.close()
