"""Where the output of ranks goes: logs, console, filters."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from launching import INOTIFY, LIMIT, Ended, await_line, until
from torch_launching import RANK, TorchPlace

# Whole lines: no process keeps the lines of streams that are not redirected apart.
SPEAK = """
os.write(1, f"out {rank}\\n".encode())
os.write(2, f"err {rank}\\n".encode())
"""


@pytest.fixture
def place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


def logs(**ranks: str) -> set[str]:
    """`_0="oe"`: both files of local rank 0."""
    names = {"o": "stdout.log", "e": "stderr.log"}
    return {f"attempt_0/{rank[1:]}/{names[letter]}" for rank, letters in ranks.items() for letter in letters}


@pytest.mark.parametrize(
    ("options", "files", "stdout", "stderr"),
    [
        ([], set(), {"out 0", "out 1"}, {"err 0", "err 1"}),
        (["-r3"], logs(_0="oe", _1="oe"), set(), set()),
        (["-r", "1"], logs(_0="o", _1="o"), set(), {"err 0", "err 1"}),
        (["-r", "0:1,1:2"], logs(_0="o", _1="e"), {"out 1"}, {"err 0"}),
        (
            ["-t3"],
            logs(_0="oe", _1="oe"),
            {"[default0]:out 0", "[default1]:out 1"},
            {"[default0]:err 0", "[default1]:err 1"},
        ),
        (["-t", "1:2"], logs(_1="e"), {"out 0", "out 1"}, {"err 0", "[default1]:err 1"}),
        (["-t1", "-r2", "--role=w"], logs(_0="oe", _1="oe"), {"[w0]:out 0", "[w1]:out 1"}, set()),
        (
            ["-t3", "--local-ranks-filter=1"],
            logs(_0="oe", _1="oe"),
            {"[default1]:out 1"},
            {"[default1]:err 1"},
        ),
        (["--local-ranks-filter=0"], set(), {"out 0"}, {"err 0"}),
        (["-r3", "--local-ranks-filter=0"], logs(_0="oe", _1="oe"), set(), set()),
        (["--capture=none"], set(), {"out 0", "out 1"}, {"err 0", "err 1"}),
        (
            ["--capture=none", "-t2"],
            logs(_0="e", _1="e"),
            {"out 0", "out 1"},
            {"[default0]:err 0", "[default1]:err 1"},
        ),
    ],
)
def test_streams_go_where_they_are_sent(
    place: TorchPlace, options: list[str], files: set[str], stdout: set[str], stderr: set[str]
) -> None:
    place.script(SPEAK)
    ended = place.well("--nproc-per-node=2", "--omp-compat", "--log-dir=log", *options, "train.py")
    assert sorted(ended.stdout.decode().splitlines()) == sorted(stdout)
    assert sorted(ended.stderr.splitlines()) == sorted(stderr)
    assert place.tree() == files
    for name in files:
        (rank, stream) = name.split("/")[1:]
        text = (place.run_folder() / name).read_text()
        assert text == f"{stream[3:6]} {rank}\n"
    assert re.fullmatch(r"[0-9a-f-]{36}_[a-z0-9_]{8}", place.run_folder().name)


def test_maps_take_local_ranks_above_nine(place: TorchPlace) -> None:
    place.script(SPEAK)
    ended = place.well("--nproc-per-node=12", "--log-dir=log", "-r", "11:3", "-t", "10:1,3:2", "train.py")
    assert place.tree() == logs(_11="oe", _10="o", _3="e")
    out = ended.stdout.decode().splitlines()
    assert sorted(out) == sorted([f"out {n}" for n in range(10)] + ["[default10]:out 10"])


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_template_stands_before_lines(place: TorchPlace, by_variable: bool) -> None:
    place.script(SPEAK)
    template = "${hostname}/${role_name}/${local_rank}/$rank/${other}/$$> "
    words = [] if by_variable else [f"--log-line-prefix-template={template}"]
    env = place.environment(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=template if by_variable else "never")
    ended = place.well("-t1", *words, "train.py", env=env)
    host = socket.gethostname().partition(".")[0]
    assert ended.stdout.decode() == f"{host}/default/0/0/${{other}}/$> out 0\n"


def test_lines_stay_whole_and_the_last_gets_its_end(place: TorchPlace) -> None:
    place.script("""
        for number in range(2000):
            sys.stdout.write(f"{rank}:{number}:" + "x" * 50)
            sys.stdout.flush()
            sys.stdout.write("y\\n" if number < 1999 else "")
            sys.stdout.flush()
    """)
    ended = place.well("--nproc-per-node=2", "-t1", "--log-dir=log", "train.py")
    lines = ended.stdout.decode().splitlines()
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"[default{rank}]:")]
        assert own == [
            f"[default{rank}]:{rank}:{number}:" + "x" * 50 + "y" * (number < 1999) for number in range(2000)
        ]
    assert len(lines) == 4000
    # The log has what the rank wrote, byte for byte.
    assert (place.run_folder() / "attempt_0/0/stdout.log").read_bytes().endswith(b"x")


def test_filters_copy_the_lines_with_a_text_in_them(place: TorchPlace) -> None:
    place.script("""
        for text in ("loss=1", "a,b", "noise"):
            print(f"{text} {rank}", flush=True)
            print(f"{text} err", file=sys.stderr, flush=True)
    """)
    filters = ["--duplicate-stdout-filters=loss=,a,,b", "--duplicate-stderr-filters=noise"]
    ended = place.well("--nproc-per-node=2", "-t3", "--log-dir=log", *filters, "train.py")
    attempt = place.run_folder() / "attempt_0"
    expected = {f"[default{rank}]:{text} {rank}" for rank in (0, 1) for text in ("loss=1", "a,b")}
    assert set((attempt / "filtered_stdout.log").read_text().splitlines()) == expected
    expected = {"[default0]:noise err", "[default1]:noise err"}
    assert set((attempt / "filtered_stderr.log").read_text().splitlines()) == expected
    assert len(ended.stdout.splitlines()) == 6


def test_attempts_share_one_inotify_instance(place: TorchPlace) -> None:
    place.script(
        INOTIFY
        + """
