"""Skipped and expected failures of tests on ranks: as of any other test."""

from __future__ import annotations

import sys

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
