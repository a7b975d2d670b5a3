"""A sandbox denies a system call: the job runs without it, or the error and ``rlaunch doctor`` name it."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import seccomp
from effort import each
from launching import Ended, Place, environment

# System calls by which launchers, `spawn` and their ranks start, as strace shows them. Left out are those
# without which no Python starts, those that Python's own functions make (the traceback shows them), and those
# for which the man pages have no error (getpid, getppid, sched_yield).
NEEDED = [
    *("accept4", "bind", "clone", "connect", "dup2", "epoll_create1"),
    *("epoll_ctl", "epoll_wait", "eventfd2", "ftruncate", "getsockname", "listen"),
    *("mkdir", "pidfd_open", "pipe2", "poll", "prctl", "rename"),
    *("setpgid", "setsid", "setsockopt", "socket", "unlink", "waitid"),
]
# `rlaunch doctor` says what is missing without them.
MISSED = [
    *("close_range", "inotify_init1", "memfd_create", "pidfd_send_signal", "process_vm_readv", "ptrace"),
    *("sched_getaffinity", "timerfd_create"),
]
# Jobs run without them, and miss nothing that a user would look for.
SPARED = [
    *("chmod", "faccessat2", "flock", "inotify_add_watch", "kill", "madvise", "socketpair"),
    *("statfs", "unlinkat", "unshare"),
]

RANK = "from pathlib import Path; import os; Path('ran.' + os.environ['RANK']).touch()"
SPAWNED = """
from pathlib import Path
import rlaunch
def touch():
    Path(f"ran.{rlaunch.env.get_rank()}").touch()
    return "returned"
if __name__ == "__main__":
    assert rlaunch.spawn(touch, nprocs=2).results() == ["returned"] * 2
"""
FRONT_ENDS = {
    "rlaunch-run": ["-m", "rlaunch.run", "--nproc-per-node", "2", "rank.py"],
    "paddle": ["-m", "rlaunch", "--nproc_per_node", "2", "--frameworks", "torch", "rank.py"],
    "spawn": ["spawned.py"],
}


class Sandbox(Place):
    """A folder for programs that are denied system calls. `error`: None kills the process."""

    def __init__(self, folder: Path, calls: list[str], error: int | None) -> None:
        super().__init__(folder)
        numbers = seccomp.numbers()
        # An architecture may lack an old call.
        self.refused = {numbers[call]: error for call in calls if call in numbers}
        (folder / "rank.py").write_text(RANK)
        (folder / "spawned.py").write_text(SPAWNED)

    def popen(self, *args: Any, env: Any = None, **options: Any) -> subprocess.Popen[bytes]:
        refuse = partial(seccomp.refuse, self.refused)
        options = {"cwd": self.folder, "stdin": subprocess.DEVNULL, "preexec_fn": refuse, **options}
        env = environment() if env is None else env
        self.launcher = subprocess.Popen([sys.executable, *args], env=env, **options)
        return self.launcher

    def ranks_that_ran(self) -> int:
        """How many there were since the last call."""
        paths = [*self.folder.glob("ran.*")]
        for path in paths:
            path.unlink()
        return len(paths)

    def doctor(self) -> dict[str, Any]:
        """What the command finds of system calls."""
        ended = self.run("-m", "rlaunch.control", "doctor", "--json")
        found = [one for one in json.loads(ended.stdout)["findings"] if one["check"] == "system calls"]
        assert len(found) == 1, ended
        finding: dict[str, Any] = found[0]
        return finding


def name_of(call: str) -> str:
    return f"{call}(2)"


def is_named(ended: Ended, call: str) -> bool:
    # Tracebacks have the name of Python's function.
    return call.removeprefix("f") in ended.stderr + ended.stdout.decode(errors="replace")


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS], ids=["EPERM", "ENOSYS"])
@each("call", [*NEEDED, *MISSED, *SPARED], few=6)
def test_a_job_runs_without_a_call_or_names_it(tmp_path: Path, call: str, error: int) -> None:
    sandbox = Sandbox(tmp_path, [call], error)
    wrong = {}
    for name, command in FRONT_ENDS.items():
        ended = sandbox.run(*command)
        ran = sandbox.ranks_that_ran()
        may_fail = call in NEEDED and is_named(ended, call)
        if not may_fail and (ended.status, ran) != (0, 2):
            wrong[name] = (ended, ran)
    assert not wrong
    finding = sandbox.doctor()
    level = "error" if call in NEEDED else "warning" if call in MISSED else "ok"
    assert finding["level"] == level, finding
    assert (name_of(call) in finding["text"]) == (level != "ok"), finding


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.EACCES])
def test_threads_start_without_clone3_only_where_it_is_not_implemented(tmp_path: Path, error: int) -> None:
    # The C library calls clone after ENOSYS alone.
    sandbox = Sandbox(tmp_path, ["clone3"], error)
    for command in FRONT_ENDS.values():
        ended = sandbox.run(*command)
        ran = (ended.status, sandbox.ranks_that_ran()) == (0, 2)
        assert ran or (error != errno.ENOSYS and is_named(ended, "clone3")), ended
    assert sandbox.doctor()["level"] == ("ok" if error == errno.ENOSYS else "error")


def test_a_job_does_without_all_calls_that_it_does_not_need(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, [*MISSED, *SPARED], errno.EPERM)
    for name, command in FRONT_ENDS.items():
        ended = sandbox.run(*command)
        assert (ended.status, sandbox.ranks_that_ran()) == (0, 2), (name, ended)


def test_exceptions_and_forked_ranks_are_known_without_memfd_create(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, ["memfd_create"], errno.EPERM)
    # Nothing that the rank prints names its exception.
    (tmp_path / "fails.py").write_text("import sys; sys.excepthook = print; raise ValueError('of the rank')")
    ended = sandbox.run("-m", "rlaunch", "--nproc_per_node", "2", "fails.py")
    assert ended.status == 1, ended
    assert sandbox.result()["job_culprit"]["exception"] == "ValueError"
    # A process that a forked rank leaves is found by a mark in its memory.
    (tmp_path / "forks.py").write_text(
        "import os, signal, subprocess, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    open('left', 'w').write(str(os.getpid()))\n"
        "    signal.pause()\n"
        "while not os.path.exists('left') or not open('left').read(): pass\n"
    )
    ended = sandbox.run("-m", "rlaunch", "--nproc_per_node", "1", "--preload", "json", "forks.py")
    assert ended.status == 0, ended
    assert not Path(f"/proc/{sandbox.text('left')}").exists(), ended
    ended = sandbox.run("-c", "import rlaunch; rlaunch.spawn(print, nprocs=2, start_method='fork')")
    assert ended.status == 0, ended


def test_doctor_outlives_a_filter_that_kills(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, ["pidfd_open", "memfd_create"], None)
    finding = sandbox.doctor()
    assert finding["level"] == "error"
    assert all(f"{name_of(call)} (SIGSYS)" in finding["text"] for call in ("pidfd_open", "memfd_create")), (
        finding
    )
    assert sandbox.names() == {"rank.py", "spawned.py"}, "no core file"
