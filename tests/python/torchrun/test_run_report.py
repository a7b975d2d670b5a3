"""How `python -m rlaunch.run` says what a job has failed of: its last block, its files, its exit status."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from torch_launching import TorchPlace

RECORDED = """
from rlaunch.errors import record

@record
def main():
    {body}

main()
"""
FIELDS = ["time", "host", "rank", "exitcode", "error_file", "traceback"]


@pytest.fixture
def place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


def report(stderr: str) -> tuple[str, str, str, str]:
    """Title, other failures, root cause and the rest of the last block on stderr."""
    found = re.search(
        r"\n(=+)\n(.*)\n(-+)\nFailures:\n(.*)\n\3\n"
        r"Root Cause \(first observed failure\):\n(.*?)\n\3\n(.*)\1\n$",
        stderr,
        re.S,
    )
    assert found, stderr
    assert len(found[1]) == len(found[3]) <= 60
    return found[2], found[4], found[5], found[6]


def fields(failure: str) -> dict[str, str]:
    """Those of one failure, by name, with all lines of each."""
    pairs = re.split(r"^  ([a-z_ ]{10}): ?", failure, flags=re.M)[1:]
    return {name.strip(): text.rstrip("\n") for name, text in zip(pairs[::2], pairs[1::2], strict=True)}


def test_the_report_of_an_error_that_was_recorded(place: TorchPlace) -> None:
    place.script(RECORDED.format(body="raise ValueError('no such thing')"))
    ended = place.run("--log-dir=log", "train.py", "--lr", "1")
    assert ended.status == 1
    title, others, root, rest = report(ended.stderr)
    assert (title, others) == ("train.py FAILED", "  <NO_OTHER_FAILURES>")
    assert root.startswith("[0]:\n")
    known = fields(root)
    assert list(known)[:6] == FIELDS
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", known["time"])
    assert known["rank"] == "0 (local_rank: 0)"
    assert re.fullmatch(r"1 \(pid: \d+\) ", known["exitcode"])
    error_file = place.run_folder() / "attempt_0/0/error.json"
    assert known["error_file"] == str(error_file)
    said = json.loads(error_file.read_text())["message"]
    assert said["message"] == "ValueError: no such thing"
    assert known["traceback"] == said["extraInfo"]["py_callstack"].rstrip().replace("\n", "\n  ")
    assert known["exception"] == "ValueError: no such thing"
    assert rest == "exit status 1\n"


def test_the_report_of_an_unmodified_script(place: TorchPlace) -> None:
    place.script("""
        def deep():
            raise KeyError("a key")
        if rank == 1:
            deep()
        sleep()
    """)
    ended = place.run("--nproc-per-node=2", "--log-dir=log", "train.py")
    assert ended.status == 1
    _, others, root, rest = report(ended.stderr)
    # A rank that was ended by the launcher has not failed.
    assert others == "  <NO_OTHER_FAILURES>"
    known = fields(root)
    assert known["rank"] == "1 (local_rank: 1)"
    assert known["error_file"] == "<N/A>"
    assert "KeyError: 'a key'" in known["traceback"]
    assert known["exception"] == "KeyError: 'a key'"
    assert "train.py" in known["at"]
    assert "in deep" in known["at"]
    assert known["log_file"] == str(place.run_folder() / "rlaunch/attempt_0/1/stderr.log")
    assert "rank 0" in rest


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{{{", None),
        ("[1, 2]", None),
        ('{"message": "short words", "timestamp": 12}', "short words"),
        (
            '{"message": {"message": "E", "extraInfo": {"py_callstack": "its\\ncalls", "timestamp": "1"}}}',
            "its\n  calls",
        ),
        ('{"message": {"message": "E: x"}}', "E: x"),
    ],
)
def test_an_error_file_is_read_in_both_forms_and_ignored_in_others(
    place: TorchPlace, content: str, expected: str | None
) -> None:
    place.script("""
        open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(sys.argv[1])
        sys.exit("final text")
    """)
    ended = place.run("--log-dir=log", "train.py", content)
    assert ended.status == 1
    known = fields(report(ended.stderr)[2])
    error_file = str(place.run_folder() / "attempt_0/0/error.json")
    if expected is None:
        assert f"{error_file}: not an error file" in ended.stderr
        assert (known["error_file"], known["traceback"]) == ("<N/A>", "<N/A>")
        assert known["last lines"].split() == ["final", "text"]
    else:
        assert (known["error_file"], known["traceback"]) == (error_file, expected)


LOG = "print('epoch 1 done', file=sys.stderr)\n"
REFUSING = "import argparse\nargparse.ArgumentParser().parse_args(['--rate'])"
CHAINED = "try:\n    {}[0]\nexcept KeyError as error:\n    raise ValueError('second') from error"


@pytest.mark.parametrize(
    ("body", "tracebacks", "field"),
    [
        ("sys.exit(3)", 0, "last lines"),
        (REFUSING, 0, "last lines"),
        ("1 / 0", 1, "before"),
        (CHAINED, 2, "before"),
    ],
    ids=["exit", "refusal", "exception", "chain"],
)
def test_a_line_of_a_log_is_no_traceback(place: TorchPlace, body: str, tracebacks: int, field: str) -> None:
    place.script("")
    with open(place.folder / "train.py", "a") as file:
        file.write(LOG + body)
    known = fields(report(place.run("train.py").stderr)[2])
    assert known["traceback"].count("Traceback (most recent call last)") == tracebacks
    assert known["traceback"].startswith("Traceback" if tracebacks else "<N/A>")
    assert "epoch 1 done" in known[field], known
    assert "epoch 1 done" not in known["traceback"]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"])
def test_a_signal_is_named(place: TorchPlace, name: str) -> None:
    number = int(getattr(signal, name))
    place.script(f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), {number})
    """)
    ended = place.run("train.py")
    assert ended.status == 128 + number
    known = fields(report(ended.stderr)[2])
    found = re.fullmatch(rf"-{number} \(pid: (\d+)\)  \({name}\)", known["exitcode"])
    assert found
    assert known["traceback"] == f"Signal {number} ({name}) received by PID {found[1]}"
    if name == "SIGKILL":
        assert known["cause"]


