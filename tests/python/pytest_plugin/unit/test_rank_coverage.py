"""Data files of the ranks' coverage, whole and damaged."""

from __future__ import annotations

import sqlite3
import warnings
from pathlib import Path

import coverage
import pytest
from rlaunch._pytest import rank_coverage

# Enough for many pages of the database.
FILES = [f"/folder/{'x' * 60}{number}.py" for number in range(400)]


class Session:
    """A measured process with these data."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = coverage.CoverageData(basename=str(path))
        monkeypatch.setattr(coverage.Coverage, "current", lambda: self)

    def get_data(self) -> coverage.CoverageData:
        return self.data


@pytest.fixture(name="session")
def session_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(tmp_path / "session", monkeypatch)


def write(folder: Path, rank: int, files: list[str], context: str | None = None) -> Path:
    path = folder / f"coverage.{rank}"
    data = coverage.CoverageData(basename=str(path))
    data.set_context(context)
    data.add_arcs({file: [(1, 2), (2, 3)] for file in files})
    data.close()
    return path


def cut_off(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty_the_last_page(path: Path) -> None:
    content = path.read_bytes()
    assert len(content) > 5 * 4096
    path.write_bytes(content[:-4096] + bytes(4096))


def drop_a_table(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE tracer")
    database.close()


def fill_with_text(path: Path) -> None:
    path.write_text("no database " * 1000)


@pytest.mark.parametrize("context", [None, "a_test"])
@pytest.mark.parametrize("damage", [cut_off, empty_the_last_page, drop_a_table, fill_with_text])
def test_a_damaged_file_adds_nothing_and_the_others_are_added(
    damage: object, context: str | None, session: Session, tmp_path: Path
) -> None:
    damage(write(tmp_path, 0, FILES, context))  # type: ignore[operator]
    write(tmp_path, 1, ["/folder/good.py"], context)
    write(tmp_path, 2, ["/folder/better.py"], context)
    with pytest.warns(pytest.PytestWarning, match="the coverage of these ranks is lost: rank 0: "):
        rank_coverage.add_to_parent(str(tmp_path), 3)
    assert session.data.measured_files() == {"/folder/good.py", "/folder/better.py"}
    assert session.data.arcs("/folder/good.py")


def test_a_rank_that_has_written_nothing_adds_nothing(session: Session, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rank_coverage.add_to_parent(str(tmp_path), 3)
    assert not session.data.measured_files()


def _run_a_line() -> None:
    pass


def test_the_parent_sees_the_whole_file_of_a_rank_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent may stop the rank at each of the steps in which coverage.py writes."""
    path = tmp_path / "coverage.1"
    is_there = []
    add_lines = coverage.CoverageData.add_lines

    def add_and_look(self: coverage.CoverageData, *args: object) -> None:
        add_lines(self, *args)  # type: ignore[arg-type]
        is_there.append(path.exists())

    monkeypatch.setattr(coverage.CoverageData, "add_lines", add_and_look)
    settings = {"folder": str(tmp_path), "options": {"config_file": False, "include": [__file__]}}
    with rank_coverage.RankCoverage(settings, 1):
        _run_a_line()
    assert is_there
    assert not any(is_there)
    data = coverage.CoverageData(basename=str(path))
    data.read()
    assert data.measured_files() == {__file__}
    data.close()