# The two streams of each of the two ranks, of this attempt alone.
until(lambda: watches() == 4, "the end of the watches of earlier attempts")
tell(f"instances-{attempt}", len(instances()))
await_file(f"instances-{attempt}.{1 - rank}")
sys.exit(attempt < 3)
"""
    )
    filters = ["--duplicate-stdout-filters=a", "--duplicate-stderr-filters=b"]
    place.well("--nproc-per-node=2", "-t3", "--max-restarts=3", *filters, "train.py")
    assert {place.text(f"instances-{attempt}.{rank}") for attempt in range(4) for rank in (0, 1)} == {"1"}


def test_no_log_folder_at_all(place: TorchPlace) -> None:
    place.script(SPEAK + "assert os.environ['TORCHELASTIC_ERROR_FILE'] == ''")
    ended = place.well("--log-dir=/dev/null", "-r3", "-t3", "--duplicate-stdout-filters=out", "train.py")
    assert (ended.stdout, ended.stderr) == (b"out 0\n", "err 0\n")
    assert list((place.folder / "tmp").iterdir()) == []
    place.script("sys.exit(3)")
    ended = place.run("--log-dir=/dev/null", "train.py")
    assert ended.status == 3


def test_log_folders_that_cannot_be(place: TorchPlace) -> None:
    place.script("tell('ran')")
    (place.folder / "file").touch()
    ended = place.run("--log-dir=file", "train.py")
    assert ended.status == 66
    assert "NotADirectoryError: log_dir: " in ended.error_lines()[0]
    ended = place.run("--log-dir=file/below", "train.py")
    assert ended.status == 66
    assert "file/below" in ended.error_lines()[0]
    ended = place.run("--log-dir=/proc/none", "train.py")
    assert ended.status == 66
    assert "/proc/none" in ended.error_lines()[0]
    ended = place.run("--rdzv-backend=c10d", "--rdzv-id=" + "x" * 300, "train.py")
    assert ended.status in (2, 66)
    assert "--rdzv-id" in ended.error_lines()[0]
    ended = place.run("train.py", env=place.environment(TMPDIR="/nowhere/at/all"))
    # As Python's tempfile does it: another folder is as good.
    assert (ended.status, ended.stderr) == (0, "")
    assert "ran.0" in place.names()
    assert not Path("/nowhere").exists()


def test_a_long_name_of_a_job_is_that_of_its_folder(place: TorchPlace) -> None:
    place.script(SPEAK)
    place.well("--rdzv-backend=c10d", "--rdzv-id=" + "x" * 200, "-r3", "--log-dir=a/b/log", "train.py")
    assert place.run_folder("a/b/log").name.startswith("x" * 200 + "_")


def test_logs_are_for_their_owner_alone(place: TorchPlace) -> None:
    (place.folder / "log").mkdir(0o755)
    place.script(SPEAK)
    place.well("-t3", "--log-dir=log", "--duplicate-stdout-filters=out", "train.py", umask=0)
    for path in [place.run_folder(), *place.run_folder().rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    # The user's own folder stays as it was.
    assert stat.S_IMODE((place.folder / "log").stat().st_mode) == 0o755


def test_every_attempt_keeps_its_logs(place: TorchPlace) -> None:
    place.script("""
        print(f"attempt {attempt}", flush=True)
        sys.exit(attempt < 2)
    """)
    place.well("--max-restarts=2", "-r3", "--log-dir=log", "train.py")
    for attempt in range(3):
        text = (place.run_folder() / f"attempt_{attempt}/0/stdout.log").read_text()
        assert text == f"attempt {attempt}\n"


def test_a_temporary_folder_stays_only_if_it_explains_something(place: TorchPlace) -> None:
    place.script(SPEAK + "sys.exit(int(sys.argv[1]))")
    place.well("-t3", "train.py", "0")
    assert list((place.folder / "tmp").iterdir()) == []
    ended = place.run("-r3", "train.py", "0")
    ((wanted,),) = [list(folder.iterdir()) for folder in (place.folder / "tmp").iterdir()]
    assert f"the logs are in {wanted}; choose another folder with --log-dir\n" in ended.stderr
    assert (wanted / "attempt_0/0/stderr.log").read_text() == "err 0\n"
    shutil.rmtree(wanted.parent)
    # The console does not show rank 1.
    ended = place.run("-t3", "--nproc-per-node=2", "--local-ranks-filter=0", "train.py", "0")
    ((wanted,),) = [list(folder.iterdir()) for folder in (place.folder / "tmp").iterdir()]
    assert f"the logs are in {wanted}; choose another folder with --log-dir\n" in ended.stderr
    assert (wanted / "attempt_0/1/stderr.log").read_text() == "err 1\n"
    shutil.rmtree(wanted.parent)
    place.well("-t3", "--local-ranks-filter=0", "train.py", "0")
    assert list((place.folder / "tmp").iterdir()) == []
    ended = place.run("-r3", "train.py", "5")
    assert ended.status == 5
    (kept,) = (place.folder / "tmp").iterdir()
    assert re.fullmatch(r"torchelastic_[a-z0-9_]{8}", kept.name)
    (run,) = kept.iterdir()
    assert f"log_file  : {run}/attempt_0/0/stderr.log\n" in ended.stderr
    assert (run / "attempt_0/0/stderr.log").read_text() == "err 0\n"


def test_a_cleaner_of_temporary_files_costs_neither_exception_nor_restart(place: TorchPlace) -> None:
    place.script("""
        import pathlib, shutil
        print("attempt", attempt, flush=True)
        if attempt < int(sys.argv[1]):
            for left in pathlib.Path("tmp").iterdir():
                shutil.rmtree(left)
            raise ValueError(f"after attempt {attempt}")
    """)
    place.well("--max-restarts=2", "-t3", "train.py", "2")
    failed = place.run("train.py", "1")
    assert failed.status == 1
    assert "ValueError: after attempt 0" in failed.stderr


def test_nothing_is_lost_of_a_burst_before_a_crash(place: TorchPlace) -> None:
    place.script("""
        os.write(1, b"".join(b"line %06d\\n" % number for number in range(50000)))
        os.write(2, b"".join(b"line %06d\\n" % number for number in range(50000)))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = place.run("-t1", "train.py")
    assert ended.status == 137
    expected = [f"line {number:06}" for number in range(50000)]
    assert ended.stdout.decode().splitlines() == [f"[default0]:{line}" for line in expected]
    assert ended.stderr.splitlines()[:50000] == expected


