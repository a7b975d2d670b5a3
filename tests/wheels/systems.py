"""Bare Debian systems, in which the wheels are installed and run: no compiler, no package of the host.

Needs root and Debian's package debootstrap. Another processor's system needs qemu-user-static too, registered
in binfmt_misc.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class System:
    """A release of Debian on a processor."""

    release: str
    suite: str
    machine: str

    @property
    def name(self) -> str:
        return f"Debian {self.release}"

    @property
    def is_emulated(self) -> bool:
        return self.machine != platform.machine()


# The oldest release that has Python 3.10 or later, and the newest.
SYSTEMS = [
    System(release, suite, machine)
    for machine in MACHINES
    for release, suite in (("12", "bookworm"), ("13", "trixie"))
]


def missing_for(system: System) -> str | None:
    """What this machine lacks to run the system."""
    if shutil.which("debootstrap") is None:
        return "Debian's package debootstrap"
    if system.is_emulated and not Path(f"/proc/sys/fs/binfmt_misc/qemu-{system.machine}").exists():
        return f"qemu-{system.machine} in binfmt_misc (Debian's package qemu-user-static)"
    return None


def smoke(system: System, wheel: Path, folder: Path) -> tuple[bool, str]:
    """Installs the wheel and runs smoke.py there. Returns whether all checks passed, and what it printed."""
    root = folder / f"{system.suite}-{system.machine}"
    if not (root / "ready").exists():
        make(system, root)
    for file in (wheel, FOLDER / "smoke.py"):
        shutil.copy(file, root / "root" / file.name)
    python = "/root/venv/bin/python"
    install(root, "python3", "-m", "venv", "--clear", "/root/venv")
    install(root, python, "-m", "pip", "install", "--quiet", "--no-index", f"/root/{wheel.name}")
    emulated = ["--emulated"] if system.is_emulated else []
    ran = run(root, python, "/root/smoke.py", *emulated)
    return ran.returncode == 0, ran.stdout


def make(system: System, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    include = "--include=python3,python3-venv"
    command = ["debootstrap", "--variant=minbase", f"--arch={MACHINES[system.machine]}", include]
    log = root.with_suffix(".log")
    with log.open("w") as output:
        subprocess.run([*command, system.suite, root], check=True, stdout=output, stderr=output)
    (root / "ready").touch()


def install(root: Path, *command: str) -> None:
    ran = run(root, *command)
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {ran.returncode}\n{ran.stdout}")


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the system, in a PID namespace that ends with it."""
    inside = 'mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" && exec chroot "$0" "$@"'
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    return subprocess.run(
        [*namespaces, "sh", "-c", inside, root, *command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
