"""Tests on ranks that use the frameworks, for real."""

from __future__ import annotations

from pytest_suites import Suite, suite_fixture  # noqa: F401


def test_torch(suite: Suite) -> None:
    done = suite(
        """
        @pytest.mark.ranks(2, frameworks="torch", timeout=100)
        def test_all_reduce(rank):
            import torch
            import torch.distributed as dist

            dist.init_process_group("gloo")
            ours = torch.tensor([float(rank.rank + 1)])
            dist.all_reduce(ours)
            assert ours.item() == 3
            assert [t.item() for t in rank.gather(ours)] == [3, 3]
            assert rank.rank == 0, "only rank 1 fails"
            dist.barrier()
        """
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        [
            "E*AssertionError: only rank 1 fails",
            "rank 0: *",
            "rank 1: failed: AssertionError: only rank 1 fails (above)",
        ]
    )
    # Whether it was stopped in its barrier or had lost its peer by then.
    done.stdout.re_match_lines([r"rank 0: (stopped in test_it.py:15|failed too:)"])


def test_paddle(suite: Suite) -> None:
    done = suite(
        """
        @pytest.mark.ranks(2, frameworks="paddle", timeout=100)
        def test_all_reduce(rank):
            import paddle
            import paddle.distributed as dist

            dist.init_parallel_env()
            ours = paddle.to_tensor([float(rank.rank + 1)])
            dist.all_reduce(ours)
            assert rank.gather(ours.item()) == [3, 3]

        def test_not_imported_here():
            import sys
            assert "paddle" not in sys.modules
        """
    )
    done.assert_outcomes(passed=2)
