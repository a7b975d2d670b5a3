"""To which processes of a rank a stop signal goes, and when: those that help a rank live while it saves."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from effort import each
from launching import Place, environment, gone, marked, until
from torch_launching import TorchPlace

# Paddle's launcher and torchrun's, as they name what these tests need.
FRONTS = ["paddle", "torch"]


class Job:
    """A folder to launch in by one of the front ends."""

    def __init__(self, front: str, folder: Path, mark: str) -> None:
        self.front = front
        self.place = TorchPlace(folder) if front == "torch" else Place(folder)
        own = self.place.environment if isinstance(self.place, TorchPlace) else environment
        self.env = own(MARK=mark)

    def start(self, *words: str, ranks: int = 1, grace: float = 600, restarts: int = 0) -> Any:
        options = [f"--nproc_per_node={ranks}", "--log_dir=log"]
        if self.front == "torch":
            options += [f"--shutdown-timeout={grace}", f"--max-restarts={restarts}", "--no-python"]
        else:
            options += [f"--grace_period={grace}", f"--max_restart={restarts}", "--no_python"]
        options += ["--restart_delay=0"] if restarts and self.front == "paddle" else []
        return self.place.start(*options, *words, env=self.env)

    def result(self) -> dict[str, Any]:
        place = self.place
        return place.result_of_run() if isinstance(place, TorchPlace) else place.result()

    def events(self) -> list[dict[str, Any]]:
        (path,) = self.place.folder.glob("log/**/events.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def has(self, kind: str, ranks: int = 1) -> bool:
        return all((self.place.folder / f"{kind}.{rank}").exists() for rank in range(ranks))

    def await_file(self, kind: str) -> str:
        until(lambda: self.has(kind), kind)
        return self.place.text(f"{kind}.0")


@pytest.fixture(params=FRONTS)
def job(request: pytest.FixtureRequest, tmp_path: Path, mark: str) -> Job:
    return Job(request.param, tmp_path, mark)


PYTHON = (sys.executable, "train.py")

# Helpers as ranks have them: a loader of data, which ends by any signal, and a logger, which writes the
# last word that it has received once it is to end. The rank needs both while it saves, 8 steps after a stop.
SAVES = """
attempt = int(os.environ["RLAUNCH_RANK_KEY"].split("/")[1])
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

def helper(serve):
    (asked, asks), (answered, answers) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(asks), os.close(answered)
        for number in STOPS:
            signal.signal(number, signal.SIG_DFL)
        serve(asked, answers)
        os._exit(0)
    os.close(asked), os.close(answers)
    def ask(word=b""):
        os.write(asks, word)
        assert os.read(answered, 1) == b"."
    ask()
    return ask

def load(asked, answers):
    os.write(answers, b".")
    while os.read(asked, 1):
        os.write(answers, b".")

def log(asked, answers):
    last = b""
    def finish(*_):
        tell(f"logged-{attempt}", last.decode())
        os._exit(0)
    for number in STOPS:
        signal.signal(number, finish)
    os.write(answers, b".")
    while word := os.read(asked, 1):
        last = word
        os.write(answers, b".")
    while True:  # Not pause(2): the signal comes as the rank ends, perhaps just before the call.
        time.sleep(0.02)

asked_by = []
for number in STOPS:
    signal.signal(number, lambda number, _: asked_by.append(number))
load, log = helper(load), helper(log)

