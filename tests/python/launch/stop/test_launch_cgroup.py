"""The ranks' own cgroup: made where it can be, gone after any end, and never required."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from launching import LEFT_TO_A_TRACKER, LIMIT, Ended, Place, environment, marked, supervisor_of, until

WHERE = """
def where(pid="self"):
    lines = open(f"/proc/{pid}/cgroup").read().splitlines()
    return "".join(line[3:] for line in lines if line.startswith("0::"))
"""

# Every process of this one lives for a moment: it forks the next, which leaves its session, and ends. While
# one of them lives, the FIFO has a writer.
RUN_AHEAD = """
writer = os.open("lives", os.O_WRONLY)
def run_ahead():
    if os.fork() == 0:
        while os.path.exists("lives"):
            if os.fork():
                os._exit(0)
            os.setsid()
        os._exit(0)
"""


def own() -> str:
    """The path of this process's cgroup of version 2, which is the launchers'; empty without one."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return "".join(line[3:] for line in lines if line.startswith("0::"))


def own_folder() -> Path | None:
    """Where that is mounted, if ranks may get one below it; found by trying."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        root, at = fields.split()[3:5]
        if kind.split()[0] == "cgroup2" and Path(own()).is_relative_to(root):
            folder = Path(at, Path(own()).relative_to(root))
            trial = folder / f"trial-{uuid.uuid4().hex}"
            try:
                trial.mkdir()
            except OSError:
                continue
            good = (trial / "cgroup.kill").exists() and os.access(folder / "cgroup.procs", os.W_OK)
            trial.rmdir()
            if good and knows_clone3():
                return folder
    return None


def knows_clone3() -> bool:
    """It may be forbidden, or not there. A size of 0 is refused as such."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(435, None, ctypes.c_size_t(0))
    return ctypes.get_errno() == errno.EINVAL


FOLDER = own_folder()


def groups() -> set[Path]:
    return set(FOLDER.glob("rlaunch-*")) if FOLDER else set()


def group_of(place: Place, name: str = "where.0") -> Path | None:
    """The folder of the cgroup that a rank has written; its own one where there can be one."""
    path = place.text(name)
    if FOLDER is None:
        assert path == own()
        return None
    assert re.fullmatch(r"/rlaunch-\w{16}", path.removeprefix(own().rstrip("/"))), path
    return FOLDER / Path(path).name


def await_removal(group: Path | None) -> None:
    if group is not None:
        until(lambda: not group.exists(), f"the end of {group}")


@pytest.mark.parametrize("code", [0, 3])
def test_ranks_have_a_cgroup_of_their_own_that_goes_with_them(place: Place, code: int) -> None:
    place.script(
        WHERE
        + f"""
tell("where", where())
tell("parent", where(os.getppid()))
await_file(f"parent.{{1 - rank}}")
os._exit({code})
"""
    )
    ended = place.run("--nproc_per_node=2", "train.py")
    assert ended.status == code, ended.stderr
    group = group_of(place)
    assert place.text("where.1") == place.text("where.0")
    assert place.text("parent.0") == own(), "the supervisor stays where it is"
    # No wait: it is gone when the launcher is.
    assert group is None or not group.exists()


def test_a_second_attempt_runs_in_one_too(place: Place) -> None:
    """A cgroup that was killed takes no more processes."""
    place.script(
        WHERE
        + """
import subprocess
attempt = int(os.environ["RLAUNCH_RANK_KEY"].split("/")[1])
tell(f"where-{attempt}", where())
subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
sys.exit(4 if attempt < 2 else 0)
"""
    )
    ended = place.run("--max_restart=2", "--restart_delay=0", "train.py")
    assert ended.status == 0, ended.stderr
    assert "swept 3 leftover processes of the job (sleep)" in ended.stderr
    groups = [group_of(place, f"where-{attempt}.0") for attempt in range(3)]
    assert groups[0] is None or not groups[0].exists()


@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_cgroup_can_be_turned_off(place: Place, how: str) -> None:
    place.script(WHERE + "tell('where', where())")
    if how == "option":
        ended = place.run("--cgroup=false", "train.py")
    else:
        ended = place.run("train.py", env=environment(RLAUNCH_CGROUP="0"))
    assert ended.status == 0, ended.stderr
    assert place.text("where.0") == own()


