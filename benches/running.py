"""One run of a launcher with ranks that report their steps, and measurements of the launcher from /proc."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from bench_launchers import Launcher, environment

# Above the script of every rank.
HEAD = '''
import os, signal, sys, time

rank = int(os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"])
size = int(os.environ.get("PADDLE_TRAINERS_NUM") or os.environ["WORLD_SIZE"])
here = os.path.dirname(os.path.abspath(__file__))

def tell(name, text):
    """A file that is whole when it appears."""
    path = os.path.join(here, f"{name}.{rank}")
    with open(path + ".tmp", "w") as file:
        file.write(str(text))
    os.rename(path + ".tmp", path)

def wait_for(name):
    """Until the bench has made this file."""
    while not os.path.exists(os.path.join(here, name)):
        time.sleep(0.001)

def write(data):
    data = memoryview(data)
    while data:
        data = data[os.write(1, data):]

tell("pid", os.getpid())
'''


class Late(Exception):
    """Something did not come in time."""


class Run:
    """A launcher with ranks that run `body`. Leaves nothing behind when its block ends."""

    def __init__(
        self,
        launcher: Launcher,
        parent: Path,
        body: str,
        *args: str,
        ranks: int = 2,
        options: Iterable[str] = (),
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.launcher, self.ranks = launcher, ranks
        self.folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{launcher.name}."))
        script = self.folder / "rank.py"
        script.write_text(HEAD + body)
        self.pidfds: dict[int, int] = {}
        self.process = subprocess.Popen(
            [*launcher.command(ranks, self.folder / "log", *options), str(script), *args],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=self.folder,
            env={**environment(), **variables},
            start_new_session=True,
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.track(self.values("pid"))
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pidfd in self.pidfds.values():  # A rival may have left them.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        shutil.rmtree(self.folder, ignore_errors=True)

    def values(self, name: str) -> dict[int, str]:
        """The values that ranks have written under this name so far."""
        paths = {rank: self.folder / f"{name}.{rank}" for rank in range(self.ranks)}
        return {rank: path.read_text() for rank, path in paths.items() if path.exists()}

    def await_values(self, name: str, ranks: Iterable[int] | None = None, limit: float = 90) -> list[float]:
        """The numbers that these ranks (default: all) write under this name."""
        wanted = list(range(self.ranks) if ranks is None else ranks)
        deadline = time.monotonic() + limit
        while not set(wanted) <= (written := self.values(name)).keys():
            if self.process.poll() is not None and not set(wanted) <= self.values(name).keys():
                raise Late(
                    f"{self.launcher.title} ended ({self.process.returncode}) before {name} was written"
                )
            if time.monotonic() > deadline:
                raise Late(f"{self.launcher.title}: no {name} within {limit:g} s")
            time.sleep(0.01)
        if name == "pid":
            self.track(written)
        return [float(written[rank]) for rank in wanted]

    def track(self, pids: dict[int, str]) -> None:
        """Opens a pidfd of each rank, so that no other process that gets its pid is mistaken for it."""
        for pid in map(int, pids.values()):
            if pid in self.pidfds:
                continue
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                pidfd = os.pidfd_open(pid)
                if str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    self.pidfds[pid] = pidfd
                else:
                    os.close(pidfd)

    def open_gate(self, name: str) -> None:
        (self.folder / name).touch()

    def launcher_processes(self) -> list[int]:
        """The launcher and its children that are no ranks. Waits until all ranks have written their pid."""
        self.await_values("pid")
        found = [self.process.pid]
        for pid in found:
            for task in tasks([pid]):
                children = (task / "children").read_text().split()
                found += [int(child) for child in children if int(child) not in self.pidfds]
        return found


def tasks(pids: Iterable[int]) -> list[Path]:
    """The threads of these processes."""
    return [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]


def pss(pids: Iterable[int]) -> float:
    """Memory of these processes in MB; shared pages are divided among all that have them."""
    sizes = [field(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in pids]
    return sum(sizes) / 1024


def wakeups(pids: Iterable[int]) -> int:
    """How often the threads of these processes have gone to sleep so far."""
    return sum_of(tasks(pids), lambda task: field(task / "status", "voluntary_ctxt_switches"))


def sum_of(threads: Iterable[Path], figure: Callable[[Path], int]) -> int:
    total = 0
    for thread in threads:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It has ended meanwhile.
            total += figure(thread)
    return total


def field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise LookupError(f"no {name} in {path}")


def ticks(pids: Iterable[int]) -> float:
    """CPU seconds of these processes so far, as the kernel's clock ticks count them (proc_pid_stat(5))."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def scheduled(pids: Iterable[int]) -> float:
    """The same, as the scheduler counts it, to the nanosecond."""
    return sum_of(tasks(pids), lambda task: int((task / "schedstat").read_text().split()[0])) / 1e9


def succeed(command: list[str]) -> None:
    """Runs a command that has to exit successfully; a figure of a failed command is no figure."""
    null = subprocess.DEVNULL
    done = subprocess.run(command, stdin=null, stdout=null, stderr=null, env=environment(), check=False)
    if done.returncode != 0:
        sys.exit(f"bench: exit status {done.returncode} of {' '.join(command)}")


def answer(command: list[str]) -> Any:
    """The JSON on the last line of what a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return json.loads(done.stdout.splitlines()[-1])