def train():
    tell(f"ready-{attempt}", os.getpid())
    while not asked_by:
        load(b"x")
        log(b"x")
        time.sleep(0.01)
    for _ in range(8):
        load(b"x")
        time.sleep(0.02)
    log(b"s")
    tell(f"saved-{attempt}", signal.Signals(asked_by[0]).name)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_helpers_live_while_a_rank_saves_and_are_asked_to_stop_then(job: Job, mark: str, name: str) -> None:
    job.place.script(SAVES + "train()")
    with job.start(*PYTHON, ranks=2) as launcher:
        job.place.ready(2, "ready-0")
        launcher.send_signal(signal.Signals[name])
        ended = Place.wait(launcher)
    assert ended.status == 128 + signal.Signals[name], ended.stderr
    received = name if job.front == "torch" else "SIGTERM"
    assert [job.place.text(f"saved-0.{rank}") for rank in (0, 1)] == [received] * 2
    assert [job.place.text(f"logged-0.{rank}") for rank in (0, 1)] == ["s"] * 2
    assert [rank["exit"] for rank in job.result()["ranks"]] == [{"code": 0}] * 2, job.result()
    assert marked(mark) == []


def test_a_rank_that_waits_for_a_blocked_signal_handles_it(job: Job, mark: str) -> None:
    job.place.script(
        SAVES
        + """
import threading
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
threading.Thread(target=lambda: asked_by.append(signal.sigwait([signal.SIGTERM])), daemon=True).start()
train()
"""
    )
    with job.start(*PYTHON) as launcher:
        job.place.ready(1, "ready-0")
        launcher.terminate()
        ended = Place.wait(launcher)
    assert ended.status == 143, ended.stderr
    assert (job.place.text("saved-0.0"), job.place.text("logged-0.0")) == ("SIGTERM", "s")
    assert marked(mark) == []


@pytest.mark.parametrize("restarts", [0, 1])
def test_helpers_live_while_a_rank_saves_because_another_failed(job: Job, mark: str, restarts: int) -> None:
    job.place.script(
        SAVES
        + """
if attempt == 1:
    sys.exit(0)
if rank == 1:
    await_file("ready-0.0")
    os._exit(3)
train()
"""
    )
    with job.start(*PYTHON, ranks=2, restarts=restarts) as launcher:
        ended = Place.wait(launcher)
    assert ended.status == (0 if restarts else 3), ended.stderr
    assert (job.place.text("saved-0.0"), job.place.text("logged-0.0")) == ("SIGTERM", "s")
    assert marked(mark) == []


# A rank that handles SIGTERM and does not end by it; what it forks tells what it gets.
STAYS = """
def helper(then):
    if os.fork() == 0:
        def heard(*_):
            tell("heard", time.monotonic())
            then()
        signal.signal(signal.SIGTERM, heard)
        tell("helper", os.getpid())
        sleep()
    await_file(f"helper.{rank}")
"""


def test_helpers_of_a_rank_that_does_not_end_are_asked_before_sigkill(job: Job, mark: str) -> None:
    job.place.script(
        STAYS
        + """
helper(lambda: os._exit(0))
signal.signal(signal.SIGTERM, lambda *_: None)
tell("ready", os.getpid())
sleep()
"""
    )
    with job.start(*PYTHON, grace=20) as launcher:
        job.place.ready(1)
        launcher.terminate()
        ended = Place.wait(launcher)
    assert ended.status == 143
    (rank,) = job.result()["ranks"]
    assert (rank["exit"]["signal"]["name"], job.has("heard")) == ("SIGKILL", True), rank
    (stopping,) = (event for event in job.events() if event["event"] == "stopping")
    # 5 s before SIGKILL; the clock of the event is read a little after the signal.
    assert float(job.place.text("heard.0")) - stopping["monotonic"] > 10
    assert marked(mark) == []


@pytest.mark.parametrize("main", ["does not handle it", "ignores it"])
def test_a_rank_that_does_not_handle_the_signal_gets_it_with_its_group(
    job: Job, mark: str, main: str
) -> None:
    action = {"does not handle it": "SIG_DFL", "ignores it": "SIG_IGN"}[main]
    job.place.script(
        STAYS
        + f"""
helper(lambda: (await_file("go"), tell("saved"), os._exit(0)))
signal.signal(signal.SIGTERM, signal.{action})
tell("ready", os.getpid())
sleep()
"""
    )
    with job.start(*PYTHON) as launcher:
        (rank,) = job.place.ready(1)
        launcher.terminate()
        job.await_file("heard")
        if main == "ignores it":
            assert not gone(rank)
            rank.kill()
        until(lambda: gone(rank), "the rank's end")
        (job.place.folder / "go").touch()
        ended = Place.wait(launcher)
    assert (ended.status, job.has("saved")) == (143, True), ended.stderr
    assert marked(mark) == []


