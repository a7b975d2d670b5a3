"""How jobs of `python -m rlaunch.run` are stopped, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from launching import (
    Place,
    await_gone,
    await_line,
    await_none_marked,
    few_processes,
    gone,
    insist,
    marked,
    supervisor_of,
    until,
)
from torch_launching import ESCAPED, TorchPlace

# Says which signals it gets, in a process of its group too, which gets a stop signal once the rank has ended.
LISTEN = """
names = ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]
who = "rank"
def heard(number, _):
    tell(f"{who}-{signal.Signals(number).name}")
    if signal.Signals(number).name not in os.environ.get("DEAF", "").split(","):
        os._exit(0)
for name in names:
    signal.signal(getattr(signal, name), heard)
if os.fork() == 0:
    who = "child"
    tell("child", os.getpid())
    sleep()
await_file(f"child.{rank}")
tell("ready", os.getpid())
sleep()
"""
DEAF = """
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
tell("ready", os.getpid())
sleep()
"""


@pytest.fixture
def place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


@contextlib.contextmanager
def within(least: float, most: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert least <= took <= most


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_stop_signal_is_forwarded_unchanged_to_each_rank_and_group(place: TorchPlace, name: str) -> None:
    place.script(LISTEN)
    with place.start("--nproc-per-node=2", "train.py") as launcher:
        ranks = place.ready(2)
        launcher.send_signal(getattr(signal, name))
        ended = Place.wait(launcher)
    assert ended.status == 128 + getattr(signal, name)
    await_gone(*ranks)
    heard = {f"{who}-{name}.{rank}" for who in ("rank", "child") for rank in (0, 1)}
    assert {found for found in place.names() if "-SIG" in found} == heard
    assert "FAILED" not in ended.stderr


def test_a_stop_may_look_like_torchruns(place: TorchPlace) -> None:
    place.script(LISTEN)
    with place.start("--exit-code-compat", "train.py") as launcher:
        place.ready(1)
        launcher.send_signal(signal.SIGTERM)
        assert Place.wait(launcher).status == 1


@pytest.mark.parametrize("how", ["option", "PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
def test_ranks_that_ignore_the_signal_are_killed_after_the_grace(place: TorchPlace, how: str) -> None:
    place.script(DEAF)
    options = ["--shutdown-timeout=1"] if how == "option" else []
    variables = {} if how == "option" else {how: "1"}
    with place.start(*options, "train.py", env=place.environment(**variables)) as launcher:
        (rank,) = place.ready(1)
        with within(0.9, 10):
            launcher.send_signal(signal.SIGTERM)
            ended = Place.wait(launcher)
    assert ended.status == 143
    assert gone(rank)
    assert "sending SIGKILL" in ended.stderr


def test_the_grace_applies_when_another_rank_fails(place: TorchPlace) -> None:
    place.script(
        """
        if rank == 1:
            await_file("ready.0")
            tell("failed", time.monotonic())
            sys.exit(5)
    """
        + DEAF.replace("\n", "\n        ").rstrip()
    )
    ended = place.run("--nproc-per-node=2", "--shutdown-timeout=1", "train.py")
    took = time.monotonic() - float(place.text("failed.1"))
    assert 0.9 <= took <= 10
    assert ended.status == 5
    root = ended.stderr[ended.stderr.index("Root Cause") :]
    assert "exitcode  : 5 " in root


def test_the_grace_applies_before_a_restart(place: TorchPlace) -> None:
    place.script(
        """
        if attempt == 1:
            sys.exit(0)
        if rank == 1:
            await_file("ready.0")
            sys.exit(5)
    """
        + DEAF.replace("\n", "\n        ").rstrip()
    )
    with within(0.9, 20):
        place.well("--nproc-per-node=2", "--shutdown-timeout=1", "--max-restarts=1", "train.py")


def test_with_a_grace_of_zero_ranks_are_killed_at_once(place: TorchPlace) -> None:
    place.script(DEAF)
    with place.start("--shutdown-timeout=0", "train.py") as launcher:
        place.ready(1)
        with within(0, 10):
            launcher.send_signal(signal.SIGTERM)
            assert Place.wait(launcher).status == 143


def test_a_second_stop_signal_kills_at_once(place: TorchPlace) -> None:
    place.script(DEAF)
    with place.start("--shutdown-timeout=600", "train.py") as launcher:
        (rank,) = place.ready(1)
        launcher.send_signal(signal.SIGINT)
        await_line(launcher.stderr, b"waiting up to 600 s")
        insist(launcher, signal.SIGINT)
    assert launcher.returncode == 130
    assert gone(rank)


def test_a_notice_is_passed_on_and_stops_nothing(place: TorchPlace) -> None:
    place.script(LISTEN)
    with place.start("train.py", env=place.environment(DEAF="SIGUSR1,SIGUSR2")) as launcher:
        place.ready(1)
        for name in ("SIGUSR1", "SIGUSR2"):
            launcher.send_signal(getattr(signal, name))
            until((place.folder / f"rank-{name}.0").exists, f"{name} in the rank")
        assert launcher.poll() is None
        launcher.send_signal(signal.SIGTERM)
        assert Place.wait(launcher).status == 143


def test_a_notice_that_is_to_be_handled_stops_the_job(place: TorchPlace) -> None:
    place.script(LISTEN)
    with place.start("--signals-to-handle=SIGUSR1,SIGTERM", "train.py") as launcher:
        place.ready(1)
        launcher.send_signal(signal.SIGUSR1)
        ended = Place.wait(launcher)
    assert ended.status == 128 + signal.SIGUSR1
    assert {"rank-SIGUSR1.0", "child-SIGUSR1.0"} <= place.names()
    assert "SIGUSR1" in ended.stderr


def test_a_stop_signal_that_is_not_listed_stops_the_job_as_well(place: TorchPlace) -> None:
    """torchrun would die of it, and leave its ranks behind."""
    place.script(LISTEN)
    with place.start("--signals-to-handle=SIGTERM", "train.py") as launcher:
        (rank,) = place.ready(1)
        launcher.send_signal(signal.SIGHUP)
        assert Place.wait(launcher).status == 128 + signal.SIGHUP
    assert gone(rank)


def test_a_stop_signal_ends_restarts(place: TorchPlace) -> None:
    place.script(LISTEN)
    with place.start("--max-restarts=5", "train.py", env=place.environment(DEAF="")) as launcher:
        place.ready(1)
        launcher.send_signal(signal.SIGTERM)
        ended = Place.wait(launcher)
    assert ended.status == 143
    assert "; restart " not in ended.stderr


@pytest.mark.parametrize("victim", ["front", "supervisor"])
def test_nothing_outlives_a_launcher_that_is_killed(place: TorchPlace, mark: str, victim: str) -> None:
    place.script(ESCAPED + DEAF.replace("tell(", "escape()\ntell("))
    with place.start("--nproc-per-node=2", "-t3", "train.py", env=place.environment(MARK=mark)) as launcher:
        place.ready(2)
        escaped = [psutil.Process(int(place.text(f"escaped.{rank}"))) for rank in (0, 1)]
        (launcher if victim == "front" else supervisor_of(launcher)).send_signal(signal.SIGKILL)
        await_none_marked(mark, 10)
        ended = Place.wait(launcher)
    await_gone(*escaped)
    assert ended.status == (-signal.SIGKILL if victim == "front" else 72)


WRAPPED = """
def save(*_):
    tell("asked")
    await_file("go")
    tell("saved")
    os._exit(0)

