"""Skipped and expected failures of tests on ranks: as of any other test."""

from __future__ import annotations

import sys
import textwrap

import pytest
from pytest_suites import Suite, suite_fixture  # noqa: F401


def test_skips(suite: Suite) -> None:
    done = suite(
        """
        @ranks(2)
        def test_one_rank_skips(rank):
            if rank.rank == 1:
                pytest.skip("no device for it")
            rank.barrier()

        @pytest.fixture
        def absent():
            pytest.importorskip("no_such_module")

        @ranks(2)
        def test_fixture_skips(absent):
            pass

        @ranks(2)
        @pytest.mark.skip(reason="never started")
        def test_marked():
            open("started", "w").close()

        @ranks(1)
        @pytest.mark.skipif("'RANK' in os.environ", reason="only the pytest process is asked")
        def test_asked_here():
            pass

        def test_none_was_started():
            assert not os.path.exists("started")
        """
    )
    done.assert_outcomes(passed=2, skipped=3)
    done.stdout.fnmatch_lines(["SKIPPED [[]1] test_it.py:7: no device for it"])
    done.stdout.fnmatch_lines(["SKIPPED [[]1] test_it.py:*: could not import 'no_such_module'*"])
    done.stdout.fnmatch_lines(["SKIPPED [[]1] test_it.py:*: never started"])


def test_expected_failures(suite: Suite) -> None:
    done = suite(
        """
        from rlaunch import RankError

        class Own(ValueError):
            def __init__(self, a, b):
                super().__init__(a)

        def fail_on_1(rank, error):
            if rank.rank == 1:
                raise error
            rank.barrier()

        @ranks(2)
        @pytest.mark.xfail
        def test_plain(rank):
            fail_on_1(rank, ValueError())

        @ranks(2)
        @pytest.mark.xfail(raises=Own, strict=True)
        def test_raises(rank):
            fail_on_1(rank, Own(1, 2))

        @ranks(1)
        @pytest.mark.xfail(raises=RankError)
        def test_dies():
            os._exit(1)

        @ranks(1, timeout=3)
        @pytest.mark.xfail(raises=TimeoutError)
        def test_hangs():
            __import__("time").sleep(100)

        @ranks(1)
        @pytest.mark.xfail(run=False, reason="not to be run")
        def test_not_run():
            open("started", "w").close()

        @ranks(2)
        def test_by_hand(rank):
            if rank.rank == 1:
                pytest.xfail("by hand")
            rank.barrier()

        @ranks(1)
        def test_added(request):
            request.node.add_marker(pytest.mark.xfail(reason="added"))
            assert False

        @ranks(2)
        @pytest.mark.xfail(raises=KeyError)
        def test_another_error(rank):
            fail_on_1(rank, Own(1, 2))

        @ranks(1)
        @pytest.mark.xfail(False, reason="does not hold")
        def test_condition():
            assert False

        @ranks(1)
        @pytest.mark.xfail(strict=True, reason="has to fail")
        def test_passes_strictly():
            pass

        @ranks(1)
        @pytest.mark.xfail
        def test_passes():
            pass

        def test_none_was_started():
            assert not os.path.exists("started")
        """
    )
    done.assert_outcomes(passed=1, xfailed=7, xpassed=1, failed=3)
    done.stdout.fnmatch_lines(["*XPASS(strict)* has to fail"])
    done.stdout.fnmatch_lines(["FAILED test_it.py::test_another_error - rank 1: test_it.Own: 1"])
    done.stdout.fnmatch_lines(["XFAIL test_it.py::test_by_hand - *by hand"])
    done.stdout.fnmatch_lines(["XFAIL test_it.py::test_added - added"])


