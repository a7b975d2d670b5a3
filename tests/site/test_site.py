"""The site that ``make docs`` has built, in Chromium, from its folder and without a network."""

from __future__ import annotations

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import DESKTOP, PHONE, Tab, assert_no_sideways_scrolling, browser_fixture  # noqa: F401
from paths import ROOT
from prose import long_sentences

SITE = ROOT / "target/docs"
PICTURES = ROOT / "target/site-pictures"
PAGES = sorted(path for path in SITE.rglob("*.html") if path.name != "404.html")
# Pages of which pictures are kept.
PICTURED = ("index", "get-started/torch", "reference/launch", "reference/python")
# Pages with each kind of text: code of each language, tables, docstrings, headings of each level.
READABLE = (
    *PICTURED,
    "get-started/pytest",
    "kubernetes",
    "differences",
    "transcripts",
    "debuggers",
    "reference/result",
)


# 60 pages.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_every_page_fits(size: dict[str, int], browser: Any) -> None:
    assert len(PAGES) > 50
    with Tab(browser, PAGES[0], viewport=size) as page:
        for path in PAGES:
            page.goto(path.as_uri())
            assert_no_sideways_scrolling(page, size["width"], path.name)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_pictures_are_kept(size: dict[str, int], scheme: str, browser: Any) -> None:
    with Tab(browser, PAGES[0], viewport=size, color_scheme=scheme) as page:
        for name in PICTURED:
            page.goto((SITE / f"{name}.html").as_uri())
            picture = PICTURES / f"{name.replace('/', '-')}-{size['width']}-{scheme}.png"
            page.screenshot(path=picture)
            assert picture.stat().st_size > 10_000


def test_the_search_finds_an_option(browser: Any) -> None:
    with Tab(browser, SITE / "index.html", viewport=DESKTOP) as page:
        page.locator("input.md-search__input").click()
        page.keyboard.type("grace_period")
        page.locator(".md-search-result__link").first.wait_for()
        assert "grace_period" in page.locator(".md-search-result__list").inner_text()


# The text of a page, a line for each paragraph, item and cell. A piece of code is one word.
READ = """() => {
    const article = document.querySelector("article");
    article.querySelectorAll("details").forEach(part => { part.open = true; });
    article.querySelectorAll("pre").forEach(block => block.remove());
    article.querySelectorAll("code").forEach(code => code.replaceWith("CODE"));
    return article.innerText;
}"""


# 60 pages.
@pytest.mark.timeout(300)
def test_no_sentence_is_too_long(browser: Any) -> None:
    """Docstrings too, which tests/python/test_prose.py does not read."""
    with Tab(browser, PAGES[0], viewport=DESKTOP) as page:
        found = {}
        for path in PAGES:
            page.goto(path.as_uri())
            blocks = re.split(r"[\n\t]+", page.evaluate(READ))
            assert len(blocks) > 3, path
            if long := [sentence for block in blocks for sentence in long_sentences(block)]:
                found[path.name] = long
        assert found == {}


def violations(page: Any) -> list[str]:
    """What axe-core finds by its rules for WCAG 2.1, levels A and AA: the contrast of each text, and more."""
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    # Without "preload" it fetches no style sheets, which pages of a folder may not.
    options = {"runOnly": tags, "resultTypes": ["violations"], "preload": False}
    # Browsers make what scrolls reachable by keys themselves.
    options["rules"] = {"scrollable-region-focusable": {"enabled": False}}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']}: {node['html']}: {node['failureSummary']}" for rule in found for node in rule["nodes"]
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(scheme: str, size: dict[str, int], browser: Any) -> None:
    with Tab(browser, PAGES[0], viewport=size, color_scheme=scheme) as page:
        for name in READABLE:
            page.goto((SITE / f"{name}.html").as_uri())
            assert violations(page) == [], name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_results_of_a_search_have_contrast(scheme: str, browser: Any) -> None:
    with Tab(browser, SITE / "index.html", viewport=DESKTOP, color_scheme=scheme) as page:
        page.locator("input.md-search__input").click()
        page.keyboard.type("grace_period")
        page.locator(".md-search-result__link mark").first.wait_for()
        assert violations(page) == []


@pytest.mark.parametrize(
    "selector", [".md-content p", ".md-typeset pre span", ".md-nav__link", ".md-copyright"]
)
def test_text_without_contrast_is_found(selector: str, browser: Any) -> None:
    with Tab(browser, SITE / "index.html", viewport=DESKTOP) as page:
        page.add_style_tag(content=f"{selector} {{ opacity: 0.2 !important; }}")
        assert any(one.startswith("color-contrast: ") for one in violations(page))
