"""What ``python -m rlaunch.run`` makes of its machine: quotas, names, stdin, terminal, interpreter."""

from __future__ import annotations

import fcntl
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from launching import Ended
from torch_launching import TorchPlace

USAGE = 66


@pytest.fixture
def place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


def run_on(place: TorchPlace, mounts: str, *args: str, **env: str) -> Ended:
    """Runs a job on a machine with these mounts."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', "sh"]
    launcher = subprocess.Popen(
        [*command, sys.executable, "-m", "rlaunch.run", *args],
        cwd=place.folder,
        env=place.environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with place.cleaned(launcher):
        return place.wait(launcher)


@pytest.mark.parametrize("nproc", ["auto", "cpu"])
def test_ranks_are_counted_by_the_cpu_quota(place: TorchPlace, nproc: str) -> None:
    place.script("tell('ran')")
    # A quota of one CPU, in version 2 and in version 1.
    (place.folder / "cgroup/cpu").mkdir(parents=True)
    (place.folder / "cgroup/cpu.max").write_text("100000 100000\n")
    (place.folder / "cgroup/cpu/cpu.cfs_period_us").write_text("100000\n")
    (place.folder / "cgroup/cpu/cpu.cfs_quota_us").write_text("100000\n")
    mounts = "mount --bind cgroup /sys/fs/cgroup"
    ended = run_on(place, mounts, f"--nproc-per-node={nproc}", "train.py", CUDA_VISIBLE_DEVICES="")
    assert ended.status == 0, ended
    assert [path.name for path in place.folder.glob("ran.*")] == ["ran.0"], ended


def test_master_addr_resolves_where_localhost_does_not(place: TorchPlace) -> None:
    place.script("import socket; tell('found', socket.getaddrinfo(os.environ['MASTER_ADDR'], 0)[0][4][0])")
    (place.folder / "hosts").write_text("127.0.1.1 other\n")
    ended = run_on(place, "mount --bind hosts /etc/hosts", "--nproc-per-node=2", "train.py")
    assert ended.status == 0, ended
    assert place.text("found.0") in ("127.0.0.1", "::1")


@pytest.mark.parametrize("exec_", ["/no/such", "nice python"])
def test_an_interpreter_that_cannot_run_is_named_by_its_variable(place: TorchPlace, exec_: str) -> None:
    place.script("")
    ended = place.run("--nproc-per-node=2", "train.py", env=place.environment(PYTHON_EXEC=exec_))
    assert ended.status == USAGE
    (error,) = ended.error_lines()
    assert error.startswith(f"rlaunch: error: PYTHON_EXEC {exec_}: "), error


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_program_on_stdin_has_one_reader(place: TorchPlace, ranks: int) -> None:
    program = b"open('ran', 'a').write('.')"
    ended = place.run(f"--nproc-per-node={ranks}", "-", input=program)
    assert (ended.status, (place.folder / "ran").exists()) == ((0, True) if ranks == 1 else (USAGE, False)), (
        ended
    )


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_the_terminal_has_its_modes_after_the_job(place: TorchPlace, end: str) -> None:
    place.script(f"import tty; tty.setraw(0); {end}")
    ours, theirs = pty.openpty()
    with open(ours, "rb+", buffering=0), open(theirs, "rb+", buffering=0) as terminal:
        before = termios.tcgetattr(terminal)
        with place.start(
            *("--nproc-per-node=1", "--capture=none", "train.py"),
            stdin=terminal,
            stdout=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        ) as launcher:
            place.wait(launcher)
        assert termios.tcgetattr(terminal) == before
