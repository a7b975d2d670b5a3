"""Restarts of `python -m rlaunch.run`: `--max-restarts`, the store of each attempt, events."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import marked
from torch_launching import ESCAPED, TorchPlace

# A client of torch's store: its framing is little-endian, its keys and values have their length before them.
STORE = r"""
import socket, struct

def connect():
    store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 20)
    store.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE))
    return store

def text(value):
    return struct.pack("<Q", len(value)) + value

def exchange(store, request, length):
    store.sendall(request)
    reply = b""
    while len(reply) < length:
        more = store.recv(length - len(reply))
        assert more, "the store has hung up"
        reply += more
    return reply

def put(store, key, value):
    store.sendall(b"\1" + text(key) + text(value))

def has(store, key):
    return exchange(store, b"\5" + struct.pack("<Q", 1) + text(key), 1) == b"\0"

def add(store, key, number):
    return struct.unpack("<q", exchange(store, b"\4" + text(key) + struct.pack("<q", number), 8))[0]

def await_count(store, key, count):
    deadline = time.monotonic() + 60
    while add(store, key, 0) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)
"""


@pytest.fixture
def place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


def test_a_failed_job_is_restarted_until_it_succeeds(place: TorchPlace) -> None:
    place.script("""
        variables = {name: os.environ[name] for name in (
            "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE",
            "TORCHELASTIC_RUN_ID", "MASTER_PORT", "MASTER_ADDR",
        )}
        tell(f"variables-{attempt}", json.dumps(variables))
        if attempt < 2:
            if rank == 1:
                await_file(f"variables-{attempt}.0")
                sys.exit(f"attempt {attempt} fails")
            sleep()
    """)
    options = ("--nproc-per-node=2", "--max-restarts=3", "--log-dir=log")
    ended = place.well(*options, "train.py", env=place.environment(LOGLEVEL="INFO"))
    variables = [
        [json.loads(place.text(f"variables-{attempt}.{rank}")) for rank in (0, 1)] for attempt in range(3)
    ]
    for attempt, ranks in enumerate(variables):
        for rank, about in enumerate(ranks):
            assert about["TORCHELASTIC_RESTART_COUNT"] == str(attempt)
            assert about["TORCHELASTIC_MAX_RESTARTS"] == "3"
            expected = place.run_folder() / f"attempt_{attempt}/{rank}/error.json"
            assert about["TORCHELASTIC_ERROR_FILE"] == str(expected)
            assert expected.parent.is_dir()
    # The same address, for all attempts.
    assert (
        len({(a["MASTER_ADDR"], a["MASTER_PORT"], a["TORCHELASTIC_RUN_ID"]) for r in variables for a in r})
        == 1
    )
    for left in (3, 2):
        line = f"[default] Worker group FAILED. {left}/3 attempts left; will restart worker group"
        assert ended.stderr.count(line) == 1
    assert "FAILED\n" not in ended.stderr


@pytest.mark.parametrize("restarts", [0, 1, 5])
def test_a_job_that_fails_again_and_again_is_started_so_many_times(place: TorchPlace, restarts: int) -> None:
    place.script("""
        tell(f"attempt-{attempt}")
        sys.exit(20 + attempt)
    """)
    options = (f"--max-restarts={restarts}", "--role=r", "--log-dir=log")
    ended = place.run(*options, "train.py", env=place.environment(LOGLEVEL="INFO"))
    assert ended.status == 20 + restarts
    attempts = {name for name in place.names() if name.startswith("attempt-")}
    assert attempts == {f"attempt-{attempt}.0" for attempt in range(restarts + 1)}
    assert ended.stderr.count("will restart worker group") == restarts
    root = ended.stderr[ended.stderr.index("Root Cause") :]
    assert f"exitcode  : {20 + restarts} " in root
    assert restarts == 0 or f"in attempt {restarts}" in root


def test_the_same_failure_again_and_again_uses_up_all_restarts(place: TorchPlace) -> None:
    place.script("echo >> tries; exit 3", "fail.sh")
    ended = place.run("--max-restarts=8", "--no-python", "/bin/sh", "fail.sh")
    assert (ended.status, place.text("tries")) == (3, "\n" * 9)


def test_the_store_is_empty_in_each_attempt(place: TorchPlace) -> None:
    place.script(
        STORE
        + """
store = connect()
if has(store, b"/of an attempt"):
    os._exit(99)
add(store, b"/seen", 1)
await_count(store, b"/seen", 2)
if rank == 0:
    put(store, b"/of an attempt", b"x" * 3000000)
while not has(store, b"/of an attempt"):
    time.sleep(0.005)
tell(f"met-{attempt}")
if attempt < 3:
    await_file(f"met-{attempt}.{1 - rank}")
    os._exit(rank * 5)
"""
    )
    ended = place.well("--nproc-per-node=2", "--max-restarts=3", "train.py")
    assert {f"met-3.{rank}" for rank in (0, 1)} <= place.names()
    assert ended.stderr.count("; restart ") == 3


def test_processes_of_a_failed_attempt_are_gone_before_the_next(place: TorchPlace, mark: str) -> None:
    place.script(
        ESCAPED
        + """