# Lets the launcher go on once all of these processes have ended.
GO_ON = """
import os, signal, sys, time
launcher, *pids = map(int, sys.argv[1:])
for pid in pids:
    while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.005)
os.kill(launcher, signal.SIGCONT)
"""


def test_ranks_that_had_failed_by_then_are_listed(place: TorchPlace) -> None:
    (place.folder / "go_on.py").write_text(GO_ON)
    place.script("""
        import subprocess
        tell("pid", os.getpid())
        if rank == 0:
            await_file("pid.1")
            await_file("pid.2")
            os.kill(os.getppid(), signal.SIGSTOP)
            pids = [str(os.getppid()), *(open(f"pid.{rank}").read() for rank in range(3))]
            subprocess.Popen([sys.executable, "go_on.py", *pids], start_new_session=True)
            tell("stopped")
        await_file("stopped.0")
        os._exit(10 + rank)
    """)
    ended = place.run("--nproc-per-node=3", "train.py")
    assert ended.status in (10, 11, 12)
    _, others, root, _ = report(ended.stderr)
    failures = [fields(text) for text in re.split(r"^\[\d\]:\n", others, flags=re.M)[1:]] + [fields(root)]
    codes = {failure["exitcode"].split()[0] for failure in failures}
    assert codes == {"10", "11", "12"}
    assert re.findall(r"^\[(\d)\]:$", others, re.M) == ["1", "2"]


def test_a_victim_that_ends_first_is_not_the_culprit(place: TorchPlace) -> None:
    place.script("""
        def leave(*_):
            os._exit(77)
        signal.signal(signal.SIGTERM, leave)
        tell("here")
        if rank == 1:
            await_file("here.0")
            os._exit(5)
        sleep()
    """)
    ended = place.run("--nproc-per-node=2", "train.py")
    assert ended.status == 5
    _, others, root, rest = report(ended.stderr)
    assert others == "  <NO_OTHER_FAILURES>"
    assert fields(root)["rank"] == "1 (local_rank: 1)"
    assert fields(root)["exitcode"].startswith("5 ")
    assert "rank 0" in rest


