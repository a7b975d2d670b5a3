"""Running ``python -m rlaunch`` the way users do: real processes, real signals, a deadline on every wait."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import jsonschema_rs
import preloaded
import psutil
from paths import ROOT
from processes import await_exit

LIMIT = 80.0

# Would steer a launcher, or tell its ranks apart: no test inherits it from the shell that runs the tests.
STEERING = re.compile(
    r"(R?LAUNCH|PADDLE|FLAGS|POD|(CUDA|XPU|XPULINK|NVIDIA)_VISIBLE|TRAIN(ER|ING)_|DISTRIBUTED_|CUSTOM_DEVICE)"
    r"|^(PORT_RANGE|WITH_COVERAGE|OMP_NUM_THREADS|https?_proxy|COLUMNS)",
)

# A rank that says all it knows about itself, in seen.{rank}.json.
TELL = """
import json, os, stat, sys
from pathlib import Path

rank = os.environ["PADDLE_TRAINER_ID"]
about = {
    "env": dict(os.environ), "argv": sys.argv, "command": sys.orig_argv, "cwd": os.getcwd(),
    "pid": os.getpid(), "ppid": os.getppid(), "group": os.getpgrp(), "session": os.getsid(0),
    "stdin": [os.fstat(0).st_dev, os.fstat(0).st_ino], "umask": os.umask(0o22),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if Path("/proc/self/fd", fd).exists()),
    "package": __name__ == "__main__" and __package__,
}
Path(f"seen.{rank}.json").write_text(json.dumps(about))
"""

# Helpers of processes that talk with a test, each by its `rank`. No more imports than needed: they cost time.
TALKING = """
def tell(name, text=""):
    with open(f"{name}.{rank}.tmp", "w") as file:
        file.write(str(text))
    os.rename(f"{name}.{rank}.tmp", f"{name}.{rank}")

def until(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what} never came")
        time.sleep(0.005)

def await_file(name):
    until(lambda: os.path.exists(name), name)

def sleep():
    while True:
        time.sleep(600)
"""

RANK = f"""
import os, signal, sys, time
rank = int(os.environ["PADDLE_TRAINER_ID"])
{TALKING}"""

# A rank with shared memory, which is left to its resource tracker. Where much else runs that takes longer to
# start than a launcher waits; it runs once it is deaf to Ctrl-C.
LEFT_TO_A_TRACKER = """
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
tell("ready", SharedMemory(create=True, size=4096).name)
def deaf():
    with open(f"/proc/{resource_tracker._resource_tracker._pid}/status") as file:
        ignored = next(line for line in file if line.startswith("SigIgn:"))
    return int(ignored.split()[1], 16) >> signal.SIGINT - 1 & 1
until(deaf, "a tracker that ignores SIGINT")
"""

# Starts a program that leads a session and has lost its parent, as `setsid program &` does.
DAEMON = """
def run_daemon(program, name="daemon"):
    launcher = int(os.environ["RLAUNCH_EXCEPTION_FILE"].split("/")[2])
    if os.fork() == 0:
        if os.fork() == 0:
            until(lambda: os.getppid() == launcher, "the launcher as its parent")
            os.setsid()
            tell(name, os.getpid())
            os.execv(sys.executable, [sys.executable, "-c", program])
        os._exit(0)
    os.wait()
    await_file(f"{name}.{rank}")
    return int(open(f"{name}.{rank}").read())

def is_gone(pid):
    return not os.path.exists(f"/proc/{pid}")
"""

# A rank's look at what its parent, the supervisor, holds: inotify instances, and the files that they watch.
INOTIFY = """
def descriptors():
    return [entry.path for entry in os.scandir(f"/proc/{os.getppid()}/fd")]
def is_inotify(path):
    try:
        return os.readlink(path) == "anon_inode:inotify"
    except OSError:
        return False
def instances():
    return [path for path in descriptors() if is_inotify(path)]
def watches():
    return sum(open(path.replace("/fd/", "/fdinfo/")).read().count("inotify wd:") for path in instances())
"""

# The attempt of a rank, also written to a file.
ATTEMPT = """
attempt = int(os.environ["RLAUNCH_RANK_KEY"].split("/")[1])
tell(f"attempt-{attempt}", os.getpid())
"""


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment without what steers launchers, and with these changes."""
    env = {name: value for name, value in os.environ.items() if not STEERING.match(name)}
    for name, value in changes.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return env


