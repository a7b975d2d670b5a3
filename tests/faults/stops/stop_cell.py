"""One cell of the stop matrix: a launcher with two ranks of a kind, a sender, and what becomes of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import marked
from job import STEERING, Late, default_signals, until
from stop_ranks import LAST_LINE, SCRIPT, WRAPPER, RankKind

if TYPE_CHECKING:
    from slurm_cluster import Cluster

RANKS = 2
# Seconds for anything that has to come, on a busy machine.
LIMIT = 120.0
# Seconds after the command's end in which a launcher's ranks may end.
SETTLE = 2.0


@dataclass(frozen=True)
class StopLauncher:
    """A launcher. `grace_option`: sets its grace period, where it has such an option."""

    name: str
    title: str
    options: tuple[str, ...]
    grace_option: str | None
    # Before a script that is no Python.
    program_option: tuple[str, ...] = ()
    ours: bool = False


LAUNCHERS = {
    launcher.name: launcher
    for launcher in (
        StopLauncher(
            "rlaunch",
            "python -m rlaunch",
            ("-m", "rlaunch", f"--nproc_per_node={RANKS}"),
            "--grace_period",
            ("--no_python",),
            ours=True,
        ),
        StopLauncher(
            "run",
            "rlaunch-run",
            ("-m", "rlaunch.run", f"--nproc-per-node={RANKS}", "--master-port=0"),
            "--shutdown-timeout",
            ("--no-python",),
            ours=True,
        ),
        StopLauncher(
            "torchrun",
            "torchrun",
            ("-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "--master-port=0"),
            "--shutdown-timeout",
            ("--no-python",),
        ),
        StopLauncher(
            "paddle",
            "paddle.distributed.launch",
            ("-m", "paddle.distributed.launch", f"--nproc_per_node={RANKS}"),
            None,
        ),
    )
}


@dataclass(frozen=True)
class StopTimes:
    """Seconds of a run."""

    # That a rank needs to save.
    save: float
    # The grace period as an option of the launcher; None leaves its default.
    grace: float | None
    # From the first to the second signal of CI, and from that to its SIGKILL.
    second: float
    kill: float
    # From docker's SIGTERM to its SIGKILL.
    docker: float
    # TimeoutStopSec of systemd, stopwaitsecs of supervisord.
    service: float


# As users have them.
REAL = StopTimes(save=8, grace=None, second=7.5, kill=2.5, docker=10, service=90)
# A grace period that no busy machine uses up, and no SIGKILL by a sender: that would be a race.
QUICK = StopTimes(save=2.5, grace=60, second=1.8, kill=LIMIT, docker=LIMIT, service=LIMIT)
# Of ranks that can only be killed.
QUICK_KILL = StopTimes(save=2.5, grace=3, second=1.8, kill=LIMIT, docker=LIMIT, service=LIMIT)


@dataclass(frozen=True)
class Seen:
    """What became of a job. `seconds`: from the stop to the end of its last process; None if one stays."""

    saved: int
    seconds: float | None
    status: str
    leftover: int
    note: str = ""

    @property
    def good(self) -> bool:
        return self.saved == RANKS and self.leftover == 0 and not self.note


class EndWatch:
    """Notes when the last of these processes ends."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.descriptors = set()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self.descriptors.add(os.pidfd_open(pid))
        self.last = time.monotonic()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        waiting = select.poll()
        for descriptor in self.descriptors:
            waiting.register(descriptor, select.POLLIN)
        while self.descriptors:
            for descriptor, _ in waiting.poll():
                waiting.unregister(descriptor)
                self.descriptors.remove(descriptor)
                os.close(descriptor)
            self.last = time.monotonic()

    def last_end(self) -> float:
        """When the last one ended, once all have."""
        self.thread.join()
        return self.last