def test_the_first_failure_is_the_culprit_though_its_rank_took_longest_to_end(place: TorchPlace) -> None:
    place.script("""
        import atexit
        from rlaunch.errors import record

        @record
        def main():
            if rank == 0:
                atexit.register(sleep)
                atexit.register(tell, "printed")
                raise ValueError("the cause")
            of_rank_0 = os.environ["TORCHELASTIC_ERROR_FILE"].replace("/1/error", "/0/error")
            await_file(of_rank_0)
            await_file("printed.0")
            # Long ago: what is compared are times, by ticks of the kernel.
            os.utime(of_rank_0, (1e9, 1e9))
            os._exit(4)

        main()
    """)
    env = place.environment(TORCHELASTIC_ERROR_FILE=str(place.folder / "own.json"))
    ended = place.run("--nproc-per-node=2", "--log-dir=log", "train.py", env=env)
    # Its own end was the launcher's doing.
    assert ended.status == 4
    _, others, root, rest = report(ended.stderr)
    known = fields(root)
    assert (known["rank"], known["exception"]) == ("0 (local_rank: 0)", "ValueError: the cause")
    assert "wrote its error file before any other rank ended" in known["cause"]
    assert fields(others)["rank"] == "1 (local_rank: 1)"
    assert "rank 1 failed too, with exit code 4" in rest
    assert json.loads(place.text("own.json"))["message"]["message"] == "ValueError: the cause"
    assert place.result_of_run()["culprit"] == 0


def test_an_error_that_the_stop_itself_brought_about_is_no_cause(place: TorchPlace) -> None:
    place.script("""
        from rlaunch.errors import record

        def stop(*_):
            raise RuntimeError("asked to stop")

        @record
        def main():
            signal.signal(signal.SIGTERM, stop)
            tell("here")
            if rank == 1:
                await_file("here.0")
                os._exit(5)
            sleep()

        main()
    """)
    ended = place.run("--nproc-per-node=2", "--log-dir=log", "train.py")
    assert (place.run_folder() / "attempt_0/0/error.json").exists()
    assert ended.status == 5
    assert fields(report(ended.stderr)[2])["rank"] == "1 (local_rank: 1)"
    assert report(ended.stderr)[1] == "  <NO_OTHER_FAILURES>"


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (["-m", "mod"], "mod FAILED"),
        (["--no-python", "./fail.sh", "x"], "./fail.sh FAILED"),
        (["train.py", "-x", "--y"], "train.py FAILED"),
        (["--run-path", "{folder}/train.py"], "run_script_path FAILED"),
    ],
)
def test_the_title(place: TorchPlace, words: list[str], title: str) -> None:
    place.script("sys.exit(9)", "mod.py")
    place.script("sys.exit(9)")
    place.script("#!/bin/sh\nexit 9\n", "fail.sh")
    (place.folder / "fail.sh").chmod(0o755)
    ended = place.run(*(word.format(folder=place.folder) for word in words))
    assert ended.status == 9
    assert report(ended.stderr)[0] == title


OWN = "own/error.json"


@pytest.mark.parametrize("there", [None, '{"message": "of an earlier one", "timestamp": 1}'])
def test_the_launchers_own_error_file_gets_the_root_cause(place: TorchPlace, there: str | None) -> None:
    place.script(RECORDED.format(body="time.sleep(0) if rank == 0 else 1 / 0"))
    (place.folder / "own").mkdir()
    if there is not None:
        (place.folder / OWN).write_text(there)
    env = place.environment(TORCHELASTIC_ERROR_FILE=str(place.folder / OWN))
    ended = place.run("--nproc-per-node=2", "--log-dir=log", "train.py", env=env)
    assert ended.status == 1
    own = json.loads(place.text(OWN))
    theirs = json.loads((place.run_folder() / "attempt_0/1/error.json").read_text())
    assert own["message"].pop("errorCode") == 1
    assert own == theirs
    assert place.names("own") == {"error.json"}


def test_the_launchers_own_error_file_of_a_rank_that_wrote_none(place: TorchPlace) -> None:
    place.script("raise OSError('disk on fire')")
    env = place.environment(TORCHELASTIC_ERROR_FILE=str(place.folder / "own.json"))
    assert place.run("train.py", env=env).status == 1
    message = json.loads(place.text("own.json"))["message"]
    assert (message["message"], message["errorCode"]) == ("OSError: disk on fire", 1)
    assert "Traceback (most recent call last)" in message["extraInfo"]["py_callstack"]
    assert re.fullmatch(r"\d{10}", message["extraInfo"]["timestamp"])


