"""Jobs that tests look into with the command ``rlaunch``."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launching import LIMIT, Ended, Place, environment, until
from torch_launching import TorchPlace

# Two ranks wait for a third one that does something else, with a thread and a child of its own.
WAITING = """
import subprocess, threading
tell("ready", os.getpid())
def barrier():
    await_file("go")
def load():
    threading.Thread(target=barrier, name="loader", daemon=True).start()
    subprocess.Popen([sys.executable, "-c", "def child(): input()\\nchild()"], stdin=subprocess.PIPE).wait()
print("rank", rank, "waits", flush=True)
load() if rank == 1 else barrier()
"""


class Jobs(Place):
    """A folder with jobs and a history of its own: no other test's are found."""

    def __init__(self, folder: Path, runtime: Path | None = None) -> None:
        super().__init__(folder)
        self.runtime = runtime or folder / "run"
        self.state = self.runtime.parent / "state"
        self.env = environment(RLAUNCH_RUNTIME_DIR=str(self.runtime), XDG_STATE_HOME=str(self.state))

    @property
    def history(self) -> Path:
        """The folder with a file for each job that has ended."""
        return self.state / "rlaunch/jobs"

    @staticmethod
    def command(*args: str) -> list[str]:
        """``rlaunch ARGS``."""
        return [sys.executable, "-m", "rlaunch.control", *args]

    def ask(self, *args: str, **options: Any) -> Ended:
        """Runs ``rlaunch ARGS``."""
        done = subprocess.run(
            self.command(*args), capture_output=True, env=self.env, cwd=self.folder, timeout=LIMIT, **options
        )
        return Ended(done.returncode, done.stdout, done.stderr.decode())

    def json(self, *args: str) -> Any:
        ended = self.ask(*args, "--json")
        assert ended.status == 0, ended.stderr
        return json.loads(ended.stdout)

    @contextlib.contextmanager
    def job(self, *args: str, script: str = WAITING, ranks: int = 3) -> Iterator[subprocess.Popen[bytes]]:
        """Runs a job until the end of the block, from the moment on at which its ranks are ready."""
        self.script(script)
        # SIGTSTP stops nothing in an orphaned process group, which the tests' own may be (setpgid(2)).
        group: dict[str, Any] = {"preexec_fn": os.setpgrp}
        with self.start(f"--nproc_per_node={ranks}", *args, "train.py", env=self.env, **group) as launcher:
            for rank in range(ranks):
                until((self.folder / f"ready.{rank}").exists, f"rank {rank}")
            yield launcher

    def sockets(self) -> list[Path]:
        return sorted(self.runtime.glob("*.sock"))

    def connect(self) -> socket.socket:
        """A client of the only job."""
        (path,) = self.sockets()
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(LIMIT)
        # Such a path may be longer than a socket's address.
        with contextlib.chdir(path.parent) if sys.version_info >= (3, 11) else contextlib.nullcontext():
            client.connect(path.name if sys.version_info >= (3, 11) else str(path))
        return client


class TorchJobs(Jobs, TorchPlace):
    """Jobs of ``rlaunch-run``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.env["TMPDIR"] = str(folder / "tmp")


def request(client: socket.socket, text: bytes) -> dict[str, Any]:
    """Sends a line and returns the answer."""
    client.sendall(text)
    with client.makefile("rb") as lines:
        answer: dict[str, Any] = json.loads(lines.readline())
    return answer


def await_stacks(jobs: Jobs, word: str) -> str:
    """The stacks, once the ranks are where they wait."""

    def stacks() -> str:
        text = jobs.ask("stacks").stdout.decode()
        return text if word in text else ""

    return str(until(stacks, word))