signal.signal(signal.SIGTERM, save)
tell("ready", os.getpid())
sleep()
"""


@pytest.mark.parametrize("ends", ["saved", "late", "second"])
def test_programs_of_a_shell_script_have_the_grace_of_the_script(
    place: TorchPlace, mark: str, ends: str
) -> None:
    """A shell dies of SIGTERM at once."""
    place.script(WRAPPED)
    place.script(f'"{sys.executable}" train.py\necho not reached', "wrap.sh")
    words = ["--no-python", "/bin/sh", "wrap.sh"]
    grace = "--shutdown-timeout=1" if ends == "late" else "--shutdown-timeout=60"
    with place.start(grace, *words, env=place.environment(MARK=mark)) as launcher:
        (program,) = place.ready(1)
        shell = program.parent()
        assert shell is not None
        launcher.terminate()
        until((place.folder / "asked.0").exists, "the request")
        until(lambda: gone(shell), "the shell's end")
        if ends == "saved":
            (place.folder / "go").touch()
        if ends == "second":
            insist(launcher)
        ended = Place.wait(launcher)
    assert (ended.status, ended.stdout) == (143, b"")
    assert ("saved.0" in place.names()) == (ends == "saved")
    assert ("sending SIGKILL" in ended.stderr) == (ends != "saved")
    assert marked(mark) == []


NESTED = f"""
if len(sys.argv) == 1:
    inner = ["-m", "rlaunch.run", "--nproc-per-node=2", "train.py", "inner"]
    os.execv(sys.executable, [sys.executable, *inner])
{LISTEN}
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_reaches_the_ranks_of_a_launch_inside_a_rank(
    place: TorchPlace, mark: str, number: int
) -> None:
    place.script(NESTED)
    with place.start("train.py", env=place.environment(MARK=mark)) as launcher:
        place.ready(2)
        launcher.send_signal(number)
        assert Place.wait(launcher).status == 128 + number
    heard = {f"rank-{signal.Signals(number).name}.{rank}" for rank in (0, 1)}
    assert heard <= place.names()
    assert marked(mark) == []


