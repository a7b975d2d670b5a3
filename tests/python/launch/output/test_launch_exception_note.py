"""The exception that a rank's own Python notes as the one that ended it (`rlaunch_rank.py`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launching import Place
from test_launch_blame import LAUNCHERS, paddles

# What rank 1 imports and registers before its exception, which is noted before it takes its time to exit.
# Modules are noticed when another one is imported.
SLOW_EXITS = {
    "atexit": "import atexit, threading, logging; atexit.register(sleep); atexit.register(tell, 'exiting')",
    "pool": """
        import threading, logging
        from concurrent.futures import ThreadPoolExecutor
        import csv
        ThreadPoolExecutor(1).submit(lambda: (await_noted(), tell("exiting"), sleep()))
    """,
}
# A thread of the pool goes on as soon as the rank has noted its exception.
AWAIT_NOTED = """
def await_noted():
    until(lambda: b"what" in open(os.environ["RLAUNCH_EXCEPTION_FILE"], "rb").read(), "a note")
"""


def words(text: str) -> str:
    return " ".join(text.split())


@LAUNCHERS
@pytest.mark.parametrize("exits", SLOW_EXITS)
def test_of_two_ranks_that_fail_by_themselves_the_first_exception_counts(
    launch: object, exits: str, tmp_path: Path
) -> None:
    assert callable(launch)
    setup = SLOW_EXITS[exits].replace("\n        ", "\n    ").strip()
    script = f"""
if rank == 1:
    {setup}
    raise KeyError("step")
if rank == 2:
    sleep()
await_file("exiting.1")
raise ValueError("no file of rank 1")
"""
    ended = launch(tmp_path, AWAIT_NOTED + script, 3, framework=None)
    assert ended.status == 1
    place_of = rf"{re.escape(str(tmp_path))}/train\.py:\d+ in <module>"
    said = words(ended.stderr)
    if launch is paddles:
        lines = ended.stderr.partition("- ERROR LOG DETAIL -------------------------\n")[2].splitlines()
        assert lines[0] == "rank 1 failed: KeyError: 'step'", ended.stderr
    else:
        others, root = ended.stderr.split("Root Cause (first observed failure):")
        assert "\n  exception : KeyError: 'step'\n" in root
        assert "\n  rank      : 0 (local_rank: 0)\n" in others
        assert "\n  exception : ValueError: no file of rank 1\n" in others
        assert re.search(rf"\n  at        : {place_of}\n", others)
    assert "still exiting when rank 0 failed too and exited; then it was stopped" in said
    other = r"rank 0 failed too, with exit code 1 \(lived [^)]*\): ValueError: no file of rank 1, at "
    assert re.search(rf"{other}{place_of} rank 2 was stopped because of it", said), said


def test_the_way_out_of_a_missing_variable_is_said_of_a_rank_that_was_still_exiting(place: Place) -> None:
    """Both are said: why a rank that was stopped is to blame, and what to do."""
    place.script(f"""
if rank == 1:
    {SLOW_EXITS["atexit"]}
else:
    await_file("exiting.1")
os.environ["RANK"]
""")
    said = words(place.run("--nproc_per_node=2", "train.py").stderr)
    assert "rank 1 failed: KeyError: 'RANK'" in said
    assert (
        "it had failed, and was still exiting when rank 0 failed too and exited; then it was stopped" in said
    )
    assert "this job does not set torch's RANK: start it with --frameworks torch" in said


# Scripts of one rank, what the report says, and what it must not say.
HOOK = """
import traceback
def hook(*error):
    traceback.print_exception(*error)
    sys.stderr.flush()
    os._exit(7)
sys.excepthook = hook
raise ValueError("loss is nan")
"""
UNPRINTABLE = """
class Unprintable(Exception):
    def __str__(self):
        return self.missing

raise Unprintable(5)
"""
RETRIED = """
import traceback
try:
    raise ValueError("retry 1 of the download failed")
except ValueError:
    traceback.print_exc()
sys.excepthook = lambda *error: print("*** notified", file=sys.stderr)
raise ValueError("loss is nan")
"""
CONSOLE = """
import code
code.InteractiveInterpreter().runcode("raise KeyError('cache')")
sys.exit("data set 7 is empty")
"""
DAEMON = """
if os.fork() == 0:
    if os.fork() == 0:
        launcher = int(os.environ["RLAUNCH_EXCEPTION_FILE"].split("/")[2])
        until(lambda: os.getppid() == launcher, "the launcher as its parent")
        os.execv(sys.executable, [sys.executable, "-c", HELPER])
    os._exit(0)