@pytest.mark.parametrize(
    ("main", "stays"),
    [("handles it", "ignores it"), ("handles it", "handles it"), ("does not handle it", "ignores it")],
)
def test_a_helper_that_does_not_end_is_swept_and_its_rank_is_not_called_killed(
    job: Job, mark: str, main: str, stays: str
) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if stays == "ignores it" else ""
    end = "lambda *_: os._exit(0)" if main == "handles it" else "signal.SIG_DFL"
    job.place.script(
        STAYS.replace('tell("helper"', f"{ignore}\n        tell('helper'")
        + f"""
helper(lambda: None)
signal.signal(signal.SIGTERM, {end})
tell("ready", os.getpid())
sleep()
"""
    )
    with job.start(*PYTHON, grace=600 if stays == "ignores it" else 20) as launcher:
        job.place.ready(1)
        helper = psutil.Process(int(job.await_file("helper")))
        launcher.terminate()
        ended = Place.wait(launcher)
    (rank,) = job.result()["ranks"]
    exited = {"code": 0} if main == "handles it" else {"signal": {"number": 15, "name": "SIGTERM"}}
    assert (ended.status, rank["exit"]) == (143, exited)
    assert "swept 1 leftover process of rank 0" in ended.stderr
    assert "killed" not in ended.stderr
    assert gone(helper)
    assert job.has("heard") == (stays == "handles it")
    assert marked(mark) == []


# --- Shells. -----------------------------------------------------------------------------------------------

# Counts what it gets, and saves in its own time.
COUNTS = """
count = 0
def heard(*_):
    global count
    count += 1
    tell(f"asked-{count}")
signal.signal(signal.SIGTERM, heard)
tell("ready", os.getpid())
await_file("asked-1.0")
await_file("go")
tell("saved", count)
"""
# By the name of a script's lines: whether the shell lives until its program has ended.
SHELLS = {
    "no trap": ("{python} train.py; echo not reached", False),
    "a trap and a program in the foreground": (
        "trap 'echo cleaned > cleaned' TERM; {python} train.py; true",
        True,
    ),
    "a trap that forwards": (
        "trap 'kill -TERM $child' TERM; {python} train.py & child=$!; wait $child; wait $child",
        True,
    ),
    "a trap that ends the shell": ("trap 'exit 9' TERM; {python} train.py & wait", False),
}


@pytest.mark.parametrize("kind", SHELLS)
@each("shell", ["sh", "bash"], first=1)
def test_programs_of_a_shell_script_have_the_grace_period(job: Job, mark: str, kind: str, shell: str) -> None:
    lines, outlives = SHELLS[kind]
    job.place.script(COUNTS)
    job.place.script(lines.format(python=sys.executable), "wrap.sh")
    with job.start(f"/bin/{shell}", "wrap.sh") as launcher:
        (program,) = job.place.ready(1)
        script = program.parent()
        assert script is not None
        launcher.terminate()
        job.await_file("asked-1")
        if not outlives:
            until(lambda: gone(script), "the shell's end")
        (job.place.folder / "go").touch()
        ended = Place.wait(launcher)
    assert ended.status == 143, ended.stderr
    assert job.place.text("saved.0") == "1", "one request is one signal"
    assert (job.place.folder / "cleaned").exists() == ("foreground" in kind)
    assert marked(mark) == []