def test_sixty_four_ranks_on_one_console(place: TorchPlace) -> None:
    place.script('for n in $(seq 50); do echo "$RANK:$n"; echo "$RANK:$n" >&2; done', "many.sh")
    ended = place.well(
        "--nproc-per-node=64", "-t3", "--log-dir=log", "--omp-compat", "--no-python", "/bin/sh", "many.sh"
    )
    expected = sorted(f"[default{rank}]:{rank}:{n}" for rank in range(64) for n in range(1, 51))
    assert sorted(ended.stdout.decode().splitlines()) == expected
    assert sorted(ended.stderr.splitlines()) == expected
    assert len(place.tree()) == 128


def test_a_console_that_is_gone_stops_no_rank(place: TorchPlace) -> None:
    place.script(SPEAK * 100 + "tell('done')")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        ended = place.run("-t3", "--log-dir=log", "train.py", stdout=gone, stderr=gone)
    assert ended.status == 0
    assert "done.0" in place.names()
    assert len((place.run_folder() / "attempt_0/0/stdout.log").read_text().splitlines()) == 100


def test_a_console_that_takes_nothing_holds_no_rank_up(place: TorchPlace) -> None:
    place.script("""
        for number in range(5000):
            print(number, "x" * 100)
            print(number, "x" * 100, file=sys.stderr)
        tell("done")
    """)
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    with (
        os.fdopen(read, "rb") as reader,
        os.fdopen(write, "wb") as full,
        open(place.folder / "stderr", "wb") as stderr,
        place.start("-t3", "--log-dir=log", "train.py", stdout=full, stderr=stderr) as launcher,
    ):
        full.close()
        until((place.folder / "done.0").exists, "the rank's end")
        out = reader.read()
        ended = place.wait(launcher)
    assert ended.status == 0
    assert len(out.splitlines()) == 5000
    assert len(place.text("stderr").splitlines()) == 5000