class StopCell:
    """The job of a cell. A sender starts it, waits for its ranks, stops it, and waits for its end."""

    def __init__(
        self, launcher: StopLauncher, kind: RankKind, times: StopTimes, folder: Path, loader: str = "plain"
    ) -> None:
        self.launcher, self.kind, self.times, self.folder = launcher, kind, times, folder
        self.cluster: Cluster | None = None
        self.mark = uuid.uuid4().hex
        self.status = "no status"
        self.began: float | None = None
        # When the command ended.
        self.ended: float | None = None
        self.watch: EndWatch | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "tmp").mkdir()
        (folder / "train.py").write_text(SCRIPT)
        (folder / "train.sh").write_text(WRAPPER.format(python=sys.executable))
        (folder / "train.sh").chmod(0o755)
        grace = []
        if times.grace is not None and launcher.grace_option is not None:
            grace = [f"{launcher.grace_option}={times.grace:g}"]
        script = [*launcher.program_option, "./train.sh"] if kind.wrapped else ["train.py"]
        # The mark is of the job alone, not of a sender around it; env(1) replaces itself by the launcher.
        self.environment = {
            marked.VARIABLE: self.mark,
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
        }
        self.command = [
            "env",
            # Set in the kernel of the tests' notebooks; Paddle's launcher fails if it is empty.
            "--unset=CUDA_VISIBLE_DEVICES",
            *(f"{name}={value}" for name, value in self.environment.items()),
            sys.executable,
            *launcher.options,
            *grace,
            *script,
            kind.name,
            str(times.save),
            loader,
        ]

    @property
    def line(self) -> str:
        """The command in a shell."""
        return shlex.join(self.command)

    def start(self, *command: str | Path, terminal: int | None = None) -> subprocess.Popen[bytes]:
        """Starts this command, by default the launcher, in a new session. `terminal`: the session's."""

        def prepare() -> None:
            default_signals()
            if terminal is not None:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        env = {name: value for name, value in os.environ.items() if not STEERING.match(name)}
        with open(self.folder / "output", "ab") as output:
            outputs: Any = output if terminal is None else terminal
            process = subprocess.Popen(
                [*map(str, command or self.command)],
                cwd=self.folder,
                env=env,
                start_new_session=True,
                preexec_fn=prepare,
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=outputs,
                stderr=outputs,
            )
        self.processes.append(process)
        return process

    def await_ready(self) -> None:
        """Waits until all ranks have set what they do at a signal."""
        paths = [self.folder / f"ready.{rank}" for rank in range(RANKS)]

        def all_ready() -> bool:
            return all(path.exists() for path in paths)

        until(lambda: all_ready() or any(p.poll() is not None for p in self.processes), "ranks", LIMIT)
        if not all_ready():
            raise Late("the command ended before its ranks were ready")

    def sends(self) -> None:
        """Notes the time of the stop, which comes now."""
        self.watch = EndWatch(member.pid for member in self.members())
        self.began = time.monotonic()

    def await_status(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for the end of the command, and notes its exit status."""
        code = process.wait(LIMIT)
        self.ended = time.monotonic()
        self.status = str(code) if code >= 0 else signal.Signals(-code).name

    def await_launcher(self) -> None:
        """Waits for the end of all processes of the launcher, where the sender does not wait for them."""
        until(lambda: all(one.kind != "launcher" for one in self.members()), "the launcher's end", LIMIT)
        self.ended = time.monotonic()

    def members(self) -> list[marked.Member]:
        return marked.members(self.mark)

    def pid_of_launcher(self) -> int:
        """The launcher's first process, as this PID namespace sees it."""
        found = {one.pid: one for one in self.members() if one.kind == "launcher"}
        (pid,) = (pid for pid, one in found.items() if one.parent not in found)
        return pid

    def judge(self) -> Seen:
        """What became of the job, once its processes have ended or will not end by themselves."""
        assert self.began is not None
        assert self.ended is not None
        assert self.watch is not None
        leftover = marked.survivors(self.mark, max(0.0, self.ended + SETTLE - time.monotonic()))
        # A leftover that saves may still come to the end of it.
        settle = self.times.save + SETTLE if self.kind.saves else 0.0
        left = marked.survivors(self.mark, settle) if leftover else []
        seconds = None if left else self.watch.last_end() - self.began
        saved = sum(self.is_saved(rank, alive=bool(left)) for rank in range(RANKS))
        return Seen(saved, seconds, self.status, len(leftover))

    def is_saved(self, rank: int, alive: bool) -> bool:
        """Whether the rank's checkpoint is whole, and nothing writes it any more."""
        file = self.folder / f"checkpoint.{rank}"
        return not alive and file.exists() and file.read_text().endswith(f"\n{LAST_LINE}\n")

    def output(self) -> str:
        file = self.folder / "output"
        return file.read_text(errors="replace") if file.exists() else ""

    def close(self) -> None:
        """Ends whatever still runs."""
        marked.end_all(self.mark)
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


Body = Callable[[StopCell], None]


@dataclass(frozen=True)
class Sender:
    """A way to stop a job. `body` starts the job, stops it, and waits for its end."""

    name: str
    title: str
    about: str
    body: Body
    # Whether it signals every process of the job itself.
    to_all: bool = False
    ours_alone: bool = False


SENDERS: dict[str, Sender] = {}


def sender(
    name: str, title: str, about: str, *, to_all: bool = False, ours_alone: bool = False
) -> Callable[[Body], Body]:
    """Registers a sender."""

    def register(body: Body) -> Body:
        assert name not in SENDERS, name
        SENDERS[name] = Sender(name, title, about, body, to_all, ours_alone)
        return body

    return register


@contextlib.contextmanager
def cell(*args: Any, **options: Any) -> Iterator[StopCell]:
    made = StopCell(*args, **options)
    try:
        yield made
    finally:
        made.close()


def run(
    sender: Sender,
    kind: RankKind,
    launcher: StopLauncher,
    times: StopTimes,
    folder: Path,
    loader: str = "plain",
    cluster: Cluster | None = None,
) -> tuple[Seen, str]:
    """Runs a cell in an empty folder; returns what was seen, and the output."""
    with cell(launcher, kind, times, folder, loader) as job:
        job.cluster = cluster
        try:
            sender.body(job)
            seen = job.judge()
        except Late as late:
            seen = Seen(0, None, job.status, len(job.members()), str(late))
        except subprocess.TimeoutExpired:
            seen = Seen(0, None, job.status, len(job.members()), f"no end within {LIMIT:g} s")
        return seen, job.output()
