"""A debugger in a rank, at a real terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import until

TESTS = """
    import os, pytest

    @pytest.mark.ranks(2)
    def test_fails(rank):
        secret = 40 + rank.rank
        assert rank.rank != 1, "oh"
        rank.barrier()

    @pytest.mark.ranks(2)
    def test_stops(rank):
        secret = 50 + rank.rank
        breakpoint()
        assert rank.gather(secret) == [50, 51]

    @pytest.mark.ranks(2)
    def test_both_fail(rank):
        secret = 60 + rank.rank
        assert False

    def test_plain():
        secret = 70
        assert False
"""


class Session:
    """A pytest at a terminal of its own."""

    def __init__(self, folder: Path, *args: str) -> None:
        (folder / "test_it.py").write_text(textwrap.dedent(TESTS))
        self._said = b""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execv(
                sys.executable,
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *args],
            )

    def until(self, word: str) -> str:
        """The output up to this word, which is not returned again."""
        limit = time.monotonic() + 60
        while word.encode() not in self._said:
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, limit - time.monotonic()))
            more = b""
            with contextlib.suppress(OSError):  # Its end.
                more = os.read(self._terminal, 65536) if ready else b""
            if not more:
                raise AssertionError(f"no {word!r} in\n{self._said.decode()}")
            self._said += more
        before, _, self._said = self._said.partition(word.encode())
        return before.decode()

    def interrupt(self) -> None:
        """Ctrl-C at the prompt, until it is seen: readline misses one that comes before it waits."""
        # The prompt may be there before pytest has read that a rank's debugger has the terminal.
        until(self._ignores_interrupts, "pytest to leave Ctrl-C to the debugger")
        for _ in range(60):
            self.type("\x03")
            if select.select([self._terminal], [], [], 1.0)[0]:
                break
        self.until("--KeyboardInterrupt--")

    def _ignores_interrupts(self) -> bool:
        """Whether the pytest process ignores SIGINT (proc(5), SigIgn)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
        return bool(int(ignored.split()[1], 16) >> (signal.SIGINT - 1) & 1)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.pid, 9)
        os.close(self._terminal)
        os.waitpid(self.pid, 0)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[type[Session]]:
    open_ones: list[Session] = []

    def start(*args: str) -> Session:
        open_ones.append(Session(tmp_path, *args))
        return open_ones[-1]

    yield start  # type: ignore[misc]
    for one in open_ones:
        one.close()


def test_the_rank_that_failed_is_looked_at(session: type[Session]) -> None:
    pdb = session("--pdb", "-k", "test_fails")
    assert "oh" in pdb.until(">>> rank 1: entering PDB (post mortem)")
    pdb.until("(Pdb) ")
    pdb.type("p secret + 1\n")
    pdb.until("42")
    pdb.until("(Pdb) ")
    # At the prompt, Ctrl-C is the debugger's, and neither the session's nor the other rank's.
    pdb.interrupt()
    pdb.until("(Pdb) ")
    pdb.type("p secret + 2\n")
    pdb.until("43")
    pdb.type("c\n")
    report = pdb.until("1 failed")
    assert "rank 0: stopped" in report, report
    assert "PDB" not in report


STARTS_LATE = """
import os, time
while os.environ.get("RANK") == "0" and not os.path.exists("go"):
    time.sleep(0.01)
"""


def test_a_rank_that_still_starts_is_not_interrupted_at_the_prompt(
    session: type[Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STARTS_LATE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pdb = session("--pdb", "-k", "test_fails")
    pdb.until("(Pdb) ")
    pdb.interrupt()
    pdb.until("(Pdb) ")
    (tmp_path / "go").touch()
    pdb.type("c\n")
    report = pdb.until("1 failed")
    assert "rank 0: stopped" in report, report


def test_one_rank_has_the_terminal_and_quitting_ends_the_session(session: type[Session]) -> None:
    pdb = session("--pdb", "-k", "both_fail or plain")
    pdb.until("entering PDB")
    pdb.until("(Pdb) ")
    pdb.type("q\n")
    report = pdb.until("1 failed")
    assert "Quitting debugger" in report
    assert "entering PDB" not in report


def test_a_rank_may_be_chosen_and_other_tests_are_unchanged(session: type[Session]) -> None:
    pdb = session("--ranks-pdb", "1", "--pdb", "-k", "stops or plain")
    pdb.until(">>> rank 1: entering PDB (breakpoint)")
    pdb.until("(Pdb) ")
    pdb.type("p secret\n")
    pdb.until("51")
    pdb.type("c\n")
    pdb.until("entering PDB")
    pdb.until("(Pdb) ")
    pdb.type("p secret\n")
    pdb.until("70")
    pdb.type("c\n")
    pdb.until("1 failed, 1 passed")


def test_a_breakpoint_without_any_option_is_rank_0s(session: type[Session]) -> None:
    pdb = session("-k", "stops")
    pdb.until(">>> rank 0: entering PDB (breakpoint)")
    pdb.until("(Pdb) ")
    pdb.type("p secret\n")
    pdb.until("50")
    pdb.type("c\n")
    pdb.until("1 passed")