@pytest.mark.parametrize("victim", ["front", "supervisor"])
def test_the_cgroup_goes_with_any_killed_process_of_the_launcher(
    place: Place, mark: str, victim: str
) -> None:
    """With cgroups that ranks have made below it, and processes that are hidden from everything else."""
    place.script(
        WHERE
        + """
import subprocess
options = {"stdout": subprocess.PIPE, "start_new_session": True, "env": {}}
tell("hidden", int(subprocess.Popen(["sh", "-c", "sleep 600 & echo $!"], **options).stdout.readline()))
tell("where", where())
tell("ready", os.getpid())
sleep()
"""
    )
    with place.start("--nproc_per_node=2", "train.py", env=environment(MARK=mark)) as launcher:
        place.ready(2)
        group = group_of(place)
        if group is not None:
            (group / "below" / "it").mkdir(parents=True)
        hidden = psutil.Process(int(place.text("hidden.0")))
        (launcher if victim == "front" else supervisor_of(launcher)).send_signal(signal.SIGKILL)
        ended = Place.wait(launcher)
        assert ended.status == (-9 if victim == "front" else 72)
        until(lambda: not hidden.is_running() and not marked(mark), "the end of all", 2)
        await_removal(group)


def test_the_next_launcher_ends_leftovers_of_a_launcher_and_supervisor_killed_at_once(
    place: Place, tmp_path_factory: pytest.TempPathFactory, mark: str
) -> None:
    """But nothing of a job that still runs."""
    place.script(
        WHERE
        + """
import subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True)
tell("where", where())
tell("ready", os.getpid())
await_file("go")
"""
    )
    running = Place(tmp_path_factory.mktemp("running"))
    running.script("tell('ready', os.getpid())\nawait_file('go')")
    with running.start("train.py") as other:
        running.ready(1)
        with place.start("train.py", env=environment(MARK=mark)) as launcher:
            place.ready(1)
            group = group_of(place)
            supervisor = supervisor_of(launcher)
            supervisor.suspend()
            launcher.kill()
            supervisor.kill()
            until(lambda: len(marked(mark)) <= 1, "the end of all but one")
        next_one = Place(tmp_path_factory.mktemp("next"))
        next_one.script("")
        assert next_one.run("train.py").status == 0
        assert (group is None) == bool(marked(mark))
        assert group is None or not group.exists()
        (running.folder / "go").touch()
        assert running.wait(other).status == 0


def test_a_launcher_inside_a_rank_has_its_own_below(place: Place) -> None:
    place.script(
        WHERE
        + """
import subprocess
tell("outer", where())
launcher = [sys.executable, "-m", "rlaunch", "--log_dir=inner", "inner.py"]
sys.exit(subprocess.run(launcher).returncode)
"""
    )
    place.script(WHERE + "tell('inner', where())", "inner.py")
    ended = place.run("train.py")
    assert ended.status == 0, ended.stderr
    outer, inner = place.text("outer.0"), place.text("inner.0")
    group = group_of(place, "outer.0")
    assert inner == outer if group is None else re.fullmatch(re.escape(outer) + r"/rlaunch-\w{16}", inner)
    assert group is None or not group.exists()


@contextlib.contextmanager
def fifo(path: Path) -> Iterator[Callable[[], bool]]:
    """Whether a process has it open for writing. Processes that run ahead end with it."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def has_writer() -> bool:
        try:
            return os.read(reader, 1) != b""
        except BlockingIOError:
            return True

    try:
        yield has_writer
    finally:
        path.unlink()
        os.close(reader)


@pytest.mark.parametrize("cgroup", [True, False])
def test_processes_that_run_ahead_of_the_sweep_are_ended(place: Place, cgroup: bool) -> None:
    """Thousands of them wait for being reaped meanwhile."""
    place.script(
        RUN_AHEAD + WHERE + "for _ in range(20):\n    run_ahead()\ntell('where', where())\nos._exit(0)"
    )
    with fifo(place.folder / "lives") as has_writer:
        ended = place.run(f"--cgroup={str(cgroup).lower()}", "train.py")
        assert ended.status == 0, ended.stderr
        assert not has_writer()
    if cgroup:
        group = group_of(place)
        assert group is None or not group.exists()


def test_the_launcher_hears_a_signal_while_processes_run_ahead(place: Place) -> None:
    """It reaps them meanwhile."""
    place.script(RUN_AHEAD + "for _ in range(8):\n    run_ahead()\ntell('ready', os.getpid())\nsleep()")
    with (
        fifo(place.folder / "lives") as has_writer,
        place.start("--cgroup=false", "train.py") as launcher,
    ):
        place.ready(1)
        launcher.send_signal(signal.SIGTERM)
        ended = Place.wait(launcher)
        assert ended.status == 128 + signal.SIGTERM, ended.stderr
        assert not has_writer()


def test_a_process_without_its_first_thread_is_ended(place: Place, mark: str) -> None:
    """It looks like a zombie, which is all that is left of it where there is no cgroup to say otherwise."""
    body = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(5,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    place.script(
        WHERE
        + f"""
import subprocess
process = subprocess.Popen([sys.executable, "-c", {body!r}], start_new_session=True)
while " Z " not in open(f"/proc/{{process.pid}}/stat").read():
    time.sleep(0.005)
