"""Pages in Debian's Chromium, which playwright of PyPI drives."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Of Debian, Ubuntu, and the runners of GitHub.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 800}


@pytest.fixture(scope="module", name="browser")
def browser_fixture() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    assert CHROMIUM is not None, "install chromium"
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses root.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


class Tab:
    """The page in a tab, with all that the browser complains of."""

    def __init__(self, browser: Any, place: Path | str, **options: Any) -> None:
        """Opens a file without a network, or an address."""
        is_file = isinstance(place, Path)
        self.site = "file:" if is_file else place
        self.context = browser.new_context(offline=is_file, **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(place.as_uri() if isinstance(place, Path) else place)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith((self.site, "data:"))] == []


def assert_no_sideways_scrolling(page: Any, width: int, name: str = "the page") -> None:
    widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert widths == [width, width], f"{name} itself scrolls sideways"
