"""The page of ``rlaunch report`` in Chromium: it renders, sorts and scrolls, light and dark, on a phone too.

For ``make test-full`` (``conftest.py``). Needs Debian's package chromium, and playwright of PyPI to drive it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from browser import DESKTOP, PHONE, Tab, assert_no_sideways_scrolling, browser_fixture  # noqa: F401
from jobs import Jobs
from launching import free_ports, until
from paths import ROOT
from run_records import failed_run

RANKS = 512


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    jobs = Jobs(tmp_path_factory.mktemp("t"))
    failed_run(jobs.folder / "log", RANKS)
    done = jobs.ask("report", "log")
    assert done.status == 0, done.stderr
    return Path(done.stdout.decode().strip())


def column(page: Any, name: str) -> list[str]:
    """The cells of a column from the top."""
    script = """name => {
        const table = document.querySelector("table");
        const at = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent === name);
        return [...table.tBodies[0].rows].map(row => row.cells[at].textContent);
    }"""
    cells: list[str] = page.evaluate(script, name)
    return cells


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_it_renders_without_a_complaint(
    size: dict[str, int], scheme: str, browser: Any, page_file: Path
) -> None:
    with Tab(browser, page_file, viewport=size, color_scheme=scheme) as page:
        assert "Rank 1 failed with exit code 3" in page.locator("h1").inner_text()
        assert_no_sideways_scrolling(page, size["width"])
        luminance = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
        assert (sum(page.evaluate(luminance)) > 384) == (scheme == "light")
        for part in ("#culprit", "#timeline .lanes", "#ranks table", "#logs details"):
            assert page.locator(part).first.bounding_box()["height"] > 10, part
        # A segment of each rank has a width and a colour.
        segment = page.locator("#timeline .p.failed").last
        assert segment.bounding_box()["width"] > 100
        assert segment.evaluate("one => getComputedStyle(one).backgroundColor") != "rgba(0, 0, 0, 0)"


def test_the_table_sorts_by_mouse_and_keyboard(browser: Any, page_file: Path) -> None:
    with Tab(browser, page_file, viewport=DESKTOP) as page:
        header = page.locator("th", has_text="Wall time")
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == "descending", "large numbers are looked for"
        assert column(page, "Rank")[:2] == [f"rank {RANKS - 1}", f"rank {RANKS - 2}"]
        page.keyboard.press("Enter")
        assert header.get_attribute("aria-sort") == "ascending"
        assert column(page, "Rank")[:3] == ["rank 0", "rank 1", "rank 2"]
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        assert header.get_attribute("aria-sort") is None
        assert column(page, "Peak memory")[0] == "512 MB"
        page.locator("th button", has_text="Status").click()
        assert column(page, "Status")[0] == "failed"
        page.locator("th button", has_text="Rank").click()
        assert column(page, "Rank") == [f"rank {rank}" for rank in range(RANKS)]


def test_512_ranks_scroll(browser: Any, page_file: Path) -> None:
    with Tab(browser, page_file, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        for part in ("#timeline .lanes", "#ranks .scroll"):
            scroller = page.locator(part)
            inside = scroller.evaluate("one => [one.scrollHeight > 8000, one.clientHeight < 740]")
            assert inside == [True, True], part
            scroller.evaluate("one => one.scrollTo(100, one.scrollHeight)")
            assert scroller.evaluate("one => [one.scrollTop > 7000, one.scrollLeft > 50]") == [True, True], (
                part
            )
            edge = scroller.bounding_box()["x"]
            name = page.locator(f"{part} .name", has_text=f"rank {RANKS - 1}")
            # The names stay where they are.
            assert abs(name.bounding_box()["x"] - edge) < 3, part


def test_a_link_opens_the_log(browser: Any, page_file: Path) -> None:
    with Tab(browser, page_file, viewport=DESKTOP) as page:
        log = page.locator("#log-rank-300")
        assert not log.locator("pre").is_visible()
        page.locator("#rank-300 .path a").click()
        log.locator("pre").wait_for(state="visible")
        assert log.locator("pre").inner_text() == "step 1 of rank 300"


def test_the_timeline_zooms(browser: Any, page_file: Path) -> None:
    with Tab(browser, page_file, viewport=DESKTOP) as page:
        width = "document.querySelector('.wide').offsetWidth"
        before = page.evaluate(width)
        page.get_by_label("Zoom in").click()
        assert page.evaluate(width) > 1.8 * before
        page.get_by_label("Zoom out").click()
        assert page.evaluate(width) == before


def test_without_javascript(browser: Any, page_file: Path) -> None:
    with Tab(browser, page_file, viewport=PHONE, java_script_enabled=False) as page:
        assert page.locator("button").count() == 0, "none that does nothing"
        page.locator("#log-rank-1 summary").click()
        assert page.locator("#log-rank-1 pre").is_visible()


def two_nodes(folder: Path) -> Path:
    """The log folder of the node whose rank failed, of a job of two nodes."""
    nodes = [Jobs(folder / name) for name in ("one", "two")]
    options = (f"--master=127.0.0.1:{free_ports(1)}", "--nnodes=2", "--nproc_per_node=2", "--job_id=night")
    with contextlib.ExitStack() as stack:
        launchers = []
        for jobs in nodes:
            jobs.folder.mkdir()
            jobs.script("""
                print("step 1, loss 2.302", flush=True)
                tell("ready")
                if rank != 3:
                    sleep()
                await_file("go")
                raise ValueError("the loss is not a number: step 2, batch 17")
            """)
            launchers.append(stack.enter_context(jobs.start(*options, "train.py", env=jobs.env)))
        for jobs in nodes:
            until(lambda jobs=jobs: len(list(jobs.folder.glob("ready.?"))) == 2, "the ranks")
        for jobs in nodes:
            (jobs.folder / "go").touch()
        statuses = [jobs.wait(launcher).status for jobs, launcher in zip(nodes, launchers, strict=True)]
    assert 0 not in statuses, statuses
    (failed,) = (jobs.folder for jobs in nodes if (jobs.folder / "ready.3").exists())
    return failed / "log"


@pytest.mark.parametrize("name", ["2-nodes", "256-ranks"])
def test_pictures_for_the_docs(name: str, browser: Any, tmp_path: Path) -> None:
    """RLAUNCH_UPDATE_DOCS=1 writes them anew."""
    jobs = Jobs(tmp_path)
    log = two_nodes(tmp_path) if name == "2-nodes" else failed_run(jobs.folder / "log", 256)
    done = jobs.ask("report", str(log))
    assert done.status == 0, done.stderr
    folder = ROOT / "docs/images" if "RLAUNCH_UPDATE_DOCS" in os.environ else tmp_path
    picture = folder / f"report-{name}.png"
    written = Path(done.stdout.decode().strip())
    text = (
        written.read_text()
        .replace(str(log.parent), "/data/night")
        .replace(sys.executable, "/usr/bin/python3")
    )
    # Without the paths of the machine that draws it.
    (tmp_path / "page.html").write_text(text)
    with Tab(browser, tmp_path / "page.html", viewport=DESKTOP, color_scheme="light") as page:
        if name == "2-nodes":
            text = page.locator("body").inner_text()
            assert "rank 3" in page.locator("h1").inner_text().lower()
            assert "ValueError: the loss is not a number" in text
        page.screenshot(path=picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert (ROOT / "docs/images" / picture.name).exists()
