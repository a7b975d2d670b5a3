"""Plugins and scripts around a session with tests on ranks: their hooks work as for plain tests."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from preloaded import python
from pytest_suites import HEAD, Suite, suite_fixture  # noqa: F401

ATTEMPTS = """
def attempt(name):
    with open(name, "a") as notes:
        notes.write("x")
    return os.path.getsize(name)

@ranks(2)
def test_always(rank):
    rank.barrier()
    attempt(f"always-{rank.rank}")
    rank.barrier()
    assert False

@ranks(2)
def test_once(rank):
    rank.barrier()
    number = attempt(f"once-{rank.rank}")
    rank.barrier()
    assert number > 1

@ranks(2)
@pytest.mark.skipif("False")
def test_never(rank):
    rank.barrier()
    attempt(f"never-{rank.rank}")
"""

# Each as a plugin in use does it: flaky, pytest-rerunfailures, pytest-retry.
RETRIES = {
    "by_the_exception": """
        from _pytest import runner

        @pytest.hookimpl
        def pytest_runtest_protocol(item, nextitem):
            usual = runner.call_and_report
            for number in range(2):
                seen = []

                def call_and_report(item, when, log=True, **options):
                    hook = getattr(item.ihook, f"pytest_runtest_{when}")
                    call = pytest.CallInfo.from_call(lambda: hook(item=item, **options), when)
                    report = item.ihook.pytest_runtest_makereport(item=item, call=call)
                    seen.append(call)
                    if number or not report.failed:
                        item.ihook.pytest_runtest_logreport(report=report)
                    return report

                runner.call_and_report = call_and_report
                try:
                    runner.pytest_runtest_protocol(item, nextitem)
                finally:
                    runner.call_and_report = usual
                if not any(call.excinfo for call in seen):
                    break
            return True
    """,
    "by_the_reports": """
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            for number in range(2):
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
                if number or not any(report.failed for report in reports):
                    break
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            return True
    """,
    "in_the_report": """
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if call.when == "call" and call.excinfo is not None:
                hook = item.ihook
                of_session = pytest.Class.from_parent(item.session, name="Other")
                hook.pytest_runtest_teardown(item=item, nextitem=of_session)
                item._initrequest()
                pytest.CallInfo.from_call(lambda: hook.pytest_runtest_setup(item=item), "setup")
                again = pytest.CallInfo.from_call(lambda: hook.pytest_runtest_call(item=item), "call")
                last = pytest.TestReport.from_item_and_call(item, again)
                report.outcome, report.longrepr = last.outcome, last.longrepr
            return report
    """,
}


@pytest.mark.parametrize("where", ["plugin", "conftest"])
@pytest.mark.parametrize("way", RETRIES)
def test_the_pytest_process_alone_runs_a_failed_test_again(
    suite: Suite, pytester: pytest.Pytester, way: str, where: str
) -> None:
    pytester.makepyfile(**{where: "import pytest\n" + textwrap.dedent(RETRIES[way])})
    options = ["-p", "plugin"] if where == "plugin" else []
    done = suite(ATTEMPTS, *options)
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["FAILED test_it.py::test_always - rank *: *assert False"])
    sizes = {path.name: path.stat().st_size for path in pytester.path.glob("[aon]*-[01]")}
    expected = {"always": 2, "once": 2, "never": 1}
    assert sizes == {f"{name}-{rank}": size for name, size in expected.items() for rank in range(2)}


def test_plugins_read_the_exception_of_a_rank(suite: Suite, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import os
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if "RANK" not in os.environ and call.excinfo is not None:
                print("seen", call.when, call.excinfo.typename)
            return report

        def pytest_exception_interact(node, call, report):
            if "RANK" not in os.environ:
                print("interacts", call.when, call.excinfo.typename)
        """
    )
    done = suite(
        """
        @ranks(2)
        def test_fails(rank):
            if rank.rank == 1:
                raise KeyError("why")
            rank.barrier()

        @ranks(2)
        def test_skips():
            pytest.skip("why")
        """,
        "-s",
    )
    done.assert_outcomes(failed=1, skipped=1)
    lines = [line for line in done.outlines if "seen " in line or "interacts " in line]
    words = [line[line.index(" call ") + 6 :] for line in lines]
    assert words == ["KeyError", "KeyError", "Skipped"]