os.wait()
await_file("helped.0")
raise ValueError("loss is nan")
"""
HELPER = """
import atexit, os
atexit.register(lambda: os.rename("helping", "helped.0"))
open("helping", "w").close()
raise OSError("helper cannot bind")
"""
OLD = """
import traceback
try:
    raise KeyError("cache")
except KeyError:
    traceback.print_exc()
for epoch in range(100):
    print("epoch", epoch, file=sys.stderr)
print("FATAL: NaN in loss", file=sys.stderr, flush=True)
os._exit(3)
"""
CAUGHT_OR_HOOK = (
    "the rank itself did not end by this exception: its program caught it, a hook of its own ended it, or a "
    "process that it started has printed it"
)


@pytest.mark.parametrize(
    ("script", "said", "not_said"),
    [
        pytest.param(HOOK, ["ValueError: loss is nan", CAUGHT_OR_HOOK], "another process", id="hook"),
        pytest.param(UNPRINTABLE, ["Unprintable: <exception str() failed>"], "did not end", id="unprintable"),
        pytest.param(RETRIED, ["ValueError: loss is nan"], "at .*retry|did not end", id="retried"),
        pytest.param(CONSOLE, ["data set 7 is empty", CAUGHT_OR_HOOK], "Traceback of", id="console"),
        pytest.param(DAEMON, ["ValueError: loss is nan"], "  OSError: helper cannot bind", id="daemon"),
        pytest.param(
            OLD,
            ["logged before: KeyError: 'cache' (caught), 101 lines", "exit code 3"],
            "^  KeyError",
            id="old",
        ),
    ],
)
def test_what_ended_one_rank(place: Place, script: str, said: list[str], not_said: str) -> None:
    place.script(f"HELPER = {HELPER!r}\n{script}")
    ended = place.run("--nproc_per_node=1", "train.py")
    _, found, report = ended.stderr.partition("- ERROR LOG DETAIL -------------------------\n")
    assert found, ended.stderr
    # The last lines are quoted.
    own = "\n".join(line for line in report.splitlines() if not line.startswith("  |"))
    for text in said:
        assert text in words(report), report
    assert not re.search(not_said, own), report


def test_a_reason_that_is_far_from_the_end_is_none(place: Place) -> None:
    place.script(OLD)
    assert place.run("--nproc_per_node=1", "train.py").status == 3
    assert "KeyError" not in str(place.result()["reason"])


def test_lines_and_records_name_one_culprit_though_a_victim_ends_first(place: Place) -> None:
    """Of each attempt: of the one that is followed by another, and of the last."""
    place.script("""
        import atexit
        attempt = os.environ["RLAUNCH_RANK_KEY"].split("/")[1]
        if rank == 1:
            atexit.register(sleep)
            atexit.register(tell, f"exiting{attempt}", 0)
            raise KeyError("step")
        await_file(f"exiting{attempt}.1")
        raise RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer [127.0.0.1]:1")
    """)
    restarts = ("--max_restart=1", "--restart_delay=0", "--same_failure_limit=2")
    ended = place.run("--nproc_per_node=2", *restarts, "train.py")
    result = place.result()
    (attempt,) = result["attempts"]
    (restarting,) = [one for one in place.events() if one["event"] == "restarting"]
    for record in (attempt, restarting):
        assert (record["culprit"], record["exit"]) == (1, {"code": 1}), record
    assert restarting["message"] == "KeyError: 'step'"
    assert "rank 1 failed first: KeyError: 'step'; restart 1 (at most 1) at once" in ended.stderr
    assert (result["culprit"], result["reason"]) == (1, "KeyError: 'step'")
    job_culprit = result["job_culprit"]
    assert (job_culprit["rank"], job_culprit["exception"]) == (1, "KeyError")
    assert (ended.status, result["ranks"][1]["exit"]) == (1, {"code": 1})
    (refused,) = [one for one in place.events() if one["event"] == "not_restarting"]
    assert "2" in str(refused), "the same rank failed twice"


def test_the_place_of_sys_exit_in_a_coroutine(place: Place) -> None:
    """The task keeps the exception."""
    (place.folder / "train.py").write_text("""
import asyncio, sys
async def main():
    sys.exit(3)
asyncio.run(main())
""")
    ended = place.run("--nproc_per_node=1", "train.py")
    assert ended.status == 3
    assert re.search(r"it called sys\.exit\(3\) at \S*train\.py:4 in main", words(ended.stderr)), ended.stderr
