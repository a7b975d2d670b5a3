"""Running ``python -m rlaunch.run`` the way users of torchrun do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import preloaded
from launching import TALKING, Ended, Place, environment

# Would steer this launcher, or tell its ranks apart.
STEERING = re.compile(
    r"(PET|TORCH|TORCHELASTIC|ROLE|GROUP|LOCAL|MASTER|HIP_VISIBLE)_"
    r"|^((LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|LOGLEVEL|PYTHON_EXEC|GITHUB_ACTIONS|NO_COLOR|TMPDIR)$",
)

# A rank that says all it knows about itself, in seen.{rank}.json. Names may be anything.
TELL = """
import json, os, sys
from pathlib import Path

rank = os.environ["RANK"]
about = {
    "env": dict(os.environ), "argv": sys.argv, "command": sys.orig_argv, "cwd": os.getcwd(),
    "pid": os.getpid(), "ppid": os.getppid(), "group": os.getpgrp(), "session": os.getsid(0),
    "stdin": [os.fstat(0).st_dev, os.fstat(0).st_ino],
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if Path("/proc/self/fd", fd).exists()),
    "cpus": sorted(os.sched_getaffinity(0)),
    "main": [__name__, __package__, __file__],
}
text = json.dumps(about)
Path(f"seen.{rank}.tmp").write_text(text)
os.rename(f"seen.{rank}.tmp", f"seen.{rank}.json")
"""

RANK = f"""
import json, os, signal, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
{TALKING}"""

# Leaves behind a process with a session and parents of its own.
ESCAPED = """
def escape(name="escaped"):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            tell(name, os.getpid())
            sleep()
        os._exit(0)
    os.wait()
    await_file(f"{name}.{rank}")
"""


class TorchPlace(Place):
    """A folder to launch in, with a folder for temporary files of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "tmp").mkdir(exist_ok=True)

    def environment(self, **changes: str | None) -> dict[str, str]:
        env = {name: value for name, value in environment().items() if not STEERING.match(name)}
        env["TMPDIR"] = str(self.folder / "tmp")
        for name, value in changes.items():
            env.pop(name, None)
            if value is not None:
                env[name] = value
        return env

    def script(self, body: str, name: str = "train.py", framework: str | None = None) -> str:
        head = RANK if name.endswith(".py") else ""
        if framework is not None:
            head = preloaded.head(framework) + head
        (self.folder / name).write_text(head + textwrap.dedent(body))
        return name

    def popen(
        self, *args: str | bytes, env: Mapping[Any, Any] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        options = {"cwd": self.folder, "stdin": subprocess.DEVNULL, **options}
        command = [sys.executable, "-m", "rlaunch.run", *args]
        self.launcher = subprocess.Popen(command, env=env or self.environment(), **options)
        return self.launcher

    def well(self, *args: str | bytes, **options: Any) -> Ended:
        """Runs a job that has to end well."""
        ended = self.run(*args, **options)
        assert ended.status == 0, ended.stderr
        return ended

    def tell(self, *args: str | bytes, **options: Any) -> list[dict[str, Any]]:
        """Runs TELL, which has to exit successfully, and returns the values that the ranks wrote."""
        (self.folder / "tell.py").write_text(TELL)
        self.well(*args, "tell.py", **options)
        return self.seen()

    def run_folder(self, log_dir: str = "log") -> Path:
        """The folder of the only run that has its logs there."""
        (run,) = (self.folder / log_dir).iterdir()
        return run

    def tree(self, log_dir: str = "log") -> set[str]:
        """The files of the only run that has its logs there, but not the launcher's own."""
        run = self.run_folder(log_dir)
        found = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
        return {name for name in found if not name.startswith("rlaunch/")}

    def result_of_run(self, log_dir: str = "log") -> dict[str, Any]:
        """The launcher's result.json of the only run that has its logs there."""
        result: dict[str, Any] = json.loads((self.run_folder(log_dir) / "rlaunch/result.json").read_text())
        return result
