"""Nodes of an elastic job in the legacy launcher's words: folders to launch in."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
from etcd import Etcd
from launching import TALKING, Ended, Place, environment, until

# Each round of a rank: it writes its variables, and then does what its folder says.
SCRIPT = f"""
import json, os, sys, time
rank = 0
{TALKING}
number = len([name for name in os.listdir() if name.startswith("round-")])
tell(f"round-{{number}}", json.dumps(dict(os.environ)))
while True:
    for name in ("exit", f"exit-{{number}}"):
        if os.path.exists(name):
            sys.exit(int(open(name).read()))
    time.sleep(0.01)
"""


class Node(Place):
    """A node, whose ranks follow files in its folder."""

    def __init__(self, folder: Path, etcd: Etcd, job: str, host: str) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder)
        self.etcd, self.job, self.host = etcd, job, host
        (folder / "train.py").write_text(SCRIPT)

    def begin(self, *args: str, **changes: str) -> subprocess.Popen[bytes]:
        env = environment(PADDLE_ELASTIC_SERVER=self.etcd.address, **changes)
        args = ("--job_id", self.job, "--host", self.host, *args, "train.py")
        with (self.folder / "stdout").open("ab") as out, (self.folder / "stderr").open("ab") as err:
            return self.popen(*args, env=env, stdout=out, stderr=err)

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def rounds(self) -> list[dict[str, str]]:
        """The variables of its rank in a round."""
        paths = sorted(self.folder.glob("round-*.0"))
        return [json.loads(path.read_text()) for path in paths]

    def round(self, number: int) -> dict[str, str]:
        path = self.folder / f"round-{number}.0"
        assert self.launcher is not None

        def is_written() -> bool:
            assert path.exists() or self.launcher is None or self.launcher.poll() is None, self.stderr()
            return path.exists()

        until(is_written, f"{path}: {self.stderr()}")
        variables: dict[str, str] = json.loads(path.read_text())
        return variables

    def leave(self, status: int, number: int | None = None) -> None:
        """Has its ranks end so, those of one round alone if there is a number."""
        name = "exit" if number is None else f"exit-{number}"
        (self.folder / f"{name}.new").write_text(str(status))
        (self.folder / f"{name}.new").rename(self.folder / name)

    def ended(self) -> Ended:
        assert self.launcher is not None
        self.launcher.wait(timeout=60)
        return Ended(self.launcher.returncode, b"", self.stderr())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.launcher is not None
        if number == signal.SIGKILL:
            # Its second process would do in order what the first one's end asks for.
            for process in psutil.Process(self.launcher.pid).children():
                process.kill()
        self.launcher.send_signal(number)


class Nodes:
    """Nodes of one job each, on loopback addresses."""

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        self.folder, self.etcd = folder, etcd
        self.all: list[Node] = []

    def node(self, number: int, job: str = "job") -> Node:
        node = Node(self.folder / f"{job}-{number}", self.etcd, job, f"127.0.0.{number}")
        self.all.append(node)
        return node

    def begin(self, numbers: range, *args: str, job: str = "job", **changes: str) -> list[Node]:
        nodes = [self.node(number, job) for number in numbers]
        for node in nodes:
            node.begin(*args, **changes)
        return nodes

    def clean(self) -> None:
        for node in self.all:
            if node.launcher is not None and node.launcher.poll() is None:
                node.launcher.kill()
                node.launcher.wait()


def numbers(variables: dict[str, Any]) -> tuple[str, str]:
    """Its number, and the nodes."""
    return variables["PADDLE_TRAINER_ID"], variables["PADDLE_TRAINERS"]
