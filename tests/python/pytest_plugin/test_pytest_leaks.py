"""Tests on ranks: leftovers, devices, and modules that are imported once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from effort import each
from launching import runs
from pytest_suites import Suite, suite_fixture  # noqa: F401

LEAVES = """
import socket, subprocess, sys
from multiprocessing import shared_memory

SERVER = '''
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
time.sleep(1000)
'''

@ranks(2)
def test_leaves(rank, tmp_path):
    if rank.rank == 1:
        server = [sys.executable, "-c", SERVER]
        started = subprocess.Popen(server, stdout=subprocess.PIPE, start_new_session=True)
        print("port", int(started.stdout.readline()), "pid", started.pid, flush=True)
        shared_memory.SharedMemory(create=True, size=100_000)

@ranks(2)
def test_tidy(rank):
    memory = shared_memory.SharedMemory(create=True, size=100)
    memory.close()
    memory.unlink()
    subprocess.run([sys.executable, "-c", ""], check=True)
"""


def test_leftovers_are_an_error_of_that_test_and_are_removed(suite: Suite) -> None:
    done = suite(LEAVES, "-rA")
    done.assert_outcomes(passed=2, errors=1)
    text = str(done.stdout)
    port, pid = re.findall(r"^port (\d+) pid (\d+)$", text, re.MULTILINE)[0]
    assert f"  process {pid} (python" in text
    assert f"listening on 127.0.0.1:{port}" in text
    (memory,) = re.findall(r"  shared memory (psm_\w+) \(97 KiB\)", text)
    assert "leaked shared_memory objects" not in str(done.stderr)
    assert not runs(int(pid), "server.getsockname")
    assert not Path("/dev/shm", memory).exists()


@each("method", ["spawn", "fork", "forkserver"])
def test_shared_memory_is_found_with_any_start_method(method: str, suite: Suite) -> None:
    """Also of the first test of all, before which no tracker runs."""
    done = suite(
        f"""
        from multiprocessing import shared_memory

        @pytest.mark.ranks(2, start_method={method!r})
        def test_leaves(rank):
            shared_memory.SharedMemory(create=True, size=100_000)
        """
    )
    done.assert_outcomes(passed=1, errors=1)
    assert str(done.stdout).count("  shared memory psm_") == 2
    assert "leaked shared_memory objects" not in str(done.stderr)


@pytest.mark.parametrize(("mode", "outcomes"), [("warn", {"warnings": 1}), ("ignore", {})])
def test_a_suite_may_warn_of_leaks_or_ignore_them(mode: str, outcomes: dict[str, int], suite: Suite) -> None:
    done = suite(LEAVES, "-o", f"ranks_leaks={mode}")
    done.assert_outcomes(passed=2, **outcomes)
    assert ("the ranks have left behind" in str(done.stdout)) == (mode == "warn")


def test_shared_memory_of_paddle_is_removed_after_a_failed_test(suite: Suite) -> None:
    done = suite(
        """
        import signal, time

        @ranks(1)
        @pytest.mark.parametrize("fails", [True, False])
        def test_shares(rank, fails):
            read, write = os.pipe()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                name = f"paddle_{os.getpid()}_0_123"
                kept = open(f"/dev/shm/{name}", "w")
                os.write(write, name.encode())
                time.sleep(1000)
            print("shared", os.read(read, 100).decode(), flush=True)
            assert not fails
        """,
        "-rA",
    )
    done.assert_outcomes(passed=1, failed=1, errors=1)
    names = set(re.findall(r"^shared (paddle_\w+)$", str(done.stdout), re.MULTILINE))
    assert len(names) == 2
    assert [name for name in names if Path("/dev/shm", name).exists()] == []
    assert len(re.findall(r"  shared memory paddle_\w+ \(0 bytes\)", str(done.stdout))) == 1


GPUS = """
    import fcntl, time

    @pytest.mark.parametrize("number", range(4))
    @ranks(1, gpus=True)
    def test_one(rank, number):
        mine = os.environ["CUDA_VISIBLE_DEVICES"]
        assert os.environ["FLAGS_selected_gpus"] == "0"
        with open(os.path.join(os.environ["HELD"], mine), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The first tests of both workers run at the same time.
            open(os.path.join(os.environ["BEGUN"], str(number)), "w").close()
            limit = time.monotonic() + 60
            while len(os.listdir(os.environ["BEGUN"])) < 2:
                assert time.monotonic() < limit, "the other worker has begun no test"
                time.sleep(0.01)

    @ranks(2, gpus=True)
    def test_both(rank):
        assert rank.gather(os.environ["FLAGS_selected_gpus"]) == ["0", "1"]

    @ranks(3, gpus=True)
    def test_too_many(rank):
        pass

    @ranks(1, gpus="1")
    def test_named(rank):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
"""


def test_no_gpu_is_given_to_two_tests_at_once(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for name in ("HELD", "BEGUN"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    done = suite(GPUS, "-n", "2", "-p", "xdist")
    done.assert_outcomes(passed=6, skipped=1)
    assert "3 devices are wanted, and there are only 2" in str(done.stdout)
    assert sorted(path.name for path in (tmp_path / "HELD").iterdir()) == ["0", "1"]


ONCE = """
    import once

    @pytest.mark.parametrize("number", range(3))
    @pytest.mark.ranks(2)
    def test_shared(rank, number):
        assert len(set(rank.gather(once.pid))) == 1
        assert once.pid != os.getpid()
        with open(os.environ["PIDS"], "a") as file:
            file.write(f"{once.pid}\\n")

    @pytest.mark.ranks(1, start_method="spawn")
    def test_own(rank):
        assert once.pid == os.getpid()
"""


def test_preloaded_modules_are_imported_once(
    suite: Suite, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytester.makepyfile(once="import os\npid = os.getpid()\n")
    pytester.syspathinsert()
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    done = suite(ONCE, "-o", "ranks_preload=once")
    done.assert_outcomes(passed=4)
    assert len(set((tmp_path / "pids").read_text().split())) == 1


def test_a_zygote_that_cannot_start_is_an_error_of_the_test(suite: Suite) -> None:
    done = suite(
        """
        @pytest.mark.ranks(2, preload="no_such_module")
        def test_refused(rank):
            pass

        @pytest.mark.ranks(2, preload="auto,no_such_module")
        def test_without(rank):
            assert rank.gather(1) == [1, 1]
        """
    )
    done.assert_outcomes(passed=1, errors=1)
    assert "No module named 'no_such_module'" in str(done.stdout)


@pytest.mark.parametrize(
    ("visible", "wanted", "has"),
    [
        ("", "[0, 1]", "none"),
        ("0", "'0,1'", "only 0"),
        ("", "['GPU-1', 'GPU-2']", "none"),
        ("2,3", "[0, 3]", "only 2, 3"),
    ],
)
def test_a_test_on_gpus_that_are_not_there_is_skipped(
    visible: str, wanted: str, has: str, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    done = suite(f"@pytest.mark.ranks(2, gpus={wanted})\ndef test_them(rank): ...")
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines([f"SKIPPED * ranks on GPUs: devices * are wanted, and there are {has}"])
