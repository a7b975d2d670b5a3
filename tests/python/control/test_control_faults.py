"""The control socket: clients that hang, flood or lie; folders that are gone; launchers that were killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hanging_folder import hanging_folder
from jobs import Jobs, request
from launching import await_gone, supervisor_of, until

QUIET = "tell('ready', os.getpid())\nawait_file('go')\n"
STATUS = b'{"version": 1, "request": "status"}\n'


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def test_only_this_user_can_connect(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1):
        (path,) = jobs.sockets()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def refused_as_another_user(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1):
        (path,) = jobs.sockets()
        for folder in [path, *path.parents]:
            if folder.owner() == "root" and str(folder).startswith(str(jobs.folder)):
                folder.chmod(0o777)
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            # Connecting by a descriptor needs no way through the folders above.
            here = os.open(path.parent, os.O_PATH)
            os.setresuid(65534, 65534, 65534)
            with contextlib.suppress(OSError):
                import socket

                client = socket.socket(socket.AF_UNIX)
                client.connect(f"/proc/self/fd/{here}/{path.name}")
                client.sendall(STATUS)
                os.write(write, b"got" + client.recv(10))
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        assert os.read(read, 100) in (b"", b"got"), "the connection is closed without an answer"
        os.close(read)
        path.parent.chmod(0o700)
        assert jobs.json("status")["phase"] == "running"


if os.geteuid() == 0:  # Only root can be another user; the modes keep others out in any case.

    def test_another_user_is_refused_whatever_the_modes(jobs: Jobs) -> None:
        refused_as_another_user(jobs)


def test_clients_that_hang_flood_and_lie(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1) as launcher, contextlib.ExitStack() as clients:
        # More than there is room for, each with half a request.
        for _ in range(40):
            clients.enter_context(jobs.connect()).sendall(STATUS[:10])
        assert jobs.json("status")["phase"] == "running"
        for text in (
            b"\n",
            b"x\n",
            b"[]\n",
            b'{"version":1}\n',
            b'{"version":1,"request":"format"}\n',
            b"\xff\n",
        ):
            with jobs.connect() as client:
                assert request(client, text)["answer"] == "error", text
        with jobs.connect() as client, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(b"x" * 1_000_000)
            assert client.recv(1) == b"", "a line without an end"
        # One that never reads its answers.
        greedy = clients.enter_context(jobs.connect())
        greedy.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(10_000):
                greedy.send(STATUS * 10)
        with jobs.connect() as client:
            answers = [request(client, STATUS)["answer"] for _ in range(3)]
        assert answers == ["status"] * 3
        assert launcher.poll() is None
        assert supervisor_of(launcher).memory_info().rss < 100 << 20


def test_stops_at_the_same_time_are_one(jobs: Jobs) -> None:
    """The later ones come before the launcher has seen the signal of the first one."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + QUIET
    with jobs.job("--grace_period=500", script=deaf, ranks=2) as launcher:
        with jobs.connect() as client, client.makefile("rb") as answers:
            client.sendall(b'{"version": 1, "request": "stop", "grace_period": null}\n' * 6)
            assert [json.loads(answers.readline())["answer"] for _ in range(6)] == ["stopping"] * 6
        assert jobs.ask("stop", "--grace_period=0.2").status == 0
        assert "second signal" not in jobs.wait(launcher).stderr


def test_a_client_that_goes_while_its_stacks_are_read(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1):
        for _ in range(3):
            with jobs.connect() as client:
                client.sendall(b'{"version": 1, "request": "stacks"}\n')
        until(lambda: jobs.ask("stacks").status == 0, "another client's turn")


def test_the_job_s_folders_are_deleted(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1) as launcher:
        shutil.rmtree(jobs.folder / "log")
        (rank,) = jobs.json("status")["ranks"]
        assert rank["silent_seconds"] is None
        assert "rank 0 (1 of 1): in " in jobs.ask("stacks").stdout.decode()
        shutil.rmtree(jobs.folder / "run")
        assert jobs.json("status")["launcher"] == launcher.pid
        (jobs.folder / "go").touch()
        assert launcher.wait() == 0


def test_a_folder_that_others_may_write_to_is_not_used(jobs: Jobs) -> None:
    (jobs.folder / "run").mkdir()
    (jobs.folder / "run").chmod(0o777)
    with jobs.job(script=QUIET, ranks=1) as launcher:
        assert jobs.sockets() == []
        refused = jobs.ask("ps")
        assert refused.status == 1
        assert "is no folder of this user alone; let RLAUNCH_RUNTIME_DIR name one" in refused.stderr
        (jobs.folder / "go").touch()
        ended = jobs.wait(launcher)
        assert ended.status == 0
        assert "no control socket, so `rlaunch status` does not find this job" in ended.stderr


