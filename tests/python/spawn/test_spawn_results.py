"""``context.results()``: the return values of all ranks at once."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import ranks
import rlaunch
from effort import each
from rlaunch import NoResultError, RankError
from rlaunch._spawn.results import RESULT, RankQueue, ResultSlot
from spawning import METHODS
from stress import eventually, in_thread

pytest_plugins = ("spawning",)
pytestmark = pytest.mark.usefixtures("nothing_left")
each_method = each("method", METHODS)


@each_method
def test_results_are_in_the_order_of_the_ranks_and_stay(method: str) -> None:
    context = rlaunch.spawn(ranks.my_rank, nprocs=3, start_method=method)
    assert context.return_queues[1].get() == 1
    assert [context.results() for _ in range(2)] == [[0, 1, 2]] * 2
    assert context.return_queues[2].get() == 2
    assert context.return_queues[1].empty()


# Free-threaded Python runs these threads at the same time.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@each_method
def test_several_threads_may_spawn_at_once(method: str) -> None:
    together = threading.Barrier(6)
    results = {}

    def spawn(number: int) -> None:
        together.wait()
        results[number] = rlaunch.spawn(ranks.echo, (number,), 2, start_method=method).results()

    # A process that is forked off a thread of concurrent.futures exits with 1.
    threads = [threading.Thread(target=spawn, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [(number,)] * 2 for number in range(6)}


def test_each_call_has_objects_of_its_own() -> None:
    context = rlaunch.spawn(ranks.echo, (["a"],), 1, start_method="fork")
    context.results()[0][0].append("b")
    assert context.results() == [(["a"],)]


@each_method
def test_results_wait_for_the_ranks(method: str, start: Any, tmp_path: Any) -> None:
    flag = tmp_path / "flag"
    context = start(ranks.by_rank, ("wait_then", str(flag), "my_rank"), ("my_rank",), n=2, method=method)
    assert context.return_queues[1].get() == 1
    assert not context.join(0)
    flag.touch()
    assert context.results() == [0, 1]
    assert context.join(0)


@each_method
def test_a_failed_rank_is_raised_as_by_join(method: str, start: Any) -> None:
    context = start(ranks.by_rank, ("sleep",), ("boom", "no"), n=2, method=method)
    for _ in range(2):
        with pytest.raises(RankError, match="ValueError: no") as caught:
            context.results()
        assert caught.value.rank == 1


@each_method
@pytest.mark.parametrize("code", [(), (0,), (None,)])
def test_a_rank_that_exited_successfully_returned_none(method: str, code: Any) -> None:
    context = rlaunch.spawn(ranks.by_rank, (("my_rank",), ("leave", *code)), 2, start_method=method)
    assert context.results() == [0, None]
    with pytest.raises(NoResultError):
        context.return_queues[1].get()


@each_method
def test_a_rank_that_left_silently_has_no_result(method: str) -> None:
    context = rlaunch.spawn(ranks.by_rank, (("my_rank",), ("leave_now", 0)), 2, start_method=method)
    with pytest.raises(NoResultError, match=r"^the result of rank 1 is not there"):
        context.results()
    assert context.return_queues[0].get() == 0


def test_a_value_that_cannot_be_rebuilt_names_its_rank() -> None:
    context = rlaunch.spawn(ranks.by_rank, (("my_rank",), ("return_unloadable",)), 2, start_method="fork")
    for read in (context.results, context.return_queues[1].get):
        with pytest.raises(ZeroDivisionError) as caught:
            read()
        if sys.version_info >= (3, 11):  # Earlier exceptions have no notes.
            assert caught.value.__notes__ == ["raised while the return value of rank 1 was unpickled"]


def test_no_ranks_have_no_results() -> None:
    assert rlaunch.spawn(ranks.my_rank, nprocs=0).results() == []


TORCHS = "Error initializing torch.distributed using env://: environment variable {} expected, but not set"


@pytest.mark.parametrize("name", ["MASTER_ADDR", "RANK", "LEFT"])
@pytest.mark.parametrize("frameworks", [None, "torch"])
def test_a_rank_that_lacks_torchs_variables_says_how_to_set_them(name: str, frameworks: str | None) -> None:
    for function, args in ((ranks.boom, (TORCHS.format(name),)), (os.environ.__getitem__, (name,))):
        with pytest.raises(RankError) as caught:
            # Only with fork does the method belong to the rank's own environment.
            rlaunch.spawn(call_without, (function, args, name), 1, start_method="fork", frameworks=frameworks)
        advice = f'rlaunch.spawn has not set torch\'s {name}: call it with frameworks="torch"'
        assert (advice in str(caught.value)) == (frameworks is None and name != "LEFT")


def call_without(function: Any, args: Any, name: str) -> None:
    os.environ.pop(name, None)
    function(*args)


class _Unprintable(Exception):
    def __str__(self) -> str:
        return str(self.missing)  # type: ignore[attr-defined]


def _fail_unprintably() -> None:
    raise _Unprintable(500)


@each_method
def test_an_exception_that_cannot_be_printed_has_its_traceback(method: str) -> None:
    with pytest.raises(RankError) as caught:
        rlaunch.spawn(_fail_unprintably, nprocs=1, start_method=method)
    assert "_fail_unprintably" in str(caught.value)
    assert "_Unprintable: <exception str() failed>" in str(caught.value)


def test_a_wait_for_the_result_of_a_rank_that_is_given_up_ends() -> None:
    end, other_end = os.pipe()
    slot = ResultSlot()
    slot.set_rank(lambda: end)  # Never readable: the rank is stuck in the kernel.
    raised = []

    def get() -> None:
        with pytest.raises(NoResultError) as caught:
            RankQueue(slot, RESULT, 0).get()
        raised.append(caught.type)

    with in_thread(get) as thread:
        place = Path(f"/proc/self/task/{thread.native_id}/wchan")
        try:
            assert eventually(lambda: "poll" in place.read_text())
        finally:
            slot.give_up()
    assert raised == [NoResultError]
    os.close(end)
    os.close(other_end)