tell("where", where())
tell("headless", process.pid)
os._exit(0)
"""
    )
    ended = place.run("train.py", env=environment(MARK=mark))
    assert ended.status == 0, ended.stderr
    group = group_of(place)
    assert group is None or not group.exists()
    headless = int(place.text("headless.0"))
    until(lambda: not psutil.pid_exists(headless), "the end of its last thread", 10 if group is None else 1)


@pytest.mark.parametrize("code", [0, 5])
def test_a_tracker_has_its_time_in_a_cgroup_too(place: Place, code: int) -> None:
    """Also when another process is left: the memory is unlinked by the tracker, and not lost with it."""
    place.script(f"""{LEFT_TO_A_TRACKER}
import subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True, env={{}})
os._exit({code})
""")
    ended = place.run("train.py")
    assert ended.status == code
    assert re.search(r"swept 1 leftover process of .*\(sleep\)", ended.stderr), ended.stderr
    assert not Path("/dev/shm", place.text("ready.0")).exists()


READ_ONLY = """
sed -n 's/^\\([^ ]* \\)\\{4\\}\\([^ ]*\\) .* - cgroup2 .*/\\2/p' /proc/self/mountinfo | while read -r at; do
    mount -o remount,bind,ro "$at" || exit 1
done || exit 1
exec "$@"
"""


def test_without_a_writable_cgroup_jobs_run_unchanged(place: Place, mark: str) -> None:
    place.script(
        WHERE
        + """
import subprocess
tell("where", where())
subprocess.Popen(["sleep", "600"], start_new_session=True)
"""
    )
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh"]
    done = subprocess.run(
        [*unshare, sys.executable, "-m", "rlaunch", "train.py"],
        cwd=place.folder, env=environment(MARK=mark), capture_output=True, timeout=LIMIT,
    )  # fmt: skip
    ended = Ended(done.returncode, done.stdout, done.stderr.decode())
    assert ended.status == 0, ended.stderr
    assert "swept 1 leftover process of rank 0 (sleep)" in ended.stderr
    assert (place.text("where.0"), marked(mark)) == (own(), [])


@pytest.fixture
def box() -> Iterator[Path | None]:
    """A cgroup that only launchers of one test have as their own; None where there can be none."""
    if FOLDER is None:
        yield None
        return
    box = FOLDER / f"box-{uuid.uuid4().hex}"
    box.mkdir()
    yield box
    (box / "cgroup.kill").write_text("1")
    until(lambda: "populated 0" in (box / "cgroup.events").read_text(), "the end of all processes")
    for group in [*box.glob("rlaunch-*"), box]:
        group.rmdir()


def inside(box: Path) -> Callable[[], object]:
    return lambda: (box / "cgroup.procs").write_text("0")


def test_a_cgroup_of_another_program_is_left_alone(place: Place, box: Path | None) -> None:
    """Its name begins as those of jobs do."""
    if box is None:
        return
    group = box / "rlaunch-nightly.service"
    group.mkdir()
    with subprocess.Popen(["sleep", "600"], preexec_fn=inside(group)) as service:
        place.script("")
        assert place.run("train.py", preexec_fn=inside(box)).status == 0
        assert service.poll() is None
        assert (group / "cgroup.procs").read_text().split() == [str(service.pid)]
        service.kill()


CHANGES = ["another boot", "another PID namespace", "a living process", "another name", "none"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_cgroup_whose_owner_may_live_is_left_alone(
    place: Place, tmp_path_factory: pytest.TempPathFactory, mark: str, box: Path | None, change: str
) -> None:
    if box is None:
        return
    place.script(
        """
import subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True)
tell("ready", os.getpid())
sleep()
"""
    )
    with place.start("train.py", env=environment(MARK=mark), preexec_fn=inside(box)) as launcher:
        place.ready(1)
        (group,) = box.glob("rlaunch-*")
        supervisor = supervisor_of(launcher)
        supervisor.suspend()
        launcher.kill()
        supervisor.kill()
        until(lambda: len(marked(mark)) <= 1, "the end of all but one")
    pid, started, namespace, boot, name = os.getxattr(group, "user.rlaunch.owner").decode().split()
    assert name == group.name
    own = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    changed = {
        "another boot": [pid, started, namespace, str(uuid.uuid4()), name],
        "another PID namespace": [pid, started, "1", boot, name],
        "a living process": [str(os.getpid()), own, namespace, boot, name],
        "another name": [pid, started, namespace, boot, "rlaunch-0000000000000000"],
        "none": [pid, started, namespace, boot, name],
    }
    os.setxattr(group, "user.rlaunch.owner", " ".join(changed[change]).encode())
    next_one = Place(tmp_path_factory.mktemp("next"))
    next_one.script("")
    assert next_one.run("train.py", preexec_fn=inside(box)).status == 0
    assert (len(marked(mark)), group.exists()) == ((0, False) if change == "none" else (1, True))
