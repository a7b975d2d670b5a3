"""A launcher that cannot look up processes in /proc: it is not there, or that of another PID namespace."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest
from launching import (
    LIMIT,
    TALKING,
    Place,
    await_none_marked,
    environment,
    gone,
    marked,
    supervisor_of,
    until,
)

# Nothing is left of /proc in a mount namespace of its own.
WITHOUT_PROC = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
JOB = [sys.executable, "-m", "rlaunch", "--nproc_per_node=2", "train.py"]

# Under `unshare --pid` without `--mount-proc`: /proc is that of the namespace above. It starts a `sleep` with
# the number of a process above, and launches until the supervisor has the number of that process's parent.
COINCIDENCE = """
import json, subprocess, sys
from pathlib import Path

parent, child, *command = sys.argv[1:]
parent, child = int(parent), int(child)

def start(number, command, **options):
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
    return subprocess.Popen(command, **options)

stranger = start(child, ["sleep", "600"])
assert stranger.pid == child, (stranger.pid, child)
supervisor, offset = 0, 1
for _ in range(9):
    launcher = start(parent - offset, command, stderr=subprocess.PIPE)
    _, err = launcher.communicate()
    supervisor = int(Path("ready.0").read_text())
    if supervisor == parent:
        break
    offset += supervisor - parent
else:
    sys.exit(f"{supervisor} is not {parent}")
alive = stranger.poll() is None
stranger.kill()
stranger.wait()
print(json.dumps({"alive": alive, "status": launcher.returncode, "stderr": err.decode()}))
"""


def test_a_stranger_with_the_number_of_another_namespaces_process_survives(place: Place) -> None:
    place.script("tell('ready', os.getppid())")
    (place.folder / "coincidence.py").write_text(COINCIDENCE)
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True) as above:
        (child,) = until(lambda: psutil.Process(above.pid).children(), "a child")
        try:
            command = ["unshare", "-Urpf", "--kill-child", sys.executable, "-S", "coincidence.py"]
            job = [sys.executable, "-m", "rlaunch", "train.py"]
            ended = subprocess.run(
                [*command, str(above.pid), str(child.pid), *job],
                cwd=place.folder,
                env=environment(),
                stdout=subprocess.PIPE,
                timeout=LIMIT,
            )
        finally:
            child.kill()
    seen = json.loads(ended.stdout)
    assert (seen["alive"], seen["status"]) == (True, 0), seen
    (line,) = (line for line in seen["stderr"].splitlines() if "/proc" in line)
    assert "/proc is that of another PID namespace" in line
    assert "outlives the job" in line
    rank_ended, job_ended = place.events()[-2:]
    assert (rank_ended["event"], job_ended["event"]) == ("rank_ended", "job_ended")
    # Processes of the other namespace could not be killed: 2 s.
    assert job_ended["monotonic"] - rank_ended["monotonic"] < 2


def test_without_proc_ranks_run_and_have_their_status(place: Place) -> None:
    place.script("""
        import subprocess
        subprocess.Popen(["sleep", "600"])
        sys.exit(7 if rank == 1 else 0)
    """)
    command = [*WITHOUT_PROC, *JOB]
    launcher = subprocess.Popen(command, cwd=place.folder, env=environment(), stderr=subprocess.PIPE)
    with place.cleaned(launcher):
        ended = place.wait(launcher)
    assert ended.status == 7, ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if "/proc" in line)
    assert "/proc is not mounted" in line
    assert "outlives the job" in line


@pytest.mark.parametrize(
    ("namespaces", "why"),
    [
        (WITHOUT_PROC, "No such file or directory: '/proc/self"),
        (["unshare", "-Urpf", "--kill-child"], "/proc is that of another PID namespace"),
    ],
)
def test_a_preload_that_cannot_be_checked_is_refused(place: Place, namespaces: list[str], why: str) -> None:
    place.script("")
    command = [*namespaces, *JOB]
    command.insert(-1, "--preload=json")
    ended = subprocess.run(
        command, cwd=place.folder, env=environment(), stderr=subprocess.PIPE, text=True, timeout=LIMIT
    )
    assert ended.returncode == 71
    assert "whether ranks can be forked cannot be checked" in ended.stderr
    assert why in ended.stderr
    assert "with --preload=json,auto every rank imports for itself" in ended.stderr


def test_without_proc_ranks_die_with_their_launcher(place: Place, mark: str) -> None:
    """Their children too, which nothing but the lifeline reaches when both of its processes are killed."""
    place.script("""
        import subprocess
        subprocess.Popen(["sleep", "600"])
        tell("ready", os.getpid())
        sleep()
    """)
    env, command = environment(MARK=mark), [*WITHOUT_PROC, *JOB]
    place.launcher = subprocess.Popen(command, cwd=place.folder, env=env, stderr=subprocess.DEVNULL)
    with place.cleaned(place.launcher) as launcher:
        place.ready(2)
        until(lambda: len(marked(mark)) == 4 + 2, "all children")
        supervisor = supervisor_of(launcher)
        supervisor.suspend()
        launcher.kill()
        supervisor.kill()
        await_none_marked(mark)


def test_without_proc_what_a_rank_has_started_gets_its_grace_period(place: Place) -> None:
    """The rank dies of the signal at once; a process in its group saves its work first."""
    (place.folder / "train.py").write_text(f"""
import os, signal, sys, time
rank = 0
{TALKING}
if os.fork() == 0:
    signal.signal(signal.SIGTERM, lambda *_: None)
    tell("ready", os.getppid())
    await_file("end")
    tell("saved")
    os._exit(0)
sleep()
""")
    command = [*WITHOUT_PROC, sys.executable, "-m", "rlaunch.run", "--nproc-per-node=1", "train.py"]
    place.launcher = subprocess.Popen(command, cwd=place.folder, env=environment(), stderr=subprocess.PIPE)
    with place.cleaned(place.launcher) as launcher:
        (rank,) = place.ready(1)
        launcher.terminate()
        until(lambda: gone(rank), "the end of the rank")
        (place.folder / "end").touch()
        ended = place.wait(launcher)
    assert (place.folder / "saved.0").exists(), ended.stderr
