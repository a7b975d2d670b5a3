"""Two versions of the site in one branch, as ``make site-version`` deploys them, served and in Chromium."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import DESKTOP, Tab, browser_fixture  # noqa: F401
from paths import ROOT

VENV = Path(sys.executable).parents[1]
IDENTITY = {"GIT_COMMITTER_NAME": "site", "GIT_COMMITTER_EMAIL": "site@example.org"}


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def git(folder: Path, *arguments: str | Path) -> str:
    return subprocess.run(
        ["git", "-C", folder, *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.fixture(scope="module", name="url")
def url_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    clone = tmp_path_factory.mktemp("versions") / "clone"
    git(ROOT, "clone", "--quiet", "--shared", ROOT, clone)
    # What is not committed yet.
    for name in git(ROOT, "ls-files", "--modified", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    # The environment is there, though the clone's files are newer.
    make = ["make", "--silent", f"--old-file={VENV}/docs", "site-version", f"VENV={VENV}"]
    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"} | IDENTITY
    for version in ("dev", "0.1 latest"):
        subprocess.run([*make, f"VERSION={version}"], cwd=clone, env=env, check=True)
    git(clone, "worktree", "add", "--quiet", clone.with_name("pages"), "gh-pages")
    handler = functools.partial(QuietHandler, directory=str(clone.with_name("pages")))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


# It builds the site twice.
@pytest.mark.timeout(600)
def test_the_selector_has_each_version(url: str, browser: Any) -> None:
    for version, shown in (("latest", "0.1"), ("dev", "dev")):
        with Tab(browser, url, viewport=DESKTOP) as page:
            page.goto(f"{url}{version}/launch.html")
            page.locator(".md-version__current").wait_for()
            assert page.locator(".md-version__current").inner_text().split()[0] == shown
            assert page.locator(".md-version__link").all_text_contents() == ["dev", "0.1"]


def test_the_root_leads_to_the_latest_release(url: str, browser: Any) -> None:
    with Tab(browser, url, viewport=DESKTOP) as page:
        page.wait_for_url(f"{url}latest/")
        page.locator(".md-version").hover()
        page.locator(".md-version__link", has_text="dev").click()
        page.wait_for_url(f"{url}dev/**")