def test_a_failure_of_the_launcher_itself_is_in_its_own_error_file(place: TorchPlace) -> None:
    env = place.environment(TORCHELASTIC_ERROR_FILE=str(place.folder / "own.json"))

    def message_text() -> str:
        message = json.loads(place.text("own.json"))["message"]
        assert message["extraInfo"].keys() == {"py_callstack", "timestamp"}
        assert "errorCode" not in message
        return str(message["message"])

    assert place.run("none.py", env=env).status == 66
    assert "none.py" in message_text()
    place.script("#!/no/such/interpreter", "broken.sh")
    (place.folder / "broken.sh").chmod(0o755)
    assert place.run("--no-python", "./broken.sh", env=env).status == 71
    assert "cannot start rank 0" in message_text()
    place.script("tell('ready', os.getpid()); sleep()")
    with place.start("train.py", env=env) as launcher:
        place.ready(1)
        launcher.terminate()
        assert place.wait(launcher).status == 143
    assert message_text() == f"SignalException: Process {launcher.pid} got signal: 15"


def test_the_launchers_own_error_file_is_left_alone_by_a_good_end(place: TorchPlace) -> None:
    place.script("pass")
    (place.folder / "own.json").write_text("as it was")
    place.well("train.py", env=place.environment(TORCHELASTIC_ERROR_FILE=str(place.folder / "own.json")))
    assert place.text("own.json") == "as it was"


def test_an_own_error_file_that_cannot_be_written_changes_nothing_else(place: TorchPlace) -> None:
    place.script("sys.exit(6)")
    ended = place.run("train.py", env=place.environment(TORCHELASTIC_ERROR_FILE="/proc/own.json"))
    assert ended.status == 6
    assert "TORCHELASTIC_ERROR_FILE /proc/own.json: cannot be written" in ended.stderr
    assert report(ended.stderr)[0] == "train.py FAILED"


def test_the_result_is_written_down_for_programs(place: TorchPlace) -> None:
    place.script("sys.exit(8 if rank == 1 else 0)")
    ended = place.run("--nproc-per-node=2", "--log-dir=log", "train.py")
    assert ended.status == 8
    result = place.result_of_run()
    assert result["exit_status"] == 8
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    names = {path.name for path in (place.run_folder() / "rlaunch").iterdir()}
    assert names >= {"result.json", "events.jsonl"}


def test_github_annotation_is_at_the_failed_line(place: TorchPlace) -> None:
    place.script("raise ValueError('x')")
    ended = place.run("train.py", env=place.environment(GITHUB_ACTIONS="true"))
    assert re.search(
        rb"^::error title=rank 0 failed.*,file=.*/train\.py,line=\d+.*::.*ValueError: x", ended.stdout, re.M
    )


@pytest.mark.parametrize(
    ("options", "body", "status"),
    [
        ([], "sys.exit(7)", 7),
        ([], "sys.exit(255)", 255),
        ([], "os.kill(os.getpid(), signal.SIGKILL)", 137),
        (["--exit-code-compat"], "sys.exit(7)", 1),
        (["--exit-code-compat"], "sys.exit(2)", 1),
        (["--exit-code-compat", "--nproc-per-node=0"], "pass", 2),
        (["--exit-code-compat"], "os.kill(os.getpid(), signal.SIGKILL)", 1),
        (["--exit-code-compat"], "pass", 0),
        ([], "raise KeyboardInterrupt", 130),
        (["--nproc-per-node=0"], "pass", 2),
        (["--no-such-option"], "pass", 2),
        (["--signals-to-handle=SIGNONE"], "pass", 0),
    ],
)
def test_the_exit_status(place: TorchPlace, options: list[str], body: str, status: int) -> None:
    place.script(body)
    # Python's last lines go to the log: `Ended` takes them for the launcher's.
    assert place.run("-r3", *options, "train.py").status == status


def test_commands_that_cannot_run_are_errors_before_any_start(place: TorchPlace) -> None:
    for words, text in [
        (["none.py"], "none.py"),
        (["--no-python", "no-such-program"], "no-such-program"),
        (["--run-path", "/none.py"], "/none.py"),
    ]:
        ended = place.run(*words)
        assert ended.status == 66
        (line,) = ended.error_lines()
        assert text in line
    assert place.run().status == 2
    assert list((place.folder / "tmp").iterdir()) == []


def test_a_module_that_is_not_there_fails_in_its_rank(place: TorchPlace) -> None:
    ended = place.run("-m", "no_such_module_of_ours")
    assert ended.status == 1
    assert "No module named no_such_module_of_ours" in report(ended.stderr)[2]
