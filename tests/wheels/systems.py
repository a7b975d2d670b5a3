"""Bare Debian systems, in which the wheels are installed and run: no compiler, no package of the host.

Needs root and Debian's package mmdebstrap. Another processor's system needs arch-test and qemu-user-static
too, registered in binfmt_misc: that of Debian 13, because the qemu of Debian 12 cannot clone(CLONE_PIDFD).
Neither Debian nor PyPI has Alpine, so the system of musl is Debian's musl with Alpine's Python.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import musl

FOLDER = Path(__file__).parent
MIRROR = "http://deb.debian.org/debian"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class System:
    """A release of Debian on a processor."""

    release: str
    suite: str
    machine: str
    libc: str = "glibc"

    @property
    def name(self) -> str:
        return f"Debian {self.release}" if self.libc == "glibc" else f"musl of Debian {self.release}"

    @property
    def is_emulated(self) -> bool:
        return self.machine != platform.machine()


# The oldest release that has Python 3.10 or later, and the newest. Emulated, one takes ten minutes.
SYSTEMS = [
    System("12", "bookworm", "x86_64"),
    System("13", "trixie", "x86_64"),
    System("13", "trixie", "aarch64"),
    System("13", "trixie", "x86_64", libc="musl"),
]


def missing_for(system: System) -> str | None:
    """What this machine lacks to run the system."""
    if shutil.which("mmdebstrap") is None:
        return "Debian's package mmdebstrap"
    if system.is_emulated and not Path(f"/proc/sys/fs/binfmt_misc/qemu-{system.machine}").exists():
        return f"qemu-{system.machine} in binfmt_misc (Debian's package qemu-user-static)"
    return None


def smoke(system: System, wheel: Path, folder: Path) -> tuple[bool, str]:
    """Installs the wheel and runs smoke.py there. Returns whether all checks passed, and what it printed."""
    root = folder / f"{system.suite}-{system.machine}-{system.libc}"
    if not (root / "ready").exists():
        make(system, root)
    for file in (wheel, FOLDER / "smoke.py"):
        shutil.copy(file, root / "root" / file.name)
    python = "/root/venv/bin/python"
    if not (root / "root/venv/bin/pip").exists():
        install(root, "python3", "-m", "venv", "/root/venv")
    pip = [python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-index"]
    install(root, *pip, f"/root/{wheel.name}")
    emulated = ["--emulated"] if system.is_emulated else []
    ran = run(root, python, "/root/smoke.py", *emulated)
    return ran.returncode == 0, ran.stdout


def make(system: System, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    # Emulated, the packages' scripts take half an hour, and Python needs none of them.
    merged = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    is_extracted = system.is_emulated or system.libc == "musl"
    variant = ["--variant=extract", merged] if is_extracted else ["--variant=minbase"]
    command = ["mmdebstrap", *variant, f"--arch={MACHINES[system.machine]}"]
    packages = "python3,python3-venv" if system.libc == "glibc" else musl.DEBIAN_PACKAGES
    log = root.with_suffix(".log")
    with log.open("w") as output:
        options = [f"--include={packages}", system.suite, root, MIRROR]
        subprocess.run([*command, *options], check=True, stdout=output, stderr=output)
    for folder in ("root", "proc", "dev/shm", "usr/local"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    if system.libc == "musl":
        musl.add_python(root, root.with_suffix(".downloads"))
    elif is_extracted:
        # A script of ca-certificates would write it; pip does not start without.
        certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
        bundle = root / "etc/ssl/certs/ca-certificates.crt"
        bundle.write_bytes(b"".join(path.read_bytes() for path in certificates))
    (root / "ready").touch()


def install(root: Path, *command: str) -> None:
    ran = run(root, *command)
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {ran.returncode}\n{ran.stdout}")


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the system, in a PID namespace that ends with it."""
    inside = 'mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" && exec chroot "$0" "$@"'
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    env = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    if (root / musl.PRELOADED).exists():
        command = ("busybox", "env", f"LD_PRELOAD=/{musl.PRELOADED}", *command)
    return subprocess.run(
        [*namespaces, "sh", "-c", inside, root, *command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
