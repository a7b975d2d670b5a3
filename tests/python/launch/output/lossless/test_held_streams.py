"""Ranks of rlaunch-run write to what the launcher holds: a reader that goes costs them nothing."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from launching import await_line, gone, until
from torch_launching import TorchPlace


@pytest.fixture
def place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


BY_PATH = """
import subprocess
os.write({fd}, b"the first line, which is long\\n")
subprocess.run(["sh", "-c", "echo second > {path}"], check=True)
subprocess.run(["sh", "-c", "echo third | tee /dev/fd/3 3>&{fd} > /dev/null"], check=True)
with open("{path}", "w") as stream:
    stream.write("fourth\\n")
os.write({fd}, b"fifth\\n")
"""
# Only when all ranks have written.
END = """
tell("ready", os.getpid())
await_file("ready.0")
await_file("ready.%d" % (int(os.environ["WORLD_SIZE"]) - 1))
sys.exit(3)
"""
LINES = ["the first line, which is long", "second", "third", "fourth", "fifth"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("to", ["pipe", "file"])
def test_opening_dev_stderr_empties_nothing(place: TorchPlace, to: str, ranks: int) -> None:
    place.script(BY_PATH.format(fd=2, path="/dev/stderr") + END)
    args = [f"--nproc-per-node={ranks}", "--omp-compat", "--log-dir=log", "train.py"]
    if to == "pipe":
        ended = place.run(*args)
        shown = ended.stderr
    else:
        with (place.folder / "err").open("wb") as err:
            ended = place.run(*args, stderr=err)
        shown = place.text("err")
    assert ended.status == 3
    before, _, report = shown.partition("train.py FAILED")
    assert sorted(line for line in before.splitlines() if line in LINES) == sorted(LINES * ranks)
    assert [line for line in report.replace("traceback :", "").split("\n") if line.strip() in LINES]
    for rank in range(ranks):
        log = place.run_folder() / f"rlaunch/attempt_0/{rank}/stderr.log"
        assert log.read_text().splitlines() == LINES


def test_opening_dev_stdout_empties_nothing(place: TorchPlace) -> None:
    place.script(BY_PATH.format(fd=1, path="/dev/stdout"))
    assert place.well("train.py").stdout.decode().splitlines() == LINES


def test_both_streams_stay_in_the_order_written(place: TorchPlace) -> None:
    place.script("""
        for number in range(4000):
            os.write(1 + number % 2, b"%d\\n" % number)
    """)
    ended = place.well("train.py", stderr=subprocess.STDOUT)
    assert ended.stdout.decode().splitlines() == [str(number) for number in range(4000)]


def test_ctrl_c_that_ends_the_reader_first_leaves_ranks_their_handlers(place: TorchPlace) -> None:
    """`rlaunch-run train.py 2>&1 | tee run.log`: tee ends at once."""
    place.script("""
        print("step", flush=True)
        try:
            tell("ready", os.getpid())
            sleep()
        except KeyboardInterrupt:
            for part in range(2000):
                print("saving", part)
                print("saving", part, file=sys.stderr)
            tell("saved")
    """)
    args = ["--nproc-per-node=2", "--log-dir=log", "train.py"]
    with place.start(*args, stderr=subprocess.STDOUT) as launcher:
        place.ready(2)
        await_line(launcher.stdout, b"step")
        assert launcher.stdout is not None
        launcher.stdout.close()
        launcher.stdout = None
        launcher.send_signal(signal.SIGINT)
        assert place.wait(launcher).status == 130
    assert {"saved.0", "saved.1"} <= place.names()
    for rank in range(2):
        log = (place.run_folder() / f"rlaunch/attempt_0/{rank}/output.log").read_text()
        assert log.splitlines().count("saving 1999") == 2


@pytest.mark.parametrize("streams", ["stdout", "both"])
def test_a_terminal_that_is_closed_ends_no_rank(place: TorchPlace, streams: str) -> None:
    """`rlaunch-run train.py & disown`, then the window is closed."""
    place.script("""
        print("step", flush=True)
        tell("ready", os.getpid())
        await_file("closed")
        for part in range(2000):
            print("after", part)
            print("after", part, file=sys.stderr)
        tell("done")
    """)
    ours, theirs = pty.openpty()
    options = {"stdout": theirs, "stderr": theirs if streams == "both" else subprocess.PIPE}
    with place.start("train.py", **options) as launcher:
        os.close(theirs)
        place.ready(1)
        os.close(ours)
        (place.folder / "closed").touch()
        assert place.wait(launcher).status == 0
    assert "done.0" in place.names()
    (log,) = (place.folder / "tmp").glob("torchelastic_*/*/rlaunch/attempt_0/0/*t.log")
    assert "after 1999" in log.read_text().splitlines()


@pytest.mark.parametrize("args", [[], ["--capture=none"]])
def test_a_file_as_stdout_is_the_ranks_own(place: TorchPlace, args: list[str]) -> None:
    place.script("tell('inode', os.fstat(1).st_ino); print('line')")
    with (place.folder / "out").open("wb") as out:
        place.well(*args, "train.py", stdout=out)
    assert place.text("inode.0") == str((place.folder / "out").stat().st_ino)
    assert place.text("out") == "line\n"


def test_a_process_that_outlives_the_job_keeps_the_readers(place: TorchPlace) -> None:
    place.script("""
        import subprocess
        lives_on = "until test -e go; do sleep 0.01; done; echo out; echo err >&2; echo done > done"
        shell = "dash" if os.path.exists("/bin/dash") else "sh"
        kept = subprocess.Popen([shell, "-c", lives_on], start_new_session=True)
        tell("kept", kept.pid)
    """)
    with place.start("--no-sweep=dash,sh", "train.py") as launcher:
        until((place.folder / "kept.0").exists, "the process")
        until(lambda: launcher.poll() is not None, "the launcher's end")
        assert launcher.returncode == 0
        (place.folder / "go").touch()
        assert launcher.stdout is not None
        assert launcher.stdout.read() == b"out\n"
    until((place.folder / "done").exists, "the end of the process")


def test_the_end_of_a_burst_is_there_when_a_rank_has_been_killed(place: TorchPlace) -> None:
    place.script("""
        data = b"".join(b"%07d\\n" % number for number in range(20000))
        while data:
            data = data[os.write(1, data) :]
        tell("ready", os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = place.run("train.py")
    assert ended.status == 137
    assert ended.stdout.splitlines() == [b"%07d" % number for number in range(20000)]


def test_a_rank_that_ends_is_not_waited_for_by_its_pipe(place: TorchPlace) -> None:
    """A process outside the job has the other end."""
    place.script("print('hello', flush=True); tell('ready', os.getpid()); await_file('end'); print('bye')")
    with place.start("train.py") as launcher:
        (rank,) = place.ready(1)
        kept = os.open(f"/proc/{rank.pid}/fd/1", os.O_WRONLY)
        (place.folder / "end").touch()
        ended = place.wait(launcher)
        assert gone(rank)
        os.close(kept)
    assert (ended.status, ended.stdout) == (0, b"hello\nbye\n")