WORSE_THAN_A_SKIP = {
    "assert False": "failed",
    "os.kill(os.getpid(), 11)": "failed",
    "os._exit(3)": "failed",
    "pytest.fail('no')": "failed",
    "threading.Event().wait()": "failed",
    "atexit.register(os.abort)": "errors",
    "request.addfinalizer(os.abort)": "errors",
    "request.addfinalizer(os.abort); pytest.skip('too')": "errors",
    "atexit.register(os.abort); pytest.skip('too')": "errors",
    "rank.barrier()": None,
    "pass": None,
}


@pytest.mark.parametrize("skip", ["skip", "xfail"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_a_skip_of_one_rank_hides_nothing_of_another(suite: Suite, skip: str, is_first: bool) -> None:
    """A file is there once a rank has gone as far as it can; the other one begins then.

    Ranks of the start method `fork` have no exit hooks; those of a preloaded process have.
    """
    tests = [
        f"""
        @pytest.mark.ranks(3, preload="json", timeout={5 if ".wait()" in code else 90})
        def test_{number}(rank, tmp_path, request):
            mine, others = tmp_path / "skipped", tmp_path / "worse"
            if rank.rank == 1:
                if {not is_first}:
                    wait_for(others)
                request.addfinalizer(mine.touch)
                pytest.{skip}("one rank")
            if rank.rank == 2 and {is_first or "barrier" in code}:
                rank.barrier()
            if rank.rank == 2:
                wait_for(mine)  # It is not stopped before the skip, whatever rank 0 does.
                return
            if {is_first}:
                wait_for(mine)
            request.addfinalizer(others.touch)
            others.touch()
            {code.replace("pytest.skip", f"pytest.{skip}")}
        """
        for number, code in enumerate(WORSE_THAN_A_SKIP)
    ]
    head = """
        import atexit, threading, time

        def wait_for(path):
            while not path.exists():
                time.sleep(0.01)
    """
    done = suite(head + "".join(tests))
    failed = sum(outcome == "failed" for outcome in WORSE_THAN_A_SKIP.values())
    skipped = {"skip": "skipped", "xfail": "xfailed"}[skip]
    counts = {"failed": failed, skipped: len(tests) - failed, "errors": 4}
    done.assert_outcomes(**counts)
    assert done.ret == 1


DEATHS = {
    "exit": "atexit.register(os.kill, os.getpid(), {signal})",
    "thread": "threading.Thread(target=lambda: (threading.main_thread().join(), "
    "os.kill(os.getpid(), {signal}))).start()",
    "fixture": "request.addfinalizer(lambda: os.kill(os.getpid(), {signal}))",
}


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n2")], ids=["alone", "workers"])
def test_a_rank_that_dies_in_or_after_its_teardown_is_an_error_of_it(
    suite: Suite, options: tuple[str, ...]
) -> None:
    ways = [
        *(
            ("spawn", 2, 1, name, way)
            for name in ("SIGABRT", "SIGSEGV", "SIGKILL", "SIGTERM")
            for way in DEATHS
        ),
        *((method, 1, 0, "SIGABRT", "exit") for method in ("spawn", "zygote")),
        *((method, 1, 0, "SIGABRT", "fixture") for method in ("fork", "forkserver")),  # No exit functions.
        ("zygote", 2, 1, "SIGSEGV", "fixture"),
    ]
    tests = []
    for number, (method, count, culprit, name, way) in enumerate(ways):
        preload = ", preload='json'" if method == "zygote" else ""
        tests.append(
            f"""
        @pytest.mark.ranks({count}, start_method={method!r}{preload})
        def test_{number}(rank, request):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if rank.rank == {culprit}:
                {DEATHS[way].format(signal=f"signal.{name}")}

        def test_{number}_after():
            pass
        """
        )
    done = suite("import atexit, signal, threading\n" + "".join(map(textwrap.dedent, tests)), *options)
    done.assert_outcomes(passed=2 * len(ways), errors=len(ways))
    assert done.ret == 1
    for number, (_, _, culprit, name, _) in enumerate(ways):
        done.stdout.fnmatch_lines([f"ERROR test_it.py::test_{number} - rank {culprit} was killed by {name}*"])


CALLS = """
    def fails(*args):
        raise ValueError("why")

    def exits():
        os._exit(3)

    def fails_twice():
        try:
            fails()
        except ValueError as error:
            nested = ExceptionGroup("inner", [error])
            raise ExceptionGroup("two", [nested, KeyError("k")]) from error

    @pytest.mark.skipif("sys.version_info < (3, 11)")
    def test_group():
        import rlaunch
        rlaunch.spawn(fails_twice, nprocs=1, start_method="fork")

    def test_spawn():
        import rlaunch
        rlaunch.spawn(fails, nprocs=1)

    def test_results():
        import rlaunch
        rlaunch.spawn(exits, nprocs=1, join=False, start_method="fork").results()

    def test_torch():
        import rlaunch.torch
        rlaunch.torch.spawn(fails, nprocs=1)

    def test_elastic():
        import rlaunch.torch
        config = rlaunch.torch.LaunchConfig(1, 1, 1, rdzv_backend="c10d", max_restarts=0)
        rlaunch.torch.elastic_launch(config, fails)()

    def test_launch(tmp_path):
        import rlaunch
        (tmp_path / "script.py").write_text("raise ValueError('why')")
        rlaunch.launch(tmp_path / "script.py", nproc_per_node=1, log_dir=tmp_path)

    def test_missing():
        import rlaunch
        rlaunch.launch("/missing.py", nproc_per_node=1)
"""


def test_a_test_that_starts_ranks_itself_shows_what_they_raised_and_no_frames_of_rlaunch(
    suite: Suite,
) -> None:
    done = suite(CALLS, "--tb=short")
    for name in ("spawn", "torch", "elastic", "launch"):
        done.stdout.fnmatch_lines([f"FAILED test_it.py::test_{name} - rank 0: ValueError: why"])
    if sys.version_info >= (3, 11):
        group = "ExceptionGroup: two (2 sub-exceptions)"
        done.stdout.fnmatch_lines([f"FAILED test_it.py::test_group - rank 0: {group}"])
    done.stdout.fnmatch_lines(["FAILED test_it.py::test_results - Process 0 terminated with exit code 3."])
    done.stdout.fnmatch_lines(["FAILED test_it.py::test_missing - training_script /missing.py: does not*"])
    assert "_spawn/context.py" not in str(done.stdout)
    frames = [line for line in str(done.stdout).splitlines() if line.endswith((": in spawn", ": in launch"))]
    assert frames == []


def test_ranks_that_cannot_answer_are_read_from_outside(suite: Suite) -> None:
    done = suite(
        """
        import os, signal, time

        def load():
            os.kill(os.getpid(), signal.SIGSTOP)

        def compute():
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            time.sleep(1000)

        @ranks(3, timeout=3)
        def test_hangs(rank):
            if rank.rank == 1:
                load()
            if rank.rank == 2:
                compute()
            rank.barrier()
        """
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["rank 1:", "    *test_it.py:16 in test_hangs", "    *test_it.py:7 in load"])
    done.stdout.fnmatch_lines(
        ["rank 2:", "    *test_it.py:18 in test_hangs", "    *test_it.py:11 in compute"]
    )


def test_a_failure_of_the_test_outranks_one_of_another_ranks_teardown(suite: Suite) -> None:
    done = suite(
        """
        import time

        @pytest.fixture
        def resource(rank):
            yield
            assert rank.rank == 0, "teardown bug"

        class Slow(ValueError):
            def __str__(self):
                time.sleep(0.2)  # The report of rank 1's teardown is earlier.
                return "body bug"

        @ranks(2)
        def test_it(rank, resource):
            if rank.rank == 0:
                raise Slow()
        """
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*Slow: body bug", "FAILED test_it.py::test_it - rank 0: *body bug"])
