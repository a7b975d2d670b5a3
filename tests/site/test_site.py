"""The site that ``make docs`` has built, in Chromium, from its folder and without a network."""

from __future__ import annotations

from typing import Any

import pytest
from browser import DESKTOP, PHONE, Tab, assert_no_sideways_scrolling, browser_fixture  # noqa: F401
from paths import ROOT

SITE = ROOT / "target/docs"
PICTURES = ROOT / "target/site-pictures"
PAGES = sorted(path for path in SITE.rglob("*.html") if path.name != "404.html")
# Pages of which pictures are kept.
PICTURED = ("index", "get-started/torch", "reference/launch", "reference/python")


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
            page.screenshot(path=PICTURES / f"{name.replace('/', '-')}-{size['width']}-{scheme}.png")


def test_the_search_finds_an_option(browser: Any) -> None:
    with Tab(browser, SITE / "index.html", viewport=DESKTOP) as page:
        page.locator("input.md-search__input").click()
        page.keyboard.type("grace_period")
        page.locator(".md-search-result__link").first.wait_for()
        assert "grace_period" in page.locator(".md-search-result__list").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(scheme: str, browser: Any) -> None:
    script = """selector => {
        const light = color => {
            const [r, g, b] = color.match(/[0-9.]+/g).map(part => part / 255)
                .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        let behind = document.querySelector(selector);
        const front = light(getComputedStyle(behind).color);
        while (/, 0\\)/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
        const back = light(getComputedStyle(behind).backgroundColor);
        return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    }"""
    with Tab(browser, SITE / "index.html", viewport=DESKTOP, color_scheme=scheme) as page:
        for selector in (
            ".md-content p",
            ".md-content p a",
            ".md-content code",
            ".md-header__topic",
            ".md-tabs__link",
        ):
            assert page.evaluate(script, selector) >= 4.5, selector
