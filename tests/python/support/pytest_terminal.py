"""A pytest session at a real terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import select
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import until
from processes import children, state
from pytest_suites import QUICK


class TerminalSession:
    """A pytest at a terminal of its own, in a folder with this source as ``test_it.py``."""

    def __init__(self, folder: Path, source: str, *args: str) -> None:
        (folder / "test_it.py").write_text(textwrap.dedent(source))
        self._said = b""
        self._status: int | None = None
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            # If it hangs, where: its own stack, before `until` gives up.
            always = [*QUICK, "--color=no", "-o", "faulthandler_timeout=45"]
            os.execv(sys.executable, [sys.executable, "-m", "pytest", *always, *args])

    def until(self, word: str) -> str:
        """The output up to this word, which is not returned again."""
        begun = time.monotonic()
        while word.encode() not in self._said:
            more = self._read(begun + 60)
            if not more:
                seconds = time.monotonic() - begun
                waits = "\n".join(map(self._describe, [self.pid, *children(self.pid)]))
                os.kill(self.pid, signal.SIGABRT)  # Its faulthandler writes where it is.
                while more := self._read(time.monotonic() + 5):
                    self._said += more
                raise AssertionError(
                    f"no {word!r} within {seconds:.1f} s in\n{self._said.decode()}\nThe processes:\n{waits}"
                )
            self._said += more
        before, _, self._said = self._said.partition(word.encode())
        return before.decode()

    def _read(self, limit: float) -> bytes:
        """What it writes next; nothing at its end, or at this time of `time.monotonic`."""
        ready, _, _ = select.select([self._terminal], [], [], max(0.0, limit - time.monotonic()))
        with contextlib.suppress(OSError):  # Its end.
            return os.read(self._terminal, 65536) if ready else b""
        return b""

    @staticmethod
    def _describe(pid: int) -> str:
        """A process, its state and what it waits for in the kernel."""
        try:
            command, wait = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "wchan"))
        except OSError:
            return f"{pid}: gone"
        return f"{pid} {state(pid)} {wait.decode()}: {command[-150:]!r}"

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
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        os.close(self._terminal)

    def wait(self) -> int:
        """Its exit code, or minus the number of the signal that has killed it."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


StartSession = Callable[..., TerminalSession]


@pytest.fixture(name="start_session")
def start_session_fixture(tmp_path: Path) -> Iterator[StartSession]:
    """Starts a session of a source, with these arguments to pytest."""
    started: list[TerminalSession] = []

    def start(source: str, *args: str) -> TerminalSession:
        started.append(TerminalSession(tmp_path, source, *args))
        return started[-1]

    yield start
    for one in started:
        one.close()
