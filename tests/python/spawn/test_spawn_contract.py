"""``rlaunch.spawn`` in one process, against what ``paddle.distributed.spawn`` promises its callers.

Where a test says "unlike Paddle", rlaunch differs on purpose.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import re
import reprlib
import signal
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import ranks
import rlaunch
from effort import cases, each
from rlaunch import NoResultError
from rlaunch._spawn.plan.paddle_devices import default_nprocs
from spawning import METHODS, failure, results
from spawning import nothing_left_fixture as _nothing_left  # noqa: F401
from spawning import start_fixture as _start  # noqa: F401

RULE = "-" * 46
CPU_ONLY = (
    "Your model will be trained under CPUONLY mode by using GLOO,"
    "because CPUPlace is specified manually or your installed PaddlePaddle only support CPU Device."
)

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:Your model will be trained"),
]


# --- Signature and order of operations ------------------------------------------------------------------


def test_the_signature_is_paddles() -> None:
    parameters = inspect.signature(rlaunch.spawn).parameters.values()
    assert [(p.name, p.default) for p in parameters] == [
        ("func", inspect.Parameter.empty),
        ("args", ()),
        ("nprocs", -1),
        ("join", True),
        ("daemon", False),
        ("options", inspect.Parameter.empty),
    ]
    assert [p.kind.name for p in parameters] == ["POSITIONAL_OR_KEYWORD"] * 5 + ["VAR_KEYWORD"]


@each("method", METHODS)
def test_the_context_comes_back_joined(method: str) -> None:
    context = rlaunch.spawn(ranks.environ, ("PADDLE_TRAINER_ID",), 2, start_method=method)
    assert type(context) is rlaunch.MultiprocessContext
    assert results(context) == [{"PADDLE_TRAINER_ID": "0"}, {"PADDLE_TRAINER_ID": "1"}]
    assert [p.exitcode for p in context.processes] == [0, 0]
    assert context.sentinels == {}
    assert context.join() is True
    label = {"spawn": "Spawn", "fork": "Fork", "forkserver": "ForkServer"}[method]
    assert all(re.fullmatch(label + r"Process-\d+", p.name) for p in context.processes)


def test_start_method_none_is_spawn() -> None:
    context = rlaunch.spawn(ranks.where_am_i, nprocs=1, start_method=None)
    assert results(context)[0]["name"].startswith("SpawnProcess-")


@each("method", METHODS)
def test_a_rank_shares_the_session_and_has_no_stdin(method: str) -> None:
    (seen,) = results(rlaunch.spawn(ranks.where_am_i, nprocs=1, start_method=method))
    assert (seen["session"], seen["group"]) == (os.getsid(0), os.getpgid(0))
    assert (seen["stdin"], seen["daemon"], seen["parent"]) == ("", False, os.getpid())


@each("method", METHODS)
def test_a_rank_has_exactly_the_variables_that_paddle_sets(method: str) -> None:
    rows = results(rlaunch.spawn(ranks.variables, nprocs=2, start_method=method))
    endpoints = rows[0]["PADDLE_TRAINER_ENDPOINTS"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+,127\.0\.0\.1:\d+", endpoints)
    assert rows == [
        {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_CURRENT_ENDPOINT": endpoints.split(",")[rank],
            "PADDLE_TRAINERS_NUM": "2",
            "PADDLE_TRAINER_ENDPOINTS": endpoints,
            "PADDLE_DISTRI_BACKEND": "gloo",
        }
        for rank in (0, 1)
    ]
    assert not [name for name in os.environ if name.startswith("PADDLE_")]


def test_an_unknown_option_is_found_before_a_bad_nprocs() -> None:
    with pytest.raises(ValueError, match=r"config option \(bogus\)"):
        rlaunch.spawn(ranks.give_none, nprocs="2", bogus=1)  # type: ignore[arg-type]


def test_the_environment_is_made_before_the_start_method_is_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(AssertionError, match="single trainer"):
        rlaunch.spawn(ranks.give_none, nprocs=1, ips="a,b", start_method="bogus")
    with pytest.raises(ValueError, match=r"^cannot find context for 'bogus'$"):
        rlaunch.spawn(ranks.give_none, nprocs=1, print_config=True, start_method="bogus")
    assert "print_config: True\n" in capsys.readouterr().out


@each("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("func", "args", "error", "text"),
    [
        (ranks.nothing, (), pickle.PicklingError, "Can't pickle <function <lambda>"),
        (lambda: None, (), (pickle.PicklingError, AttributeError), "Can't pickle"),
        (ranks.echo, ((i for i in ()),), TypeError, "cannot pickle 'generator' object"),
    ],
)
def test_unpicklable_arguments_fail_in_the_caller(
    method: str, func: Any, args: Any, error: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(error, match=re.escape(text)):
        rlaunch.spawn(func, args, 2, start_method=method)
    assert multiprocessing.active_children() == []


@each("method", ["spawn", "forkserver"])
def test_a_rank_that_cannot_be_pickled_takes_the_started_ones_with_it(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Unlike Paddle, which leaves rank 0 alone.
    monkeypatch.setattr(ranks.PicklesOnce, "pickled", 0)
    with pytest.raises(TypeError, match="no second copy"):
        rlaunch.spawn(ranks.sleep, (ranks.PicklesOnce(),), 2, start_method=method)
    assert multiprocessing.active_children() == []


def test_with_fork_nothing_is_pickled() -> None:
    context = rlaunch.spawn(lambda items: sum(items), ((i for i in (1, 2)),), 2, start_method="fork")
    assert results(context) == [3, 3]


@pytest.mark.parametrize("args", [[1, "b"], "ab", (), {"k": 1}, range(2)])
def test_args_is_anything_that_can_be_iterated(args: Any) -> None:
    assert results(rlaunch.spawn(ranks.echo, args, 1)) == [tuple(args)]


LONG = reprlib.repr(10**99)


@pytest.mark.parametrize(
    ("func", "args", "text"),
    [
        (ranks.echo, 5, "args must be a tuple, but got 5 of type int; give (5,)"),
        (ranks.echo, 10**99, f"args must be a tuple, but got {LONG} of type int; give ({LONG},)"),
        (ranks.echo, None, "args must be a tuple, but got None of type NoneType; give ()"),
        (
            "echo",
            (),
            "func must be a function, but got 'echo' of type str; give its name without quotes and ()",
        ),
        (
            None,
            (),
            "func must be a function, but got None of type NoneType; give its name without quotes and ()",
        ),
    ],
)
def test_a_call_that_cannot_be_made_starts_no_rank(func: Any, args: Any, text: str) -> None:
    """Unlike Paddle, whose ranks fail."""
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        rlaunch.spawn(func, args, 1)


@each("method", METHODS)
def test_a_bound_method_runs(method: str) -> None:
    assert results(rlaunch.spawn(ranks.Adder(40).add, (2,), 2, start_method=method)) == [42, 43]


@each("method", METHODS)
def test_things_of_multiprocessing_pass_as_arguments(method: str) -> None:
    mp = multiprocessing.get_context(method)
    lock, queue, number = mp.Lock(), mp.SimpleQueue(), mp.Value("i", 0)
    rlaunch.spawn(ranks.use, (lock, queue, number), 2, start_method=method)
    assert (number.value, sorted([queue.get(), queue.get()])) == (2, [0, 1])


# --- Options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bogus", ""),
        ("npus", ""),
        ("mlus", ""),
        ("", ""),
        ("nproc", " Did you mean nprocs?"),
        ("grace_perod", " Did you mean grace_period?"),
    ],
)
def test_an_option_that_does_not_exist(name: str, hint: str) -> None:
    text = f"The config option ({name}) of `paddle.distributed.spawn` is not supported.{hint}"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        rlaunch.spawn(ranks.give_none, nprocs=1, **{name: 1})


def test_the_first_unsupported_option_is_named() -> None:
    with pytest.raises(ValueError, match=r"\(zz\)"):
        rlaunch.spawn(ranks.give_none, nprocs=1, ips="127.0.0.1", zz=1, aa=1)


def test_deprecated_options_warn_in_keyword_order_and_work() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        context = rlaunch.spawn(
            ranks.variables, nprocs=1, started_port=None, selected_devices="9", cluster_node_ips="localhost"
        )
    deprecations = [w for w in said if w.category is DeprecationWarning]
    assert [str(w.message) for w in deprecations] == [
        f"The config option ({name}) of `paddle.distributed.spawn` is deprecated. "
        "Please use the latest config options stated in the `spawn` API documentation."
        for name in ("started_port", "selected_devices", "cluster_node_ips")
    ]
    assert {w.filename for w in said} == {__file__}
    assert results(context)[0]["PADDLE_CURRENT_ENDPOINT"].startswith("localhost:")


def test_supported_options_are_silent_but_for_gloo_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "paddle", types.ModuleType("paddle"))
    options = {"start_method": "spawn", "ips": "127.0.0.1", "gpus": None, "xpus": None, "backend": "gloo"}
    own = {"grace_period": 1, "log_dir": tmp_path}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            rlaunch.spawn(ranks.give_none, nprocs=0, print_config=False, **options, **own)
    assert [(w.category, str(w.message)) for w in said] == [(UserWarning, CPU_ONLY)] * 2


@pytest.mark.parametrize(
    ("imported", "frameworks", "warns"),
    [
        (False, None, False),
        (False, "torch", False),
        (False, "torch,Paddle", True),
        (True, None, True),
        (True, "torch", False),
    ],
)
def test_programs_without_paddle_hear_nothing_of_its_cpu_only_mode(
    imported: bool, frameworks: str | None, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Unlike Paddle's own function, which no other program calls.
    if imported:
        monkeypatch.setitem(sys.modules, "paddle", types.ModuleType("paddle"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rlaunch.spawn(ranks.give_none, nprocs=0, frameworks=frameworks)
    assert [str(w.message) for w in said] == ([CPU_ONLY] if warns else [])


@pytest.mark.parametrize("nprocs", [0, 2])
def test_print_config(nprocs: int, capsys: pytest.CaptureFixture[str]) -> None:
    rlaunch.spawn(ranks.give_none, nprocs=nprocs, print_config=True, ips=" 127.0.0.1 ", start_method="fork")
    assert capsys.readouterr().out == (
        "-----------  Configuration Arguments -----------\n"
        "cluster_node_ips:  127.0.0.1 \nips:  127.0.0.1 \nnode_ip: 127.0.0.1\npaddle_cpuonly: True\n"
        "print_config: True\nselected_devices: None\nstarted_port: None\nuse_paddlecloud: False\n"
        "------------------------------------------------\n"
    )


def test_without_print_config_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    rlaunch.spawn(ranks.give_none, nprocs=1)
    assert capfd.readouterr() == ("", "")


def test_nprocs_minus_one_is_one_for_each_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert default_nprocs() == 3
    assert results(rlaunch.spawn(ranks.my_rank, start_method="fork")) == [0, 1, 2]


@pytest.mark.parametrize("nprocs", [0, -2])
def test_no_ranks(nprocs: int, caplog: pytest.LogCaptureFixture) -> None:
    context = rlaunch.spawn(ranks.boom, ("never",), nprocs)
    assert caplog.messages == [
        f"nprocs={nprocs} starts no rank; give 1 or more, or -1 for one on each device"
    ]
    assert (context.processes, context.sentinels, context.return_queues) == ([], {}, [])
    assert (context.join(), context.join(0)) == (True, True)


@pytest.mark.parametrize(("nprocs", "kind"), [(None, "NoneType"), ("2", "str"), (2.0, "float")])
def test_nprocs_that_is_no_number(nprocs: Any, kind: str) -> None:
    with pytest.raises(TypeError) as caught:
        rlaunch.spawn(ranks.give_none, nprocs=nprocs)
    why = f"'{kind}' object cannot be interpreted as an integer"
    assert str(caught.value) == f"nprocs={nprocs!r}: {why}; give a number, such as nprocs=2"


@pytest.mark.parametrize("backend", ["cncl", "hccl", "mpi", "NCCL", None, "unknown", ""])
def test_a_backend_that_does_not_exist(backend: Any) -> None:
    with pytest.raises(ValueError, match="backend argument can only be one of") as caught:
        rlaunch.spawn(ranks.give_none, nprocs=1, backend=backend)
    assert str(caught.value) == (
        "paddle.distributed initialize error, backend argument can only be one of "
        f"'nccl', 'gloo', 'bkcl', 'auto', 'heter', 'xccl' but got {backend}"
    )


@pytest.mark.parametrize(("kind", "value"), [("ips", "1.1.1.1,2.2.2.2"), ("cluster_node_ips", "a,b")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gloo_is_for_one_node(kind: str, value: str) -> None:
    with pytest.raises(AssertionError) as caught:
        rlaunch.spawn(ranks.give_none, nprocs=1, **{kind: value})
    # The placeholder is Paddle's own.
    assert str(caught.value) == ("CPUONLY spawn only support single trainer, that is len(ips)=1, but got %s.")


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gloo_refuses_paddlecloud_before_several_nodes(value: bool) -> None:
    with pytest.raises(AssertionError, match=r"^CPUONLY spawn doesn't support use paddle cloud$"):
        rlaunch.spawn(ranks.give_none, nprocs=1, use_paddlecloud=value, ips="a,b")


def test_gloo_refuses_a_job_inside_a_job_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert results(rlaunch.spawn(ranks.nested, (2,), 1)) == [[0, 1]]
    error = failure(ranks.nested, 1, n=2)
    assert error.traceback is not None
    assert error.traceback.endswith("AssertionError: CPUONLY spawn doesn't support multi-trainer\n")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    with pytest.raises(AssertionError, match=r"^CPUONLY spawn doesn't support multi-trainer$"):
        rlaunch.spawn(ranks.give_none, nprocs=1)


@pytest.mark.parametrize("grace", [-1, "soon", float("nan"), float("inf")])
def test_a_grace_that_is_no_time(grace: Any) -> None:
    with pytest.raises(ValueError, match=r"^grace_period must be a number of seconds"):
        rlaunch.spawn(ranks.give_none, nprocs=1, grace_period=grace)


@each("method", METHODS)
def test_log_dir(method: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deep" / "log"
    for _ in range(2):
        rlaunch.spawn(ranks.speak, ("says",), 2, start_method=method, log_dir=folder)
    for rank in (0, 1):
        log = folder / f"workerlog.{rank}"
        assert log.stat().st_mode & 0o777 == 0o600
        said = [f"says err {rank}"] * 2 + [f"says out {rank}"] * 2
        assert sorted(log.read_text().splitlines()) == said
    assert capfd.readouterr() == ("", "")


# --- How a rank may end ---------------------------------------------------------------------------------


@each("method", METHODS)
def test_none_is_a_result(method: str) -> None:
    assert results(rlaunch.spawn(ranks.give_none, nprocs=2, start_method=method)) == [None, None]


@each("method", METHODS)
def test_a_result_that_cannot_be_pickled_fails_its_rank(method: str) -> None:
    error = failure(ranks.pick_generator, method=method)
    assert error.traceback is not None
    reason = "cannot be sent to the parent: result: generator\ncannot pickle 'generator' object\n"
    assert f"TypeError: {reason}" in error.traceback
    assert (error.rank, error.exitcode) == (0, 1)


@each("method", METHODS)
def test_an_exception_is_reported_verbatim(method: str) -> None:
    error = failure(ranks.by_rank, ("sleep",), ("boom", "why \u00e9"), n=2, method=method)
    trace = error.traceback
    assert trace is not None
    assert str(error) == f"\n\n{RULE}\nProcess 1 terminated with the following error:\n{RULE}\n\n{trace}"
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("ValueError: why \u00e9\n")
    assert "in boom\n    raise ValueError(text)\n" in trace
    assert (error.rank, error.exitcode) == (1, 1)


@each("method", METHODS)
@pytest.mark.parametrize(
    ("name", "args"),
    [("leave", ()), ("leave", (0,)), ("leave", (None,)), ("leave_now", (0,))],
)
def test_a_rank_that_exits_successfully_has_no_result(method: str, name: str, args: tuple[Any, ...]) -> None:
    context = rlaunch.spawn(getattr(ranks, name), args, 1, start_method=method)
    assert context.processes[0].exitcode == 0
    for queue in (context.return_queues[0], context.error_queues[0]):
        assert queue.empty()
        # Unlike Paddle, where get() never returns.
        with pytest.raises(NoResultError):
            queue.get()
    assert issubclass(NoResultError, EOFError)


@each("method", METHODS)
@pytest.mark.parametrize(
    ("name", "arg", "code", "said"),
    [
        ("leave", 3, 3, ""),
        ("leave", "bye", 1, "bye\n"),
        ("leave_now", 7, 7, ""),
        ("raise_base", "GeneratorExit", 1, "GeneratorExit: why\n"),
        ("raise_base", "Odd", 1, "ranks.Odd: why\n"),
    ],
)
def test_a_rank_that_exits_unsuccessfully_fails(
    method: str, name: str, arg: Any, code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    error = failure(getattr(ranks, name), arg, method=method)
    assert (error.rank, error.exitcode) == (0, code)
    # Unlike Paddle, whose exception says nothing but the exit code.
    if said:
        assert (error.traceback or "").endswith(said)
    else:
        assert (str(error), error.traceback) == (f"Process 0 terminated with exit code {code}.", None)
    heard = capfd.readouterr().err
    assert heard.endswith(said)
    assert ("Traceback" in heard) == (name == "raise_base")


@each("method", METHODS)
def test_a_keyboard_interrupt_is_quiet_and_no_success(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    # Unlike Paddle, where it counts as success.
    error = failure(ranks.raise_base, "KeyboardInterrupt", method=method)
    assert str(error) == "Process 0 terminated with signal SIGINT."
    assert (error.exitcode, error.traceback) == (-signal.SIGINT, None)
    assert capfd.readouterr().err == ""


@each("method", METHODS)
@pytest.mark.parametrize(
    ("number", "name"),
    [(9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM"), (2, "SIGINT"), (6, "SIGABRT"), (37, "37")],
)
def test_a_signal_is_named(method: str, number: int, name: str) -> None:
    # 37 has no name; unlike Paddle, whose join raises a ValueError about that.
    error = failure(ranks.kill_self, number, method=method)
    assert str(error) == f"Process 0 terminated with signal {name}."
    assert (error.exitcode, error.traceback) == (-number, None)


def test_every_signal_has_the_name_that_python_gives_it() -> None:
    harmless = {
        *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
        *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    }
    deadly = sorted(signal.valid_signals() - harmless)[:: cases(4, 1)]
    names = [s.name if isinstance(s, signal.Signals) else str(s) for s in deadly]
    said = [str(failure(ranks.kill_self, int(s), method="fork")) for s in deadly]
    assert said == [f"Process 0 terminated with signal {name}." for name in names]


@each("method", METHODS)
def test_a_thread_delays_the_end_but_not_the_result(method: str, start: Any, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    context = start(ranks.leave_thread, str(flag), method=method)
    assert context.return_queues[0].get() == "returned"
    assert context.join(0.2) is False
    flag.touch()
    assert context.join() is True


@each("method", METHODS)
def test_a_daemonic_rank_has_no_children(method: str) -> None:
    (seen,) = results(rlaunch.spawn(ranks.where_am_i, nprocs=1, daemon=True, start_method=method))
    assert seen["daemon"] is True
    error = failure(ranks.have_child, method=method, daemon=True)
    assert error.traceback is not None
    assert error.traceback.endswith("AssertionError: daemonic processes are not allowed to have children\n")
    rlaunch.spawn(ranks.have_child, nprocs=1, start_method=method)


@each("method", METHODS)
def test_lower_case_proxies_are_for_the_parent_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "no_proxy", "all_proxy")
    for name in names:
        monkeypatch.setenv(name, f"http://{name}.invalid")
    (seen,) = results(rlaunch.spawn(ranks.environ, names, 1, start_method=method))
    assert [name for name in names if seen[name] is not None] == ["HTTP_PROXY", "no_proxy", "all_proxy"]
    assert [os.environ[name] for name in names] == [f"http://{name}.invalid" for name in names]