# Programs that interpret a script by its `#!` line, which gives a process the name of the script.
SCRIPTS = {
    "a shell without a trap": ("#!/bin/sh", SHELLS["no trap"][0]),
    "bash without a trap": ("#!/bin/bash", SHELLS["no trap"][0]),
    "a shell with a trap": ("#!/bin/sh", SHELLS["a trap and a program in the foreground"][0]),
}


@pytest.mark.parametrize("kind", SCRIPTS)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_programs_of_an_executable_script_are_asked_at_once(
    tmp_path: Path, mark: str, kind: str, name: str
) -> None:
    """A shell catches SIGINT while it waits for a program: not to handle it, but to look at it later."""
    job = Job("torch", tmp_path, mark)
    interpreter, lines = SCRIPTS[kind]
    job.place.script(COUNTS.replace("SIGTERM", name))
    lines = lines.format(python=sys.executable).replace("TERM", name.removeprefix("SIG"))
    job.place.script(f"{interpreter}\n{lines}\n", "train.sh")
    (job.place.folder / "train.sh").chmod(0o755)
    # The last call comes at the end of the grace period, minutes after this wait has failed.
    with job.start("./train.sh") as launcher:
        job.place.ready(1)
        launcher.send_signal(signal.Signals[name])
        job.await_file("asked-1")
        (job.place.folder / "go").touch()
        ended = Place.wait(launcher)
    assert ended.status == 128 + signal.Signals[name], ended.stderr
    assert job.place.text("saved.0") == "1", "one request is one signal"
    assert marked(mark) == []


# --- Helpers of Python and of torch. -----------------------------------------------------------------------

MANAGED = """
import multiprocessing
if __name__ == "__main__":
    asked_by = []
    manager = multiprocessing.Manager()
    signal.signal(signal.SIGTERM, lambda number, _: asked_by.append(number))
    steps = manager.list()
    tell("ready", os.getpid())
    until(lambda: asked_by, "a request")
    for step in range(8):
        time.sleep(0.02)
        steps.append(step)
    tell("saved", len(steps))
"""


def test_a_manager_lives_while_its_rank_saves(job: Job, mark: str) -> None:
    job.place.script(MANAGED)
    with job.start(*PYTHON, ranks=2) as launcher:
        job.place.ready(2)
        launcher.terminate()
        ended = Place.wait(launcher)
    assert [job.place.text(f"saved.{rank}") for rank in (0, 1)] == ["8", "8"], ended.stderr
    assert marked(mark) == []


LOADS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        time.sleep(0.001)
        return index

if __name__ == "__main__":
    # More than the workers have fetched ahead.
    asked_by, steps_left = [], 24
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked_by.append(number))
    for step, batch in enumerate(DataLoader(Numbers(), batch_size=4, num_workers=4)):
        if step == 4:
            tell("ready", os.getpid())
            if FAILS and rank == 1:
                await_file("ready.0")
                os._exit(3)
        steps_left -= bool(asked_by)
        if not steps_left:
            tell("saved", step)
            break
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "preload", "failure"])
def test_data_loader_workers_live_while_a_rank_saves(tmp_path: Path, mark: str, how: str) -> None:
    """`preload`: ranks that are forked from a process with torch."""
    job = Job("torch" if how in ("SIGINT", "failure") else "paddle", tmp_path, mark)
    options = ["--preload=torch"] if how in ("preload", "failure") else []
    job.place.script(LOADS.replace("FAILS", str(how == "failure")))
    words = [f"--nproc_per_node={2 if options else 1}", *options, "train.py"]
    ranks = 2 if how == "preload" else 1
    with job.place.start(*words, env=job.env) as launcher:
        job.place.ready(ranks)
        if how != "failure":
            launcher.send_signal(signal.SIGINT if how == "SIGINT" else signal.SIGTERM)
        ended = Place.wait(launcher)
    assert job.has("saved", ranks), ended.stderr
    assert "DataLoader worker" not in ended.stderr
    assert marked(mark) == []
