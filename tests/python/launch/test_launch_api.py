"""``rlaunch.launch``: its arguments, its results and exceptions, and where output goes."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import rlaunch
from launching import STEERING, Host, Place

FAIL = "tell('ready', os.getpid()); sys.exit(3 if rank == 1 else sleep())"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if STEERING.match(name)]:
        monkeypatch.delenv(name)
    return Host(tmp_path)


# --- Reports and errors. ----------------------------------------------------------------------------------


def test_a_successful_job_returns_its_report(place: Host) -> None:
    place.script("tell('ready', os.getpid())")
    report = rlaunch.launch("train.py", nproc_per_node=2, job_id="mine")
    assert (report.outcome, report.exit_status, report.culprit, report.restarts) == ("completed", 0, None, 0)
    assert (report.job_id, report.log_dir) == ("mine", str(place.folder / "log"))
    assert (report.attempts, report.swept, report.verdict) == ((), 0, None)
    assert [rank.pid for rank in report.ranks] == [int(place.text(f"ready.{rank}")) for rank in range(2)]
    for number, rank in enumerate(report.ranks):
        assert (rank.rank, rank.local_rank, rank.status, rank.exitcode) == (number, number, "succeeded", 0)
        assert rank.log == str(place.folder / f"log/workerlog.{number}")
        assert rank.seconds is not None
        assert 0 < rank.seconds < 40
        assert rank.peak_memory_bytes is not None
        assert rank.peak_memory_bytes > 1 << 20


def test_a_failure_raises_with_the_report(place: Host, capsys: pytest.CaptureFixture[str]) -> None:
    place.script(FAIL)
    with pytest.raises(rlaunch.WorkerError) as caught:
        rlaunch.launch(Path("train.py"), nproc_per_node=2)
    error, report = caught.value, caught.value.report
    assert isinstance(error, RuntimeError)
    assert (report.outcome, report.exit_status, report.culprit) == ("failed", 3, 1)
    assert [(rank.status, rank.exitcode, rank.told) for rank in report.ranks] == [
        ("stopped", -15, True),
        ("failed", 3, False),
    ]
    assert report.attempts == (), "none was followed by another"
    assert str(error) == report.verdict == place.result()["verdict"]
    assert str(error).startswith("rank 1 failed: exit code 3\n")
    # The exception has it; stderr ends with what scripts of Paddle's users look for.
    out, err = capsys.readouterr()
    assert "rank 1 failed" not in out + err
    assert re.search(r"Container failed !!!\nContainer rank 1 .*\nLAUNCH INFO .* Exit code 3\n$", err)


def test_ranks_that_fail_at_one_moment_have_their_own_exit_codes(place: Host) -> None:
    place.script("""
        import atexit
        if rank == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            atexit.register(sleep)
            atexit.register(tell, "exiting")
            raise ValueError("bad sample 17")
        await_file("exiting.0")
        sys.exit(4)
    """)
    with pytest.raises(rlaunch.WorkerError) as caught:
        rlaunch.launch(Path("train.py"), nproc_per_node=2)
    report = caught.value.report
    assert report.exit_status == report.ranks[report.culprit or 0].exitcode
    assert [(rank.exitcode, rank.told) for rank in report.ranks] == [(1, True), (4, False)]


def test_an_uncaught_error_is_on_the_screen_once(place: Host) -> None:
    place.script(FAIL)
    place.host('rlaunch.launch("train.py", nproc_per_node=2)')
    ended = place.run()
    assert ended.status == 1
    _, mark, error = ended.stderr.partition("rlaunch.errors.WorkerError: rank 1 failed: exit code 3\n")
    assert (ended.stderr.count("rank 1 failed"), bool(mark)) == (1, True)
    assert error.endswith("\nexit status 3\n")


def test_the_report_matches_the_file(place: Host) -> None:
    place.script("tell('ready', os.getpid())")
    report = rlaunch.launch("train.py", nproc_per_node=2)
    file = place.result()
    for name in ("outcome", "exit_status", "culprit", "restarts", "swept", "job_id", "host", "log_dir"):
        assert getattr(report, name) == file[name]
    for rank, said in zip(report.ranks, file["ranks"], strict=True):
        for field in dataclasses.fields(rank):
            assert field.name == "exitcode" or getattr(rank, field.name) == said[field.name]


def test_reports_and_errors_are_values(place: Host) -> None:
    place.script(FAIL)
    with pytest.raises(rlaunch.WorkerError) as caught:
        rlaunch.launch("train.py", nproc_per_node=2)
    report = caught.value.report
    copy = pickle.loads(pickle.dumps(report))
    assert (copy, hash(copy)) == (report, hash(report))
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.outcome = "completed"  # type: ignore[misc]
    error = pickle.loads(pickle.dumps(caught.value))
    assert (type(error), str(error), error.report) == (rlaunch.WorkerError, str(caught.value), report)
    refusal = pickle.loads(pickle.dumps(rlaunch.LaunchError("no", 66)))
    assert (str(refusal), refusal.status) == ("no", 66)


def test_restarts_are_reported(place: Host) -> None:
    place.script("os.path.exists('again') or (tell('x'), os.rename('x.0', 'again'), os.kill(os.getpid(), 9))")
    report = rlaunch.launch("train.py", max_restart=2, restart_delay=0)
    assert (report.restarts, [one.exitcode for one in report.attempts]) == (1, [-9])
    assert (report.ranks[0].attempt, report.ranks[0].exitcode) == (1, 0)


def test_a_job_that_is_stopped_from_outside(place: Host) -> None:
    place.script("os.kill(os.getppid(), signal.SIGTERM); sleep()")
    with pytest.raises(rlaunch.WorkerError, match="SIGTERM") as caught:
        rlaunch.launch("train.py")
    assert (caught.value.report.outcome, caught.value.report.exit_status) == ("stopped", 143)


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        ({"script": "nope.py"}, 66, "nope.py: does not exist"),
        ({"script": "t.py", "nproc_per_node": "two"}, 2, "--nproc_per_node two: is not a whole number"),
        ({"script": "t.py", "log_dir": "t.py"}, 66, "t.py"),
        ({"script": "./bad", "no_python": True}, 71, "cannot start rank 0"),
    ],
)
def test_commands_that_cannot_run_are_refused(
    place: Host, capsys: pytest.CaptureFixture[str], options: dict[str, Any], status: int, why: str
) -> None:
    place.script("", "t.py")
    (place.folder / "bad").write_bytes(b"\x7fELF no program")
    (place.folder / "bad").chmod(0o755)
    with pytest.raises(rlaunch.LaunchError, match=re.escape(why)) as caught:
        rlaunch.launch(**options)
    assert caught.value.status == status
    # The exception has the error: the launcher does not print it too.
    assert "rlaunch: error:" not in capsys.readouterr().err


def test_nodes_that_do_not_come_are_no_failure_of_a_rank(place: Host) -> None:
    place.script("")
    with pytest.raises(rlaunch.LaunchError, match="not come together within 1 s: 1 of 2") as caught:
        rlaunch.launch("train.py", nnodes=2, host="127.0.0.1", join_timeout=1)
    assert caught.value.status == 73


def test_an_older_result_is_not_mistaken_for_this_jobs(place: Host) -> None:
    place.script("")
    rlaunch.launch("train.py")
    with pytest.raises(rlaunch.LaunchError):
        rlaunch.launch("nope.py")


# --- Arguments. -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("nproc_pre_node", "nproc_per_node"),
        ("nprocs", "nproc_per_node"),
        ("nproc", "nproc_per_node"),
        ("gpu", "gpus"),
        ("logdir", "log_dir"),
        ("zzzzzz", None),
    ],
)
def test_an_option_that_does_not_exist(place: Host, name: str, near: str | None) -> None:
    hint = f"; did you mean '{near}'?" if near else ""
    with pytest.raises(TypeError, match=re.escape(f"launch() has no option '{name}'{hint}") + "$"):
        rlaunch.launch("train.py", **{name: 1})
    assert place.names() == set()


def test_a_plan_alone_is_no_launch(place: Host) -> None:
    with pytest.raises(TypeError, match="no option 'dry_run'"):
        rlaunch.launch("train.py", dry_run="json")


@pytest.mark.parametrize(("words", "kind"), [(["--lr", "0.1"], "list"), (("--lr", "0.1"), "tuple")])
def test_a_list_is_no_argument_of_the_script(place: Host, words: Any, kind: str) -> None:
    wanted = f"argument 2 of the script is a {kind}, {words!r}; give each word as an argument of its own"
    with pytest.raises(TypeError, match=re.escape(wanted)):
        rlaunch.launch("train.py", "fit", words)
    assert place.names() == set()


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"B": "b", "A": 1}, "env['A'] must be text, but got 1 of type int"),
        ({"A": None}, "env['A'] must be text, but got None of type NoneType"),
        ({1: "a"}, "a name in env must be text, but got 1 of type int"),
    ],
)
def test_a_variable_is_text(place: Host, env: Any, wanted: str) -> None:
    with pytest.raises(TypeError, match=re.escape(wanted) + "$"):
        rlaunch.launch("train.py", env=env)
    assert place.names() == set()


def test_options_and_arguments_become_a_command_line(place: Host) -> None:
    package = place.folder / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    place.script("tell('argv', repr(sys.argv[1:]))", "pack/train.py")
    report = rlaunch.launch(
        *("pack.train", "--lr", 0.1, 3, Path("a b"), b"\xff", ""),
        module=True,
        no_python=False,
        nproc_per_node=2,
        log_dir=place.folder / "logs",
        log_overwrite=True,
        console_ranks=[0, 1],
        max_restart=None,
    )
    assert report.log_dir == str(place.folder / "logs")
    assert place.text("argv.1") == repr(["--lr", "0.1", "3", "a b", "\udcff", ""])


def test_variables_and_folder(place: Host) -> None:
    (place.folder / "sub").mkdir()
    place.script("tell('env', os.environ['MINE']); print(os.getcwd())", "sub/train.py")
    report = rlaunch.launch(
        "train.py", cwd=place.folder / "sub", env={"MINE": "ü", "PADDLE_LOG_DIR": "there"}
    )
    assert report.log_dir == str(place.folder / "sub/there")
    assert place.text("sub/env.0") == "ü"
    assert place.log(folder="sub/there").decode() == f"{place.folder / 'sub'}\n"
    assert "MINE" not in os.environ


def test_a_folder_that_is_not_there(place: Host) -> None:
    with pytest.raises(FileNotFoundError):
        rlaunch.launch("train.py", cwd="nope")


def test_a_rank_gets_no_more_than_from_the_command_line(place: Host) -> None:
    plain = Place(place.folder).tell("--nproc_per_node=1")[0]
    rlaunch.launch("tell.py", nproc_per_node=1)
    seen = place.seen()[0]
    assert set(seen["env"]) - {"PYTEST_CURRENT_TEST"} == set(plain["env"]) - {"PYTEST_CURRENT_TEST"}
    assert (len(seen["fds"]), seen["command"]) == (len(plain["fds"]), plain["command"])
    assert seen["session"] == seen["pid"]


# --- Output. ----------------------------------------------------------------------------------------------

LINES = "for i in range(20000): print('line', i, 'ü' * 20)"


def test_captured_output_is_whole(place: Host, capsys: pytest.CaptureFixture[str]) -> None:
    place.script(LINES + "\nsys.stdout.write('no end')")
    rlaunch.launch("train.py")
    out, err = capsys.readouterr()
    assert out == "".join(f"line {i} {'ü' * 20}\n" for i in range(20000)) + "no end"
    assert err.endswith("Exit code 0\n")


def test_one_stream_may_be_replaced(place: Host) -> None:
    place.script("sys.stdout.buffer.write(b'a\\xffb\\n')")
    place.host(
        """
        import contextlib, io
        with contextlib.redirect_stdout(io.StringIO()) as out:
            rlaunch.launch("train.py")
        assert out.getvalue() == "a\\ufffdb\\n", out.getvalue()
        """
    )
    ended = place.run()
    assert (ended.status, ended.stdout) == (0, b"")
    assert ended.stderr.endswith("Exit code 0\n")


def test_a_plain_script_has_every_byte_in_order(place: Host) -> None:
    place.script("sys.stdout.buffer.write(b'a\\xffb\\n')")
    place.host("print('before'); rlaunch.launch('train.py', log_level='ERROR'); print('after')")
    assert place.run().stdout == b"before\na\xffb\nafter\n"


class Odd(io.StringIO):
    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file")


def test_a_stream_that_takes_nothing_stops_no_rank(place: Host) -> None:
    place.script(LINES)
    with contextlib.redirect_stdout(Odd()), contextlib.redirect_stderr(Odd()):
        assert rlaunch.launch("train.py").outcome == "completed"
    assert place.log().count(b"\n") == 20000


def test_the_types_are_there_for_the_asking() -> None:
    for name in ("Report", "RankResult", "AttemptResult"):
        assert dataclasses.is_dataclass(getattr(rlaunch, name))
    with pytest.raises(AttributeError, match="nonsense"):
        rlaunch.nonsense  # noqa: B018


def test_a_rank_may_launch(place: Host) -> None:
    place.script("tell('inner', os.environ['PADDLE_TRAINERS_NUM'])", "inner.py")
    place.script(
        """
        import rlaunch
        report = rlaunch.launch("inner.py", nproc_per_node=3, log_dir="inner")
        tell("report", [report.outcome, len(report.ranks), report.log_dir])
        """,
        "outer.py",
    )
    assert rlaunch.launch("outer.py").outcome == "completed"
    assert place.text("report.0") == str(["completed", 3, str(place.folder / "inner")])
    assert [place.text(f"inner.{rank}") for rank in range(3)] == ["3"] * 3


def test_a_host_that_collects_every_child(place: Host) -> None:
    """The launcher's status is lost; its report is not."""
    place.script("sys.exit(5)")
    place.host(
        """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            rlaunch.launch("train.py")
        except rlaunch.WorkerError as error:
            print(error.report.exit_status)
        """
    )
    ended = place.run()
    assert (ended.status, ended.stdout) == (0, b"5\n")
