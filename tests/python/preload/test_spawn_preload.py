"""A rank that was forked off a zygote is as one that was started by itself, whatever is asked of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import preload_ranks
import pytest
import rlaunch
from paths import PYTHONPATH
from preload_ranks import PRELOADED, module, script
from rlaunch import RankError
from spawning import modules_fixture as _modules  # noqa: F401
from spawning import nothing_left_fixture as _nothing_left  # noqa: F401
from spawning import results

BOTH = ("spawn", "zygote")

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:Your model will be trained"),
]


@pytest.fixture(name="folder")
def folder_fixture(modules: Path) -> Path:
    """Where the preloaded module is."""
    module(modules, "preloaded", PRELOADED)
    return modules


def start(method: str, func: Any, *args: Any, n: int = 1, preload: str = "preloaded", **options: Any) -> Any:
    if method == "zygote":
        options["preload"] = preload
    return rlaunch.spawn(func, args, n, start_method=method, **options)


def importing_first(func: Callable[..., Any], *args: Any) -> Any:
    """A rank of its own imports what the zygote has imported."""
    import preloaded  # noqa: F401

    return func(*args)


def both(func: Any, *args: Any, **options: Any) -> list[Any]:
    return [results(start(method, importing_first, func, *args, **options)) for method in BOTH]


def output_of(folder: Path, body: str, **environ: str) -> subprocess.CompletedProcess[str]:
    main = folder / "main.py"
    main.write_text(script(body))
    env = {**os.environ, **environ, "PYTHONPATH": f"{folder}:{PYTHONPATH}"}
    return subprocess.run([sys.executable, main], capture_output=True, text=True, timeout=120, env=env)


# --- State of a rank --------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
def test_a_forked_rank_sees_the_same_as_a_spawned_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    if again:  # The zygote is there when all this changes, and another test runner's files with it.
        start("zygote", os.getpid)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("NEW", "a\udcffb")
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setenv("DEFAULT_BY_IMPORT", "mine")
        monkeypatch.setenv("TAKEN_BY_IMPORT", "1")
        monkeypatch.delenv("PATH_THAT_WAS_NOT_THERE", raising=False)
        monkeypatch.setattr(sys, "argv", ["other", "words"])
        monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere"])
    own, forked = both(preload_ranks.about)
    expected = own[0]
    if again:
        # The import changed it before the rank received its variables; a spawned rank would have removed it.
        assert forked[0]["environ"].pop("TAKEN_BY_IMPORT") == "1"
        expected["environ of C"] += 1
    assert forked[0] == expected


def test_ignored_signals_the_mask_and_limits_are_those_of_now(folder: Path) -> None:
    import resource

    start("zygote", os.getpid)
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    umask = os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[0] - 1, files[1]))
    try:
        own, forked = both(preload_ranks.about)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGWINCH])
        os.umask(umask)
        signal.signal(signal.SIGUSR2, before)
    assert forked == own
    assert forked[0]["blocked"] == [signal.SIGWINCH]
    assert forked[0]["signals"]["SIGUSR2"] == str(signal.SIG_IGN)


def test_main_is_the_programs_own(folder: Path) -> None:
    body = "for m in ('spawn', 'zygote'):\n" + (
        "    o = {'preload': 'preloaded'} if m == 'zygote' else {}\n"
        "    c = rlaunch.spawn(show, (), 2, start_method=m, backend='gloo', **o)\n"
        "    print(m, c.return_queues[0].get())\n"
    )
    text = script(body).replace(
        "if __name__",
        "import preloaded\ndef show():\n    m = sys.modules['__main__']\n"
        "    return [m.__name__, m.__file__, m is sys.modules['__mp_main__'], show.__module__, sys.argv]\n"
        "if __name__",
    )
    (folder / "main.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": f"{folder}:{PYTHONPATH}"}
    command = [sys.executable, "-X", "dev", "-W", "ignore", str(folder / "main.py"), "word"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(BOTH))
    assert said["zygote"] == said["spawn"], done.stderr
    assert "__mp_main__" in said["spawn"]


def test_the_import_sees_no_arguments_of_the_zygote(folder: Path) -> None:
    assert results(start("zygote", preload_ranks.seen_by_import))[0][0] == []


def test_a_rank_holds_nothing_of_the_zygotes_nor_of_its_siblings(folder: Path) -> None:
    own, forked = both(preload_ranks.descriptors, n=4)
    for one in forked:
        more = Counter(one) - Counter(own[0])
        # Its lifeline came twice: as multiprocessing's sentinel and as rlaunch's own.
        assert sorted(more.elements()) in ([], ["pipe:"]), one


def test_random_numbers_differ_between_ranks_and_calls(folder: Path) -> None:
    calls = [start("zygote", preload_ranks.numbers, n=3, preload="numpy") for _ in range(2)]
    rows = [row for context in calls for row in results(context)]
    assert [len(set(column)) for column in zip(*rows, strict=True)] == [6, 6, 6]


# --- Arguments and results -------------------------------------------------------------------------------


def test_everything_of_multiprocessings_passes(folder: Path) -> None:
    mp = multiprocessing.get_context("spawn")
    lock, queue, event = mp.Lock(), mp.Queue(), mp.Event()
    ours, theirs = mp.Pipe()
    array = mp.Array("i", 3)
    context = start("zygote", preload_ranks.use_all, lock, queue, theirs, array, event, n=3, join=False)
    assert sorted(queue.get() for _ in range(3)) == sorted(ours.recv() for _ in range(3)) == [0, 1, 2]
    event.set()
    assert context.join() or context.join() or context.join()
    assert list(array) == [1, 2, 3]
    assert "zygote" not in results(context)[0]


def test_big_results_and_arguments(folder: Path) -> None:
    assert [len(r) for r in results(start("zygote", preload_ranks.big, 20_000_000, n=2))] == [20_000_000] * 2
    assert len(results(start("zygote", preload_ranks.importing, bytes(5_000_000)))[0]) == 5_000_000


def test_shared_memory_is_the_programs(folder: Path) -> None:
    memory = SharedMemory(create=True, size=64)
    try:
        start("zygote", preload_ranks.write_into, memory)
        assert bytes(memory.buf[:4]) == b"rank"
    finally:
        memory.close()
        memory.unlink()


def test_a_rank_starts_processes_of_its_own(folder: Path) -> None:
    assert results(start("zygote", preload_ranks.child_of_rank)) == [0]


# --- Output of a rank -------------------------------------------------------------------------------------

IMPORT = ["err of the import", "out of the import"]


def test_each_rank_prints_the_output_of_the_import_once(folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        start("zygote", preload_ranks.log_a_line, n=2, log_dir=tmp_path / "log")
    for rank in range(2):
        text = (tmp_path / "log" / f"workerlog.{rank}").read_text().splitlines()
        end = ["atexit of the import", "finalized"]
        assert Counter(text) == Counter([*IMPORT, f"a line of rank {rank}", *end] * 2)
        assert text.index(IMPORT[1]) < text.index(f"a line of rank {rank}") < text.index(end[0])


def test_a_forked_rank_writes_to_the_current_streams_of_the_program(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start("zygote", os.getpid)
    capfd.readouterr()
    copy = os.dup(1)
    other = os.open(folder / "other", os.O_CREAT | os.O_WRONLY)
    try:
        os.dup2(other, 1)
        start("zygote", preload_ranks.log_a_line)
    finally:
        os.dup2(copy, 1)
        os.close(copy)
        os.close(other)
    assert "a line of rank 0" in (folder / "other").read_text()
    assert "a line" not in capfd.readouterr().out


def test_an_import_that_writes_2_mb(folder: Path, tmp_path: Path) -> None:
    module(folder, "wordy", "import sys\nsys.stdout.write('x' * 2_000_000 + chr(10))")
    start("zygote", os.getpid, preload="wordy", log_dir=tmp_path / "log")
    assert (tmp_path / "log" / "workerlog.0").read_text() == "x" * 2_000_000 + "\n"


# --- How it ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["exit", "exit text", "raise", "interrupt", "kill", "segv", "term"])
def test_a_forked_rank_fails_like_a_spawned_one(folder: Path, how: str) -> None:
    seen = []
    for method in BOTH:
        with pytest.raises(RankError) as caught:
            start(method, preload_ranks.leaving, how, n=2, grace_period=20)
        error = caught.value
        seen.append((error.exitcode, str(error).partition("File")[0].replace("Process 1", "Process 0")))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("thread", ["thread", "atexit of the import", "finalized"]),
        ("atexit", ["atexit of the rank", "atexit of the import", "finalized"]),
    ],
)
def test_exit_functions_run_once_in_each_rank_and_not_in_the_zygote(
    folder: Path, how: str, said: list[str]
) -> None:
    body = (
        f"args = preload_ranks.leaving, ({how!r},), 1\n"
        "rlaunch.spawn(*args, start_method='zygote', preload='preloaded')\n"
        "rlaunch.end_zygotes()\n"
    )
    done = output_of(folder, body)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["out of the import", *said]


def test_unflushed_files_of_the_import(folder: Path) -> None:
    names = {"KEPT_FILE": str(folder / "kept"), "OPEN_FILE": str(folder / "open")}
    body = "rlaunch.spawn(preload_ranks.leaving, ('file',), 2, start_method='zygote', preload='preloaded')"
    done = output_of(folder, body, **names)
    assert (folder / "kept").read_text() == "kept\n" * 2
    assert (folder / "open").read_text() == "open\n"
    assert done.stdout.count("no end of line") == 2


def test_an_atexit_function_that_raises_changes_no_exit_code(folder: Path) -> None:
    assert results(start("zygote", preload_ranks.leaving, "raising atexit")) == [None]


def test_rlaunch_is_found_where_the_program_found_it() -> None:
    where = str(Path(rlaunch.__file__).parents[1])
    code = f"""import sys; sys.path.append({where!r}); import rlaunch
print(rlaunch.spawn(abs, (-1,), nprocs=1, backend="gloo", start_method="zygote", preload="json").results())"""
    # Without what is installed.
    command = [sys.executable, "-W", "ignore", "-S", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "[1]\n", ended.stderr