def until(condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """The first true value of `condition`, which is asked ever more seldom."""
    deadline, pause = time.monotonic() + limit, 0.002
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {limit} s"
        time.sleep(pause)
        pause = min(1.3 * pause, 0.025)
    return value


def gone(process: psutil.Process) -> bool:
    """Whether a process has ended; an uncollected zombie counts as ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def await_gone(*processes: psutil.Process, limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    for process in processes:
        while not gone(process):
            assert time.monotonic() < deadline, f"the end of {process}: not within {limit} s"
            await_exit(process.pid, deadline)


def runs(pid: int, word: str) -> bool:
    """Whether a process of this number, which may be another by now, has the word on its command line."""
    try:
        return word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def marked(mark: str) -> list[int]:
    """Processes, but no zombies, with a mark in their environment."""
    found = []
    for pid in psutil.pids():
        try:
            if f"MARK={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def await_none_marked(mark: str, limit: float = LIMIT) -> None:
    """Waits until no process has this mark. Looks through /proc only when one has ended."""
    deadline = time.monotonic() + limit
    while pids := marked(mark):
        assert time.monotonic() < deadline, f"the end of {pids}: not within {limit} s"
        await_exit(pids[0], deadline)


def supervisor_of(launcher: subprocess.Popen[bytes]) -> psutil.Process:
    """The launcher's second process, the parent of its ranks."""
    (supervisor,) = psutil.Process(launcher.pid).children()
    return supervisor


def await_line(pipe: IO[bytes] | None, mark: bytes) -> bytes:
    """The line of a launcher's pipe that has this mark. What comes after it is left for `Place.wait`."""
    assert pipe is not None
    line = b""
    while mark not in line or not line.endswith(b"\n"):
        byte = os.read(pipe.fileno(), 1)
        assert byte, (mark, line)
        line = byte if line.endswith(b"\n") else line + byte
    return line


def ask_again(ask: Callable[[], object], has_ended: Callable[[], bool]) -> None:
    """Asks for a stop, after pauses in which a person would wait, until one counts as a second request."""
    deadline, pause = time.monotonic() + LIMIT, 2.0
    while not has_ended():
        assert time.monotonic() < deadline, f"the end after a second request: not within {LIMIT} s"
        ask()
        patience = time.monotonic() + pause
        while not has_ended() and time.monotonic() < patience:
            time.sleep(0.01)
        pause = 10.0


def insist(launcher: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """Sends a stop signal until it counts as a second request, which ends the launcher."""
    ask_again(lambda: launcher.send_signal(number), lambda: launcher.poll() is not None)


def status_field(pid: int, name: str) -> str:
    """A line of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    raise KeyError(name)


def signals_in(pid: int, name: str) -> set[int]:
    """The signals of a mask in /proc/PID/status."""
    mask = int(status_field(pid, name), 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


@dataclass(frozen=True)
class Ended:
    """The output and status of a launcher. Never a traceback of its own."""

    status: int
    stdout: bytes
    stderr: str

    def __post_init__(self) -> None:
        for mark in ("panicked at", "PanicException", "rlaunch/__main__.py", "\nKeyboardInterrupt"):
            assert mark not in self.stderr, self.stderr

    def error_lines(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("rlaunch: error: ")]


class Place:
    """A folder to launch in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launcher: subprocess.Popen[bytes] | None = None

    def script(self, body: str, name: str = "train.py", framework: str | None = None) -> str:
        """Writes a script of a rank, with RANK above it if it is Python; returns its name.

        `framework`: it runs where this one is imported already.
        """
        head = RANK if name.endswith(".py") else ""
        if framework is not None:
            head = preloaded.head(framework) + head
        (self.folder / name).write_text(head + textwrap.dedent(body))
        return name

    def popen(
        self, *args: str | bytes, env: Mapping[Any, Any] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        options.setdefault("cwd", self.folder)
        options.setdefault("stdin", subprocess.DEVNULL)
        command = [sys.executable, "-m", "rlaunch", *args]
        self.launcher = subprocess.Popen(command, env=environment() if env is None else env, **options)
        return self.launcher

    def run(self, *args: str | bytes, input: bytes | None = None, **options: Any) -> Ended:
        """Launches and waits for the end."""
        for name in ("stdout", "stderr"):
            options.setdefault(name, subprocess.PIPE)
        if input is not None:
            options["stdin"] = subprocess.PIPE
        with self.cleaned(self.popen(*args, **options)) as launcher:
            return self.wait(launcher, input)

    @contextlib.contextmanager
    def start(self, *args: str | bytes, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Launches, and lets the body do the rest."""
        for name in ("stdout", "stderr"):
            options.setdefault(name, subprocess.PIPE)
        with self.cleaned(self.popen(*args, **options)) as launcher:
            yield launcher

    @staticmethod
    @contextlib.contextmanager
    def cleaned(launcher: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        try:
            yield launcher
        finally:
            if launcher.poll() is None:
                launcher.kill()
                launcher.wait()
            for pipe in (launcher.stdin, launcher.stdout, launcher.stderr):
                if pipe is not None:
                    pipe.close()

    @staticmethod
    def wait(launcher: subprocess.Popen[bytes], input: bytes | None = None) -> Ended:
        """The end of a launcher, with what it wrote."""
        out, err = launcher.communicate(input, timeout=LIMIT)
        return Ended(launcher.returncode, out or b"", (err or b"").decode(errors="replace"))

    def ready(self, ranks: int, name: str = "ready") -> list[psutil.Process]:
        """The ranks, once each has written its pid to a file."""
        launcher = self.launcher
        assert launcher is not None
        for rank in range(ranks):
            path = self.folder / f"{name}.{rank}"
            until(lambda path=path: path.exists() or launcher.poll() is not None, str(path))
            assert path.exists(), f"the launcher ended first, with {launcher.returncode}"
        return [psutil.Process(int(self.text(f"{name}.{rank}"))) for rank in range(ranks)]

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def log(self, rank: int = 0, folder: str = "log") -> bytes:
        return (self.folder / folder / f"workerlog.{rank}").read_bytes()

    def result(self) -> dict[str, Any]:
        """The launcher's result.json."""
        result: dict[str, Any] = json.loads(self.text("log/rlaunch/result.json"))
        return result

    def events(self) -> list[dict[str, Any]]:
        """The launcher's events.jsonl."""
        return [json.loads(line) for line in self.text("log/rlaunch/events.jsonl").splitlines()]

    def names(self, folder: str = ".") -> set[str]:
        return {path.name for path in (self.folder / folder).iterdir()}

    def modes(self, folder: str = "log") -> dict[str, int]:
        return {path.name: path.stat().st_mode & 0o7777 for path in (self.folder / folder).iterdir()}

    def seen(self) -> list[dict[str, Any]]:
        """The values that the ranks of a TELL script have written, by rank."""
        written = []
        while (path := self.folder / f"seen.{len(written)}.json").exists():
            written.append(json.loads(path.read_text()))
        return written

    def tell(self, *args: str | bytes, **options: Any) -> list[dict[str, Any]]:
        """Launches TELL, which has to exit successfully, and returns the values that the ranks wrote."""
        (self.folder / "tell.py").write_text(TELL)
        ended = self.run(*args, "tell.py", **options)
        assert ended.status == 0, ended.stderr
        return self.seen()


class Host(Place):
    """A folder with a Python program, host.py, that calls rlaunch.launch."""

    def popen(self, *args: Any, env: Any = None, **options: Any) -> subprocess.Popen[bytes]:
        options = {"cwd": self.folder, "stdin": subprocess.DEVNULL, **options}
        command = [sys.executable, "host.py", *args]
        self.launcher = subprocess.Popen(command, env=environment() if env is None else env, **options)
        return self.launcher

    def host(self, body: str) -> None:
        head = "import os, signal, sys, threading, time, rlaunch\n"
        (self.folder / "host.py").write_text(head + textwrap.dedent(body))


def prctl(option: int, argument: int) -> None:
    """prctl(2), for use between fork and exec."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def unshare_users() -> None:
    """unshare(CLONE_NEWUSER), for use between fork and exec."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def become_user(number: int) -> None:
    """This user by another number (user_namespaces(7)), for use between fork and exec."""
    user, group = os.geteuid(), os.getegid()
    unshare_users()
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{number} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{number} {group} 1")


def few_processes(limit: int) -> None:
    """Room for so many processes and threads. Root has no limit, so it is another user's."""
    if os.geteuid() == 0:
        for capability in (21, 24):  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
            prctl(24, capability)  # PR_CAPBSET_DROP
        os.setresuid(random.randrange(2_000_000_000, 2_100_000_000), 0, 0)
    else:
        unshare_users()
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def own_ports(first: int, count: int) -> range:
    """Of `count` ports from `first` on, those of this worker of pytest-xdist; there are ten at most."""
    part = count // 10
    begin = first + part * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 10)
    return range(begin, begin + part)


_ports_drawn = random.SystemRandom().randrange(1000)


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports; the kernel hands out higher ones itself.

    One after the other, so that a test that asks twice gets no port twice.
    """
    global _ports_drawn
    own = own_ports(20000, 10000)
    while True:
        at = _ports_drawn % (len(own) - count)
        _ports_drawn = at + count
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in own[at : at + count]:
                held.enter_context(socket.create_server(("", port), family=socket.AF_INET))
            return own[at]


Invalid = jsonschema_rs.ValidationError


@cache
def validator(name: str, kind: str = "") -> jsonschema_rs.Draft202012Validator:
    """That of ``docs/NAME.schema.json``, or of one of its ``$defs``. The schema itself is checked too."""
    schema = json.loads((ROOT / f"docs/{name}.schema.json").read_text())
    if kind:
        schema["oneOf"] = [{"$ref": f"#/$defs/{kind}"}]
    jsonschema_rs.meta.validate(schema)
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=False)


def validate(value: Any, name: str, kind: str = "") -> None:
    """Raises ``Invalid`` if the value is not what the schema describes."""
    validator(name, kind).validate(value)