if attempt == 0:
    escape()
    sys.exit(1)
pid = int(open("escaped.0").read())
tell("alive", os.path.exists(f"/proc/{pid}"))
"""
    )
    place.well("--max-restarts=1", "train.py", env=place.environment(MARK=mark))
    assert place.text("alive.0") == "False"
    assert marked(mark) == []


def events(stderr: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in stderr.splitlines() if line.startswith('{"')]


KEYS = {
    "run_id",
    "global_rank",
    "group_rank",
    "worker_id",
    "role",
    "hostname",
    "state",
    "total_run_time",
    "rdzv_backend",
    "raw_error",
    "metadata",
    "agent_restarts",
    "duration_ms",
}


def test_events_match_torchelastics(place: TorchPlace) -> None:
    place.script("""
        if attempt == 0 and rank == 1:
            sys.exit(4)
        if attempt == 0:
            sleep()
    """)
    options = ["--nproc-per-node=2", "--max-restarts=1", "--event-log-handler=console", "--role=w"]
    ended = place.well(*options, "--rdzv-backend=c10d", "--rdzv-id=JOB", "train.py")
    written = events(ended.stderr)
    assert [(event["source"], str(event["name"]).rpartition(".")[2]) for event in written] == [
        ("AGENT", "RENDEZVOUS"),
        ("AGENT", "ASSIGN_WORKER_RANKS"),
        ("WORKER", "START"),
        ("WORKER", "START"),
        ("AGENT", "RENDEZVOUS"),
        ("AGENT", "ASSIGN_WORKER_RANKS"),
        ("WORKER", "START"),
        ("WORKER", "START"),
        ("WORKER", "SUCCEEDED"),
        ("WORKER", "SUCCEEDED"),
        ("AGENT", "SUCCEEDED"),
    ]
    for event in written:
        assert event.keys() == {"name", "source", "timestamp", "metadata"}
        about = event["metadata"]
        assert isinstance(about, dict)
        assert about.keys() == KEYS
        assert event["name"] == f"torchelastic.worker.status.{about['state']}"
        assert (about["run_id"], about["role"], about["rdzv_backend"]) == ("JOB", "w", "c10d")
        details = json.loads(about["metadata"])
        assert details.keys() >= {"group_world_size", "entry_point"}
        if event["source"] == "WORKER":
            assert [about["global_rank"]] == details["local_rank"] == details["role_rank"]
            assert re.fullmatch(r"\d+", about["worker_id"])
            assert details["role_world_size"] == [2]
    assert [event["metadata"]["agent_restarts"] for event in written] == [0] * 4 + [1] * 7  # type: ignore[index]


def test_events_of_a_failure(place: TorchPlace) -> None:
    place.script("""
        if rank == 1:
            open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write('{"message": "why", "timestamp": 1}')
            sys.exit(4)
        sleep()
    """)
    ended = place.run("--nproc-per-node=2", "--event-log-handler=console", "train.py")
    assert ended.status == 4
    last = events(ended.stderr)[-3:]
    states = {(event["source"], event["metadata"]["state"]) for event in last}  # type: ignore[index]
    assert states == {("WORKER", "TERMINATED"), ("WORKER", "FAILED"), ("AGENT", "FAILED")}
    (failed,) = [event["metadata"] for event in last if event["metadata"]["raw_error"]]  # type: ignore[index]
    assert json.loads(failed["raw_error"]) == {"message": "why", "timestamp": 1}  # type: ignore[index]
    assert json.loads(failed["metadata"])["exit_code"] == [4]  # type: ignore[index]


def test_no_event_is_written_unless_requested(place: TorchPlace) -> None:
    place.script("pass")
    for options in ([], ["--event-log-handler=null"], ["--event-log-handler=dynamic_rendezvous"]):
        ended = place.well(*options, "train.py")
        assert (ended.stdout, ended.stderr) == (b"", "")


def test_the_store_is_there_for_ranks_that_are_late_and_gone_with_the_job(place: TorchPlace) -> None:
    place.script(
        STORE
        + """
tell("address", json.dumps([os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])]))
store = connect()
if rank == 0:
    sys.exit(0)
await_file("address.0")
put(store, b"/k", b"v")
assert has(store, b"/k")
"""
    )
    place.well("--nproc-per-node=2", "train.py")
    host, port = json.loads(place.text("address.1"))
    probe = f"import socket; socket.create_connection(({host!r}, {port}), 5)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False)
    assert b"ConnectionRefusedError" in done.stderr


def test_only_loopback_hears_the_store_of_one_node(place: TorchPlace) -> None:
    place.script("""
        port = int(os.environ["MASTER_PORT"])
        found = []
        for name in ("tcp", "tcp6"):
            for line in open(f"/proc/net/{name}").read().splitlines()[1:]:
                local, state = line.split()[1], line.split()[3]
                address, _, number = local.partition(":")
                if state == "0A" and int(number, 16) == port:
                    found.append(address)
        tell("found", json.dumps(found))
    """)
    place.well("train.py")
    loopback = {"0100007F", "00000000000000000000000001000000"}
    found = json.loads(place.text("found.0"))
    assert found
    assert set(found) <= loopback