def test_no_socket_is_left(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1) as launcher:
        (jobs.folder / "go").touch()
        assert launcher.wait() == 0
        assert jobs.sockets() == []
        (jobs.folder / "go").unlink()
        (jobs.folder / "ready.0").unlink()
    with jobs.job(script=QUIET, ranks=1) as launcher:
        os.kill(supervisor_of(launcher).pid, signal.SIGKILL)
        launcher.wait()
        assert len(jobs.sockets()) == 1, "of a supervisor process that was killed"
        assert jobs.json("ps") == []
        assert jobs.sockets() == []


# A rank, and a process that it has forked into its group.
PAIR = """
if os.fork() == 0:
    tell("child", os.getpid())
    sleep()
tell("ready", os.getpid())
sleep()
"""


def test_no_thread_keeps_the_lifelines_of_a_killed_supervisor_open(tmp_path: Path) -> None:
    """A rank dies with the main thread, and its group when the last copy of its lifeline closes."""
    for turn in range(10):
        jobs = Jobs(tmp_path / str(turn))
        jobs.folder.mkdir()
        with jobs.job(script=PAIR, ranks=4) as launcher:
            paths = [jobs.folder / f"child.{number}" for number in range(4)]
            for path in paths:
                until(path.exists, path.name)
            children = [psutil.Process(int(path.read_text())) for path in paths]
            supervisor = supervisor_of(launcher)
            launcher.kill()
            supervisor.kill()
            await_gone(*children, limit=5)


def test_a_job_whose_supervisor_is_stopped(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1) as launcher:
        supervisor = supervisor_of(launcher)
        supervisor.suspend()
        try:
            silent = jobs.ask("status")
            assert silent.status == 1
            assert "does not answer; is it stopped, or of another version?" in silent.stderr
            with jobs.connect() as client:
                client.sendall(STATUS)
                client.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    client.recv(1)
                supervisor.resume()
                client.settimeout(30)
                assert client.recv(10)
        finally:
            supervisor.resume()


def test_a_stop_whose_launcher_is_killed_waits_for_the_ranks_and_fails(jobs: Jobs) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + QUIET
    with jobs.job("--grace_period=500", script=deaf, ranks=2) as launcher:
        ranks, supervisor = jobs.ready(2), supervisor_of(launcher)
        command = [sys.executable, "-m", "rlaunch.control", "stop"]
        with subprocess.Popen(
            command, env=jobs.env, cwd=jobs.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as stop:
            assert stop.stderr
            assert b"waiting for ranks 0, 1 of job" in stop.stderr.readline()
            supervisor.suspend()
            launcher.kill()
            launcher.wait()
            with pytest.raises(subprocess.TimeoutExpired):
                stop.wait(timeout=1)
            supervisor.kill()
            out, err = stop.communicate(timeout=30)
        await_gone(*ranks)
    assert (stop.returncode, out) == (1, b""), err
    assert b"has ended without a result in " in err, err


def test_a_job_stops_though_the_disk_of_its_interpreter_hangs(jobs: Jobs) -> None:
    """The reader of stacks is started by then, and waits for the disk in execve."""
    jobs.script(QUIET)
    with hanging_folder(subprocess.Popen, jobs.folder / "venv") as disk:
        (jobs.folder / "venv/bin").mkdir()
        shutil.copy(Path(sys.executable).resolve(), jobs.folder / "venv/bin/python")
        # The package, without a `pyvenv.cfg`: the standard library is found by PYTHONHOME.
        env = {
            **jobs.env,
            "PYTHONHOME": sys.base_prefix,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        command = [*disk.prefix, "venv/bin/python", "-m", "rlaunch", "--nproc_per_node=1", "train.py"]
        with subprocess.Popen(command, cwd=jobs.folder, env=env, stderr=subprocess.PIPE) as launcher:
            jobs.launcher = launcher
            jobs.ready(1)
            supervisor = psutil.Process(supervisor_of(launcher).pid)
            with disk.hangs():
                with jobs.connect() as client:
                    client.sendall(b'{"version": 1, "request": "stacks"}\n')
                    until(lambda: len(supervisor.children()) > 1, "the reader")
                assert jobs.ask("stop").status == 0
            assert launcher.wait() == 143
