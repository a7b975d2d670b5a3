"""One run of a launcher: started, watched, and cleaned up after."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import marked
from launchers import Launcher

# Steers a launcher, or tells ranks apart: not inherited from the shell that runs the matrix.
STEERING = re.compile(
    r"(R?LAUNCH|PADDLE|FLAGS|POD|PET_|TORCH|NCCL|GLOO|OMP_|SLURM|MASTER_|(LOCAL_|GROUP_|ROLE_)?(RANK$|WORLD_SIZE$))"
    r"|^(\w+_VISIBLE_DEVICES|TRAINING_ROLE|DISTRIBUTED_\w+|PYTEST\w*|COLUMNS|NOTIFY_SOCKET)$"
)

# Above the script of every rank. Imports no more than it needs: 500 ranks do it on two cores.
HEAD = '''
import os, signal, sys, time

rank = int(os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"])
size = int(os.environ.get("PADDLE_TRAINERS_NUM") or os.environ["WORLD_SIZE"])

def tell(name, text=""):
    """A file that is whole when it appears."""
    with open(f"{name}.{rank}.tmp", "w") as file:
        file.write(str(text))
    os.rename(f"{name}.{rank}.tmp", f"{name}.{rank}")

def hold():
    """Says that it is there, and waits until the gate is opened."""
    gate = os.open("gate", os.O_RDONLY)
    tell("ready", os.getpid())
    while os.read(gate, 1):
        pass
    os.close(gate)

def sleep():
    while True:
        time.sleep(600)

STAY = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(600)
"""

def leave(kind):
    """Leaves a process behind: a child, one in a session of its own, or a double-forked daemon."""
    pid = os.fork()
    if pid == 0:
        if kind != "child":
            os.setsid()
        if kind == "daemon" and os.fork():
            os._exit(0)
        os.execv(sys.executable, [sys.executable, "-S", "-c", STAY, f"left.{rank}", kind])
    if kind == "daemon":
        os.waitpid(pid, 0)
    while not os.path.exists(f"left.{rank}"):
        time.sleep(0.005)
'''


class Late(Exception):
    """Something did not come in time."""


def until(condition: Callable[[], Any], what: str, limit: float) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise Late(f"{what}: not within {limit:g} s")
        time.sleep(0.005)


def default_signals() -> None:
    """Signals as a shell in the foreground hands them on, whatever started us."""
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def namespaces(*flags: str) -> list[str]:
    """`unshare` with these flags, and a user namespace where we may not do it otherwise."""
    return ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *flags]


def mounted(*arguments: str | Path) -> list[str]:
    """`mount` with these arguments, seen only by the command that follows."""
    words = " ".join(shlex.quote(str(word)) for word in ("mount", *arguments))
    return [*namespaces("--mount"), "sh", "-c", f'{words} && exec "$0" "$@"']


class Job:
    """A launcher with ranks that run `body`. Leaves nothing behind when its block ends.

    `program` is run in place of the launcher and its script, which `body` is written to all the same.
    """

    def __init__(
        self,
        launcher: Launcher,
        folder: Path,
        body: str,
        *args: str,
        ranks: int = 2,
        program: Sequence[str | Path] = (),
        wrap: Sequence[str] = (),
        before_exec: Callable[[], object] = lambda: None,
        **options: Any,
    ) -> None:
        self.launcher, self.folder, self.ranks = launcher, folder, ranks
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tmp").mkdir(exist_ok=True)
        (folder / "log").mkdir(exist_ok=True)
        (folder / "train.py").write_text(HEAD + body)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(folder / "gate")
        # Opened for both, so that no open waits for the other end.
        self.gate: int | None = os.open(folder / "gate", os.O_RDWR)
        self.mark = uuid.uuid4().hex
        env = {name: value for name, value in os.environ.items() if not STEERING.match(name)}
        env |= {marked.VARIABLE: self.mark, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
        self.logs = folder / "log"
        words = program or [*launcher.command(ranks, self.logs), folder / "train.py"]
        command = [*wrap, *map(str, words), *args]

        def prepare() -> None:
            default_signals()
            before_exec()

        with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            where: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            self.began = time.monotonic()
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                start_new_session=True,
                preexec_fn=prepare,
                **where | options,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close_gate()
        marked.end_all(self.mark)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def close_gate(self) -> None:
        """Ends the `hold` of all ranks at once."""
        if self.gate is not None:
            os.close(self.gate)
            self.gate = None

    def await_files(self, name: str, limit: float = 90) -> list[int]:
        """The numbers that all ranks tell in files of this name."""
        paths = [self.folder / f"{name}.{rank}" for rank in range(self.ranks)]
        until(
            lambda: all(path.exists() for path in paths) or self.process.poll() is not None,
            f"{name} of all ranks",
            limit,
        )
        if missing := [path.name for path in paths if not path.exists()]:
            raise Late(f"the launcher ended ({self.status()}) before {', '.join(missing[:3])} came")
        return [int(path.read_text() or 0) for path in paths]

    def wait(self, limit: float) -> bool:
        """Whether the launcher ends in time."""
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def code(self) -> int | None:
        """The value that a shell would have in `$?`."""
        code: int | None = self.process.returncode
        return code if code is None or code >= 0 else 128 - code

    def status(self) -> str:
        code = self.process.returncode
        if code is None:
            return "no end"
        return f"exit {code}" if code >= 0 else f"died of {signal.Signals(-code).name}"

    def survivors(self) -> list[marked.Member]:
        return marked.survivors(self.mark)

    def parent_of_ranks(self) -> int:
        """The process that ranks are children of."""
        return marked.stat_of(self.await_files("ready")[0])[1]

    def errors(self) -> str:
        """The stderr of the launcher and the ranks."""
        return (self.folder / "err").read_text(errors="replace")
