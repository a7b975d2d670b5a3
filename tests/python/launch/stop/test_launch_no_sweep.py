"""Processes that a rank leaves running on purpose: no sweep ends those that the user names or marks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from launching import ATTEMPT, Place, await_gone, environment, runs, supervisor_of
from torch_launching import RANK as TORCH_RANK
from torch_launching import TorchPlace

# Its name is longer than the kernel keeps. It has a child, which is no uploader.
NAME = "checkpoint-uploader"
SHORT = NAME[:15]
UPLOADER = """#!/bin/sh
sleep 600 &
echo $$ $! > uploading.tmp
mv uploading.tmp uploading.$1
wait
"""

# A detached uploader, beside other processes that are left behind.
LEAVES = f"""
import subprocess

quiet = {{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}

def leave(name="0", **options):
    subprocess.Popen(["./{NAME}", name], **{{"start_new_session": True, **quiet, **options}})
    await_file(f"uploading.{{name}}")
    tell("swept", subprocess.Popen(["sleep", "600"], start_new_session=True, **quiet).pid)
    subprocess.Popen(["sleep", "600"], **quiet)
"""
MARKED = "env={**os.environ, 'RLAUNCH_NO_SWEEP': '1'}"


def prepare(place: Place, body: str, head: str = "") -> None:
    (place.folder / NAME).write_text(UPLOADER)
    (place.folder / NAME).chmod(0o700)
    if head:
        (place.folder / "train.py").write_text(head + LEAVES + body)
    else:
        place.script(LEAVES + body)


def uploader(place: Place, name: str = "0") -> list[psutil.Process]:
    """Those of the uploader and its child that run."""
    numbers = [int(pid) for pid in place.text(f"uploading.{name}").split()]
    there = [pid for pid, word in zip(numbers, (NAME, "sleep"), strict=True) if runs(pid, word)]
    return [psutil.Process(pid) for pid in there]


@contextmanager
def living(place: Place, name: str = "0") -> Iterator[int]:
    """The id of the uploader, which runs, as does its child; both end here."""
    family = uploader(place, name)
    try:
        assert len(family) == 2
        yield family[0].pid
    finally:
        for process in family:
            process.kill()
        await_gone(*family)


def message(pid: int) -> str:
    return f"rlaunch: left running by --no_sweep: {SHORT} (pid {pid})"


@pytest.fixture
def torch_place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


@pytest.mark.parametrize("cgroup", [True, False])
@pytest.mark.parametrize(
    ("options", "env", "how"),
    [
        ([f"--no_sweep=other, {NAME}"], {}, ""),
        ([], {"RLAUNCH_NO_SWEEP": NAME}, ""),
        ([], {}, MARKED),
    ],
    ids=["option", "variable", "mark"],
)
def test_a_detached_process_outlives_its_rank_and_the_job(
    place: Place, options: list[str], env: dict[str, str], how: str, cgroup: bool
) -> None:
    prepare(place, f"leave({how})\ntell('inherited', os.environ.get('RLAUNCH_NO_SWEEP'))")
    ended = place.run(f"--cgroup={cgroup}", *options, "train.py", env=environment(**env))
    with living(place) as pid:
        assert (ended.status, place.text("inherited.0")) == (0, "None"), ended.stderr
        assert ended.stderr.splitlines().count(message(pid)) == 1
        assert "swept 2 leftover processes of rank 0 (sleep)" in ended.stderr
        assert not runs(int(place.text("swept.0")), "sleep")
        result = place.result()
        assert (result["left_running"], result["swept"]) == ([{"pid": pid, "name": SHORT}], 0)
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        assert groups == Path("/proc/self/cgroup").read_text(), "it is where the launcher was"


def test_torchruns_front_end_has_the_option_too(torch_place: TorchPlace) -> None:
    prepare(torch_place, "leave()\nsys.exit(3)\n", TORCH_RANK)
    ended = torch_place.run("--log-dir=log", f"--no-sweep={NAME}", "train.py")
    with living(torch_place) as pid:
        assert ended.status == 3, ended.stderr
        assert ended.stderr.splitlines().count(message(pid)) == 1
        assert torch_place.result_of_run()["left_running"] == [{"pid": pid, "name": SHORT}]


def test_it_outlives_an_attempt_and_is_named_once(place: Place) -> None:
    prepare(place, ATTEMPT + "if attempt > 0:\n    sys.exit(0)\nleave()\nsys.exit(4)\n")
    ended = place.run("--max_restart=1", "--restart_delay=0", f"--no_sweep={NAME}", "train.py")
    with living(place) as pid:
        assert ended.status == 0, ended.stderr
        assert ended.stderr.splitlines().count(message(pid)) == 1


@pytest.mark.parametrize("victim", ["front", "supervisor"])
@pytest.mark.parametrize("how", ["option", "mark"])
def test_it_outlives_a_launcher_that_is_killed(place: Place, victim: str, how: str) -> None:
    prepare(place, f"leave({MARKED if how == 'mark' else ''})\ntell('ready', os.getpid())\nsleep()")
    names = f"--no_sweep={NAME}" if how == "option" else "--no_sweep=another"
    # A cgroup without a supervisor process is taken for an abandoned one by launchers that start now.
    with place.start(names, "--cgroup=false", "train.py") as launcher:
        ranks = place.ready(1)
        supervisor = supervisor_of(launcher)
        swept = psutil.Process(int(place.text("swept.0")))
        (launcher if victim == "front" else supervisor).send_signal(signal.SIGKILL)
        ended = Place.wait(launcher)
        await_gone(*ranks, supervisor, swept)
    with living(place) as pid:
        assert place.result()["left_running"] == [{"pid": pid, "name": SHORT}]
        assert victim == "front" or message(pid) in ended.stderr.splitlines()


def test_it_outlives_a_stop_and_a_member_of_the_ranks_group_does_not(place: Place) -> None:
    body = "leave('1', start_new_session=False)\nleave()\ntell('ready', os.getpid())\nsleep()"
    prepare(place, body)
    with place.start(f"--no_sweep={NAME}", "train.py") as launcher:
        place.ready(1)
        launcher.terminate()
        ended = Place.wait(launcher)
    with living(place) as pid:
        assert ended.status == 143
        assert message(pid) in ended.stderr.splitlines()
        assert uploader(place, "1") == []


def test_a_member_of_the_ranks_group_is_swept_with_its_rank(place: Place) -> None:
    prepare(place, "leave(start_new_session=False)")
    ended = place.run(f"--no_sweep={NAME}", "train.py")
    assert ended.status == 0
    assert "left running" not in ended.stderr
    assert uploader(place) == []


def test_other_jobs_that_start_and_end_in_the_same_cgroup_leave_it_alone(place: Place) -> None:
    prepare(place, "leave()")
    assert place.run(f"--no_sweep={NAME}", "train.py").status == 0
    with living(place):
        place.script("", "nothing.py")
        assert place.run("nothing.py").status == 0
        assert len(uploader(place)) == 2


@pytest.mark.parametrize(
    ("names", "why"),
    [("uploader,,rsync", "has an empty name"), ("*", "'*' is not the name of a process; paths and patterns")],
)
def test_names_that_are_none_are_refused(place: Place, names: str, why: str) -> None:
    ended = place.run(f"--no_sweep={names}", "train.py")
    assert (ended.status, len(ended.error_lines())) == (2, 1)
    assert f"--no_sweep {names}: {why}" in ended.stderr
