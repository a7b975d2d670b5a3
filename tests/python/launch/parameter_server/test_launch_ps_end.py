"""The end of a job with servers: when all workers have exited successfully, servers finish or are stopped."""

from __future__ import annotations

import pytest
from launching import Place
from serving import script
from test_launch_ps import COUNTS, ONE_LATER_STAGE
from test_launch_report import checked

SERVES = """
    if role == "TRAINER":
        for other in {others}:
            await_file(f"ready.{{other}}")
        sys.exit(0)
    {handler}
    tell("ready", os.getpid())
    sleep()
"""
ALL = ["PSERVER.0", "PSERVER.1", "COORDINATOR.0", "HETER_TRAINER.0"]
ALL_LEGACY = ["--server_num=2", "--worker_num=2", "--coordinator_num=1", *ONE_LATER_STAGE]


def serve_for_ever(place: Place, others: list[str], handler: str = "pass") -> None:
    script(place, SERVES.format(others=others, handler=handler))


# Until the launcher has seen that the workers have exited.
OUTLIVES = """tell("ready", os.getpid())
    while "awaiting_servers" not in open("log/rlaunch/events.jsonl").read():
        time.sleep(0.01)
    """
AT_ONCE = [*COUNTS, "--server_timeout=0"]


def test_a_server_may_save_after_the_workers_have_exited(place: Place) -> None:
    serve_for_ever(place, ALL[:2], OUTLIVES + "tell('saved'); sys.exit(0)")
    ended = place.run(*COUNTS, "train.py")
    assert ended.status == 0, ended.stderr
    assert {"saved.PSERVER.0", "saved.PSERVER.1"} <= place.names()
    waits = "all workers have exited: waiting without a limit for server(s) 0, 1 to exit (--server_timeout)"
    assert waits in ended.stderr
    events, result = checked(place)
    (event,) = [event for event in events if event["event"] == "awaiting_servers"]
    assert (event["living"], event["living_roles"], event["limit_seconds"]) == ([0, 1], ["server"] * 2, None)
    assert not any(rank["told"] for rank in result["ranks"])


def test_a_server_that_cannot_save_fails_the_job(place: Place) -> None:
    serve_for_ever(place, ALL[:2], OUTLIVES + "sys.exit(3 if number == 1 else 0)")
    ended = place.run(*COUNTS, "train.py")
    assert ended.status == 3, ended.stderr
    assert "server 1 failed: exit code 3" in ended.stderr


def test_a_limit_for_servers_is_kept(place: Place) -> None:
    serve_for_ever(place, ALL[:2])
    ended = place.run(*COUNTS, "--server_timeout=0.5", "train.py")
    assert ended.status == 0, ended.stderr
    assert "waiting up to 0.5 s for server(s) 0, 1 to exit" in ended.stderr
    assert "all parameter server are killed" in ended.stderr


@pytest.mark.parametrize(("args", "others"), [(AT_ONCE, ALL[:2]), (ALL_LEGACY, ALL)])
def test_servers_are_stopped_once_all_workers_have_exited_successfully(
    place: Place, args: list[str], others: list[str]
) -> None:
    serve_for_ever(place, others)
    ended = place.run(*args, "train.py")
    assert ended.status == 0, ended.stderr
    assert "all parameter server are killed" in ended.stderr
    assert ("all coordinators are killed" in ended.stderr) == (others == ALL)
    assert ended.stderr.rstrip().endswith("Exit code 0")
    _, result = checked(place)
    assert (result["outcome"], result["culprit"], result["verdict"]) == ("completed", None, None)
    signalled = {(rank["role"], rank["told"]) for rank in result["ranks"]}
    assert signalled == {("rank", False)} | {
        (rank["role"], True) for rank in result["ranks"] if rank["role"] != "rank"
    }


def test_a_server_that_saves_when_asked_has_the_grace_to_do_so(place: Place) -> None:
    serve_for_ever(place, ALL[:2], "signal.signal(15, lambda *_: (tell('saved'), sys.exit(0)))")
    assert place.run(*AT_ONCE, "train.py").status == 0
    assert {"saved.PSERVER.0", "saved.PSERVER.1"} <= place.names()


def test_a_server_that_does_not_stop_is_killed_after_the_grace(place: Place) -> None:
    serve_for_ever(place, ALL[:2], "signal.signal(15, signal.SIG_IGN)")
    ended = place.run(*AT_ONCE, "--grace_period=0.2", "train.py")
    assert ended.status == 0, ended.stderr
    assert "sending SIGKILL to server(s) 0, 1" in ended.stderr