def test_the_stderr_of_one_rank_is_passed_on_byte_for_byte(place: TorchPlace) -> None:
    place.script("""
        os.write(2, b"\\r 10%|#  |\\xff\\0 no end")
        await_file("go")
        os.write(2, b" of it")
    """)
    with place.start("train.py") as launcher:
        assert launcher.stderr is not None
        assert os.read(launcher.stderr.fileno(), 100) == b"\r 10%|#  |\xff\0 no end"
        (place.folder / "go").touch()
        assert launcher.stderr.read() == b" of it"
        assert launcher.wait(40) == 0


def test_the_stderr_of_several_ranks_is_passed_on_in_whole_lines(place: TorchPlace) -> None:
    place.script("""
        os.write(2, b"first half of %d" % rank)
        tell("half")
        await_file(f"half.{1 - rank}")
        os.write(2, b", second half of %d\\n" % rank)
    """)
    ended = place.well("--nproc-per-node=2", "--omp-compat", "train.py")
    expected = [f"first half of {rank}, second half of {rank}" for rank in (0, 1)]
    assert sorted(ended.stderr.splitlines()) == expected


WRITE = """
def write(mebibytes):
    chunk = (b"x" * 63 + b"\\n") * 16384
    for _ in range(mebibytes):
        left = chunk
        while left:
            left = left[os.write(2, left) :]
"""


def test_captured_lines_wait_for_a_console_that_is_slow(place: TorchPlace) -> None:
    place.script(WRITE + "write(60)\ntell('done')")
    with place.start("train.py") as launcher:
        until((place.folder / "done.0").exists, "the rank's end")
        assert launcher.stderr is not None
        lines = sum(1 for line in launcher.stderr if line == b"x" * 63 + b"\n")
        assert launcher.wait(40) == 0
    assert lines == 60 * 16384


def test_captured_lines_that_were_shown_are_not_kept(place: TorchPlace) -> None:
    place.script(WRITE + "write(70)\nawait_file('go')\nwrite(70)\nawait_file('end')")
    with place.start("--log-dir=log", "train.py") as launcher:
        assert launcher.stderr is not None
        left = 70 << 20
        while left:
            left -= len(launcher.stderr.read1(left))  # type: ignore[attr-defined]
        (place.folder / "go").touch()
        left = 70 << 20
        while left:
            left -= len(launcher.stderr.read1(left))  # type: ignore[attr-defined]
        log = place.run_folder() / "rlaunch/attempt_0/0/stderr.log"
        until(lambda: log.stat().st_blocks * 512 < 100 << 20, "a short log")
        (place.folder / "end").touch()
        assert place.wait(launcher).status == 0


def test_lines_that_no_console_took_are_kept(place: TorchPlace) -> None:
    place.script("os.write(2, b'line\\n' * 100000)")
    read, write = os.pipe()
    with os.fdopen(read, "rb"), os.fdopen(write, "wb") as full:
        assert place.run("train.py", stderr=full).status == 0
    (kept,) = (place.folder / "tmp").glob("torchelastic_*/*/rlaunch/attempt_0/0/stderr.log")
    assert kept.read_bytes() == b"line\n" * 100000


