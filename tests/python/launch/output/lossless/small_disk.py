"""Launchers that have a small file system, which a rank fills and empties."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from launching import Place, environment
from torch_launching import TorchPlace

# Helpers of a rank: `fill` leaves no room on the disk of a folder until `free`.
BALLAST = """
def fill(folder):
    with open(folder + "/ballast", "ab", buffering=0) as ballast:
        for size in (1 << 16, 4096):
            try:
                while True:
                    ballast.write(bytes(size))
            except OSError:
                pass

def free(folder):
    os.unlink(folder + "/ballast")

def writes_of_supervisor():
    with open(f"/proc/{os.getppid()}/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("syscw:"))

def await_writes(count):
    before = writes_of_supervisor()
    until(lambda: writes_of_supervisor() >= before + count, "the launcher's writes")
"""


class SmallDisk(Place):
    """A folder to launch in, with a file system of `size` in `disk`. At the end it is copied to `after`."""

    def __init__(self, place: Place, size: str = "256k", redirect: str = "") -> None:
        super().__init__(place.folder)
        self.size, self.redirect = size, redirect
        self.is_torch = isinstance(place, TorchPlace)
        self.variables = place.environment if isinstance(place, TorchPlace) else environment
        (self.folder / "disk").mkdir()

    def popen(
        self, *args: str | bytes, env: Mapping[Any, Any] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        inside = (
            f'mount -t tmpfs -o size={self.size},mode=700 none disk; "$@" {self.redirect}; '
            "status=$?; cp -r disk after; exit $status"
        )
        module = "rlaunch.run" if self.is_torch else "rlaunch"
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh"]
        command += [sys.executable, "-m", module]
        options = {"cwd": self.folder, "stdin": subprocess.DEVNULL, **options}
        self.launcher = subprocess.Popen([*command, *args], env=env or self.variables(), **options)
        return self.launcher
