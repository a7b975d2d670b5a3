"""Helpers of the stress tests of spawn: ranks that misbehave, parents in processes of their own, and
measures of what a spawn leaves behind. Imported by every rank, so it imports little."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import rlaunch
from paths import PYTHONPATH
from processes import alive, children, state

TORCHS_METHODS = ["spawn", "fork", "forkserver"]
METHODS = [*TORCHS_METHODS, "zygote"]
PATIENCE = 30.0
MiB = 1 << 20
BIG = 10 * MiB
MARK = "RLAUNCH_TEST_MARK"


def spawn(func: Callable[..., Any], method: str, nprocs: int, args: Any = (), **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your model will be trained under CPUONLY")
        if method == "zygote":
            options.setdefault("preload", "decimal")  # Anything that is soon imported.
        return rlaunch.spawn(func, args, nprocs, start_method=method, backend="gloo", **options)


def context_of(method: str) -> Any:
    """The context that makes locks and queues for ranks of this start method."""
    return multiprocessing.get_context("spawn" if method == "zygote" else method)


def join(ctx: Any) -> None:
    while not ctx.join():
        pass


def results(ctx: Any) -> list[Any]:
    return [queue.get() for queue in ctx.return_queues]


# --- Measures -------------------------------------------------------------------------------------------


def eventually(condition: Callable[[], object], timeout: float = PATIENCE) -> bool:
    """Whether the condition becomes true before the deadline."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def all_gone(pids: Iterable[int], timeout: float = PATIENCE) -> bool:
    return eventually(lambda: not any(map(alive, pids)), timeout)


def descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # The one that listdir itself had open.
            found[os.readlink(f"/proc/self/fd/{fd}")] += 1
    return found


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


class Footprint:
    """The resources of this process: descriptors, threads, processes."""

    def __init__(self) -> None:
        gc.collect()
        self.descriptors, self.threads, self.children = descriptors(), threads(), children()

    def growth(self) -> list[Any]:
        gc.collect()
        return [
            *sorted((descriptors() - self.descriptors).elements()),
            *sorted(threads() - self.threads),
            *[(pid, state(pid)) for pid in sorted(children() - self.children)],
        ]

    def left_over(self, timeout: float = 10.0) -> list[Any]:
        """Resources that have come and will not go. (A thread that was asked to end takes a moment.)"""
        eventually(lambda: not self.growth(), timeout)
        return self.growth()


def warm_up(*methods: str) -> None:
    """Has multiprocessing start what it starts once: the resource tracker, the fork server."""
    for method in methods or METHODS:
        spawn(os.getpid, method, 1)


# --- Ranks ----------------------------------------------------------------------------------------------


def me() -> int:
    return int(os.environ["PADDLE_TRAINER_ID"])


def endpoint() -> str:
    return os.environ["PADDLE_CURRENT_ENDPOINT"]


def tell(what: object) -> None:
    """One line on stdout, whole also when many ranks write at once."""
    os.write(1, (json.dumps(what) + "\n").encode())


def deaf(*signals: int) -> None:
    for number in signals or (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def sleep_for_ever() -> None:
    while True:
        time.sleep(3600)


def sleeper(deaf_ranks: str = "none") -> None:
    """Writes its pid and sleeps. `deaf_ranks`: the ranks that ignore each request to stop: none, odd, all."""
    if deaf_ranks == "all" or (deaf_ranks == "odd" and me() % 2):
        deaf()
    tell({"rank": me(), "pid": os.getpid()})
    sleep_for_ever()


def fail_beside_the_deaf(ready: Any) -> None:
    """Rank 0 fails once the others are deaf."""
    if me() == 0:
        for _ in range(int(os.environ["PADDLE_TRAINERS_NUM"]) - 1):
            ready.get()
        raise RuntimeError("rank 0 has had enough")
    deaf()
    ready.put(me())
    sleep_for_ever()


def exit_by_rank(*codes: int) -> None:
    """Exits with a code, or ends itself with a signal where the code is negative."""
    code = codes[me()]
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


# --- Parents in processes of their own --------------------------------------------------------------------


class Parent:
    """A program that spawns: a function of this module, run in a process of its own. Whatever it
    starts carries a mark in its environment, so no process is lost sight of."""

    def __init__(
        self,
        main: Callable[..., None],
        *args: Any,
        terminal: int | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        mark = uuid.uuid4().hex
        self._mark = f"{MARK}={mark}"
        path = os.pathsep.join([PYTHONPATH, *filter(None, [os.environ.get("PYTHONPATH")])])
        code = f"import {main.__module__} as m; m.{main.__name__}(*{args!r})"
        if terminal is not None:
            # The session is new: this makes the terminal its own, and Ctrl-C reach its processes.
            code = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {code}"
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", code],
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if terminal is None else terminal,
            env={**os.environ, MARK: mark, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._unread = b""

    def __enter__(self) -> Parent:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what the test has left, so that no test disturbs the next."""
        for pid in self.marked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def heard(self, timeout: float = PATIENCE) -> Any:
        """The next message of the parent or a rank."""
        assert self.process.stdout is not None
        out, deadline = self.process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._unread:
            assert select.select([out], [], [], deadline - time.monotonic())[0], "no message in time"
            more = os.read(out, 1 << 16)
            assert more, "the parent ended early:\n" + self.complaints()
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def complaints(self) -> str:
        """Its stderr, which has to be closed at the other end by now."""
        return self.process.stderr.read().decode() if self.process.stderr else ""

    def ranks(self, count: int) -> dict[int, int]:
        """The pid of each rank, once all have written it."""
        messages = [self.heard() for _ in range(count)]
        return {item["rank"]: item["pid"] for item in messages}

    def marked(self) -> list[int]:
        """Every living process that this parent brought about, itself included."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                        found.append(int(folder.name))
        return [pid for pid in found if alive(pid)]

    def ends(self) -> int:
        """Its exit status; it must not take for ever."""
        return self.process.wait(PATIENCE)

    def leaves_no_process(self) -> bool:
        return eventually(lambda: not self.marked(), 5)


def guardians(parent: Parent) -> list[int]:
    return [pid for pid in parent.marked() if b"module.guard" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_inside_join(pid: int, threads: int = 1) -> None:
    """A signal that comes earlier would hit the program outside of join."""

    def inside() -> bool:
        # The function of the kernel that each thread waits in.
        return (
            sum("poll" in path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/wchan")) == threads
        )

    assert eventually(inside)


@contextlib.contextmanager
def in_thread(body: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the thread hangs"


def plain_bind(port: int) -> None:
    """Binds without any option, as another program does."""
    with contextlib.closing(socket.socket()) as stranger:
        stranger.bind(("127.0.0.1", port))