def test_a_failure_of_a_rank_that_is_not_shown_is_explained(place: TorchPlace) -> None:
    place.script("""
        print("not shown", file=sys.stderr)
        if rank == 1:
            raise ValueError("from behind")
        sleep()
    """)
    ended = place.run("--nproc-per-node=2", "--omp-compat", "--local-ranks-filter=0", "train.py")
    assert ended.status == 1
    before, _, report = ended.stderr.partition("train.py FAILED")
    assert "from behind" not in before
    assert "exception : ValueError: from behind" in report


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_descriptors_do_no_harm(place: TorchPlace, closed: tuple[int, ...]) -> None:
    place.script(SPEAK + "tell('fds', sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:3])")
    ended = place.run("-t3", "--log-dir=log", "train.py", preexec_fn=lambda: [os.close(fd) for fd in closed])
    assert ended.status == 0
    assert place.text("fds.0") == "[0, 1, 2]"
    assert (place.run_folder() / "attempt_0/0/stdout.log").read_text() == "out 0\n"
    assert ended.stdout == (b"" if 1 in closed else b"[default0]:out 0\n")


def test_streams_that_are_not_captured_are_the_launchers_own(place: TorchPlace) -> None:
    place.script("""
        tell("same", [os.fstat(fd).st_ino for fd in (1, 2)])
        sys.exit(4)
    """)
    with open(place.folder / "console", "wb") as console:
        ended = place.run("--capture=none", "--log-dir=log", "train.py", stdout=console, stderr=console)
    inode = (place.folder / "console").stat().st_ino
    assert place.text("same.0") == str([inode, inode])
    assert ended.status == 4
    assert "train.py FAILED" in place.text("console")
    # The launcher's own records alone.
    assert place.tree() == set()


def test_captured_output_is_seen_while_the_rank_lives(place: TorchPlace) -> None:
    place.script("""
        print("alive", file=sys.stderr, flush=True)
        await_file("go")
    """)
    with place.start("train.py") as launcher:
        assert await_line(launcher.stderr, b"alive") == b"alive\n"
        (place.folder / "go").touch()
        assert place.wait(launcher).status == 0


def test_a_limit_on_open_files_is_no_limit_on_ranks(place: TorchPlace) -> None:
    place.script("exit 0", "nothing.sh")
    place.well(
        *("--nproc-per-node=40", "-t3", "--no-python", "/bin/sh", "nothing.sh"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096)),
    )


# 150 kB, after rank 0 has left no space in the folder for temporary files.
SPEAKS_MUCH = """
if rank == 0:
    with open(os.environ["TMPDIR"] + "/ballast", "wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass
    tell("full")
await_file("full.0")
for number in range(1500):
    print(f"warning {number} {'y' * 90}", file=sys.stderr)
print("finished")
"""


def run_with_temporary_files_on(size: str, place: TorchPlace, limit: str = "") -> Ended:
    """Runs two ranks whose TMPDIR is a file system of this size."""
    (place.folder / "train.py").write_text(RANK + SPEAKS_MUCH)
    inside = f'mount -t tmpfs -o size={size},mode=700 none tmp && {limit} exec "$@"'
    command = [sys.executable, "-m", "rlaunch.run", "--nproc-per-node=2", "train.py"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh", *command],
        cwd=place.folder, env=place.environment(), capture_output=True, timeout=LIMIT,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr.decode())


@pytest.mark.parametrize(("size", "said"), [("64k", 1), ("8m", 0)])
def test_a_full_folder_for_temporary_files(place: TorchPlace, size: str, said: int) -> None:
    """Captured stderr has its part of the disk from the start, or is not captured."""
    ended = run_with_temporary_files_on(size, place)
    # A rank writes the word and the end of its line separately.
    assert (ended.status, sorted(ended.stdout)) == (0, sorted(b"finished\n" * 2)), ended.stderr[-2000:]
    assert ended.stderr.count("warning ") == 3000
    assert ended.stderr.count("No space left on device; stderr is shown, but no failure report") == said


def test_a_limit_of_the_size_of_files(place: TorchPlace) -> None:
    """Captured stderr would meet it."""
    ended = run_with_temporary_files_on("8m", place, "ulimit -f 40;")
    # A rank writes the word and the end of its line separately.
    assert (ended.status, sorted(ended.stdout)) == (0, sorted(b"finished\n" * 2)), ended.stderr[-2000:]
    assert ended.stderr.count("warning ") == 3000
    assert ended.stderr.count("File too large; stderr is shown, but no failure report") == 1