def test_nothing_outlives_a_launcher_that_is_killed_with_another_inside_it(
    place: TorchPlace, mark: str
) -> None:
    place.script(NESTED)
    with place.start("train.py", env=place.environment(MARK=mark)) as launcher:
        place.ready(2)
        launcher.kill()
        await_none_marked(mark, 10)


@pytest.mark.parametrize("end", ["sys.exit(0)", "sys.exit(6)", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_processes_that_a_rank_leaves_are_swept_and_named(place: TorchPlace, mark: str, end: str) -> None:
    place.script(
        ESCAPED
        + f"""
if rank == 1:
    escape()
    {end}
else:
    await_file("escaped.1")
    if {end!r} != "sys.exit(0)":
        sleep()
"""
    )
    ended = place.run(
        "--nproc-per-node=2",
        "train.py",
        env=place.environment(MARK=mark),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    )
    assert ended.status == {"0": 0, "6": 6}.get(end[9:10], 139)
    assert marked(mark) == []
    assert re.search(r"swept 1 leftover process of rank 1 \(python", ended.stderr)


def test_a_rank_that_cannot_be_started_ends_those_before_it(place: TorchPlace, mark: str) -> None:
    env = place.environment(MARK=mark)
    words = ["--nproc-per-node=8", "--log-dir=log", "--no-python", "sleep", "600"]
    ended = place.run(*words, env=env, preexec_fn=lambda: few_processes(8))
    assert ended.status == 71, ended.stderr
    (line,) = ended.error_lines()
    # The launcher's threads count too.
    found = re.match(r"rlaunch: error: cannot start rank ([1-6]) \(.*: clone: ", line)
    assert found, line
    before = int(found[1])
    statuses = [rank["status"] for rank in place.result_of_run()["ranks"]]
    assert statuses == ["stopped"] * before + ["not_started"] + ["never_started"] * (7 - before)
    assert marked(mark) == []


def test_a_program_that_cannot_be_executed_is_named(place: TorchPlace) -> None:
    place.script("#!/no/such/interpreter\n", "broken.sh")
    (place.folder / "broken.sh").chmod(0o755)
    ended = place.run("--nproc-per-node=2", "--no-python", "./broken.sh")
    assert ended.status == 71
    (line,) = ended.error_lines()
    assert "broken.sh" in line
    assert "No such file or directory" in line


# --- CPUs, and plans. ------------------------------------------------------------------------------------

BINDINGS = ["node", "socket", "exclusive", "core-complex"]


@pytest.mark.parametrize("kind", BINDINGS)
def test_ranks_are_bound_to_cpus(place: TorchPlace, kind: str) -> None:
    allowed = os.sched_getaffinity(0)
    ranks = min(2, len(allowed))
    place.script(
        "tell('cpus', open('/proc/self/status').read().partition('Cpus_allowed_list:')[2].split()[0])"
    )
    ended = place.run(f"--nproc-per-node={ranks}", f"--numa-binding={kind}", "--bind-report", "train.py")
    assert ended.status == 0, ended.stderr
    bound = [cpus(place.text(f"cpus.{rank}")) for rank in range(ranks)]
    for rank, own in enumerate(bound):
        assert own
        assert own <= allowed
        (said,) = re.findall(rf"local rank {rank} is bound to (?:CPUs? )?([\d,-]+)", ended.stderr)
        assert cpus(said) == own
    if kind == "exclusive":
        assert sum(map(len, bound)) == len(set().union(*bound))


def test_more_ranks_than_cores_cannot_each_have_one(place: TorchPlace) -> None:
    place.script("tell('ran')")
    ended = place.run("--nproc-per-node=2", "--numa-binding=exclusive", "train.py", preexec_fn=on_one_cpu)
    assert ended.status == 66
    (line,) = ended.error_lines()
    assert "core" in line
    assert not place.names() & {"ran.0", "ran.1"}


def on_one_cpu() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def cpus(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize("form", ["--dry-run", "--dry-run=json"])
def test_a_plan_starts_nothing_and_leaves_nothing(place: TorchPlace, form: str) -> None:
    place.script("tell('ran')")
    before = place.names()
    ended = place.well("--nproc-per-node=2", "--log-dir=log", "-t3", form, "train.py", "--lr", "1")
    assert place.names() == before
    assert list((place.folder / "tmp").iterdir()) == []
    text = ended.stdout.decode()
    for word in ("train.py", "--lr", "RANK", "MASTER_PORT", "attempt_0/1/stderr.log"):
        assert word in text


def test_a_plan_shows_the_differences_between_ranks(place: TorchPlace) -> None:
    options = ["--nproc-per-node=2", "--numa-binding=node", "--pass-local-rank", "-r3"]
    table = place.well(*options, "--dry-run", place.script("pass"), "at-${local_rank}").stdout.decode()
    allowed = sorted(os.sched_getaffinity(0))
    plan = json.loads(place.well(*options, "--dry-run=json", "train.py", "at-${local_rank}").stdout)
    for local_rank, rank in enumerate(plan["ranks"]):
        own = ["-u", "train.py", f"--local-rank={local_rank}", f"at-{local_rank}"]
        assert rank["argv"][1:] == own
        assert re.search(rf"^command of rank {local_rank} .* {' '.join(own)}$", table, re.M)
        assert cpus(rank["cpus"]) <= set(allowed)
        assert rank["log"].endswith(f"/attempt_0/{local_rank}/stderr.log")
        assert re.search(
            rf"^{local_rank} +cpu {rank['cpus']} +attempt_0/{local_rank}/stderr.log$", table, re.M
        )


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize("log_dir", ["", "log", "/dev/null"])
def test_the_folder_that_a_stopped_job_leaves_is_named(place: TorchPlace, name: str, log_dir: str) -> None:
    place.script("tell('ready', os.getpid()); sleep()")
    options = [f"--log-dir={log_dir}"] if log_dir else []
    with place.start("--nproc-per-node=2", *options, "train.py") as launcher:
        place.ready(2)
        launcher.send_signal(getattr(signal, name))
        ended = place.wait(launcher)
    (result,) = place.folder.rglob("result.json")
    folder = result.parent.parent if result.parent.name == "rlaunch" else result.parent
    assert ended.stderr.count(f" in {folder}\n") == 1, ended.stderr
