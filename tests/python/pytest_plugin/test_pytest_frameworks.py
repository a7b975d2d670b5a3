"""Tests on ranks that import a framework themselves, for real."""

from __future__ import annotations

from effort import each
from pytest_suites import Suite, suite_fixture  # noqa: F401

BEGIN = {
    "torch": """\
            import torch.distributed as dist

            dist.init_process_group("gloo")
            ours = torch.tensor([float(rank.rank + 1)])""",
    "paddle": """\
            import paddle.distributed as dist

            dist.init_parallel_env()
            ours = paddle.to_tensor([float(rank.rank + 1)])""",
}


@each("framework", BEGIN)
def test_all_reduce_with(framework: str, suite: Suite) -> None:
    done = suite(
        f"""
        @pytest.mark.ranks(2, frameworks="{framework}", timeout=100)
        def test_all_reduce(rank):
            import {framework}
{BEGIN[framework]}
            dist.all_reduce(ours)
            assert ours.item() == 3
            assert rank.gather(ours.item()) == [3, 3]
            if "{framework}" == "torch":
                assert [t.item() for t in rank.gather(ours)] == [3, 3]
            assert rank.rank == 0, "only rank 1 fails"
            dist.barrier()

        def test_not_imported_here():
            import sys
            assert "{framework}" not in sys.modules
        """
    )
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "E*AssertionError: only rank 1 fails",
            "rank 0: *",
            "rank 1: failed: AssertionError: only rank 1 fails (above)",
        ]
    )
    # Whether it was stopped in its barrier or had lost its peer by then.
    done.stdout.re_match_lines([r"rank 0: (stopped in test_it.py:1\d|failed too:)"])