OF_WORKERS = """
    import pytest

    class Nodes:
        @pytest.hookimpl(optionalhook=True)
        def pytest_configure_node(self, node):
            node.workerinput["name"] = "of the session"

    def pytest_configure(config):
        if config.getoption("numprocesses", None) or {always}:
            config.pluginmanager.register(Nodes())
        config.place = config.workerinput["name"] if hasattr(config, "workerinput") else "no worker"
"""


@pytest.mark.parametrize("options", [(), ("-p", "xdist"), ("-p", "xdist", "-n2")], ids=["none", "n0", "n2"])
@pytest.mark.parametrize("always", [True, False], ids=["always", "with-workers"])
def test_ranks_have_what_plugins_give_to_workers(
    suite: Suite, pytester: pytest.Pytester, options: tuple[str, ...], always: bool
) -> None:
    pytester.makepyfile(plugin=OF_WORKERS.format(always=always))
    done = suite(
        """
        @ranks(2)
        def test_it(request):
            config = request.config
            assert (config.place, config.workerinput.get("name")) == {expected!r}
        """.replace(
            "{expected!r}",
            repr(("of the session",) * 2 if always or "-n2" in options else ("no worker", None)),
        ),
        *("-p", "plugin"),
        *options,
    )
    done.assert_outcomes(passed=1)


def test_ranks_have_the_parameters_of_the_pytest_process(suite: Suite) -> None:
    done = suite(
        """
        import random

        class Op:
            def __init__(self, name):
                self.name = name

        class Closed(Op):
            def __reduce__(self):
                raise TypeError("not to be sent")
            def __repr__(self):
                return f"Closed {self.name}"

        SENTINEL = object()

        @pytest.mark.ranks(3)
        @pytest.mark.parametrize("op", {Op("sum"), Op("max"), Op("any"), Op("mean")})
        def test_set(rank, op):
            assert len(set(rank.gather(op.name))) == 1

        @pytest.fixture(params=[random.random()], ids=["p"])
        def drawn(request):
            return request.param

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("number", [random.random()], ids=["n"])
        def test_random(rank, number, drawn):
            assert len(set(rank.gather((number, drawn)))) == 1

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize(("f", "it", "closed"), [(lambda: 1, SENTINEL, Closed("a"))])
        def test_same(rank, f, it, closed):
            assert it is SENTINEL and f() == 1

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("closed", [Closed(random.random())], ids=["c"])
        def test_refused(rank, closed):
            pass
        """
    )
    done.assert_outcomes(passed=6, errors=1)
    done.stdout.fnmatch_lines(["*the parameter 'closed' differs between processes*"])


@pytest.mark.parametrize("method", ["spawn", "forkserver", "zygote"])
def test_ranks_do_not_run_the_script_that_called_pytest(pytester: pytest.Pytester, method: str) -> None:
    pytester.makepyfile(
        test_it=HEAD
        + f"""
@pytest.mark.ranks(2, start_method={method!r})
def test_on_ranks(rank):
    assert rank.gather(1) == [1, 1]
"""
    )
    script = pytester.makepyfile(
        script="""
        import sys
        import pytest

        open("started", "a").write("x")
        sys.exit(pytest.main(["-p", "no:cacheprovider", "test_it.py"]))
        """
    )
    done = pytester.run(*python("pytest"), script, timeout=100)
    done.assert_outcomes(passed=1)
    assert Path(pytester.path, "started").read_text() == "x"
