"""Things that can and cannot be sent to ranks, for the tests that try; and programs that send them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections import deque, namedtuple
from collections.abc import Callable
from typing import Any

from paths import PYTHONPATH

PREAMBLE = "import sys, warnings; warnings.simplefilter('ignore'); import rlaunch\n"
HIDE_CLOUDPICKLE = "sys.modules['cloudpickle'] = None\n"


def program(code: str, method: str, hide: bool = False) -> str:
    """The output of a program that comes from stdin, so that no rank can import it."""
    code = f"{PREAMBLE}{HIDE_CLOUDPICKLE if hide else ''}METHOD = {method!r}\n{code}"
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-"], input=code, env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def take(*_: Any) -> None:
    """Any arguments will do."""


class Holder:
    """Its attribute cannot be sent."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def method(self) -> None:
        """Something to be bound."""


class Slots:
    __slots__ = ("__hidden", "open")

    def __init__(self) -> None:
        self.__hidden = threading.Lock()


class Stateful:
    """The object that it sends is made in passing: the lock is not among its attributes."""

    def __getstate__(self) -> Any:
        return {"made": threading.Lock()}


class Deep:
    """Points back to its owner."""

    def __init__(self, parent: Any) -> None:
        self.parent = parent


class Circle:
    def __init__(self) -> None:
        self.child = Deep(self)
        self.lock = threading.Lock()


class Hostile:
    """Answers no question."""

    def __getattribute__(self, name: str) -> Any:
        raise ZeroDivisionError(name)

    def __repr__(self) -> str:
        raise ZeroDivisionError("repr")


Pair = namedtuple("Pair", "left right")


class Failed(Exception):
    """Carries what it failed with."""


def generator() -> Any:
    return (i for i in ())


def long_list() -> list[Any]:
    return [*range(300_000), generator()]


def endless() -> Any:
    """Nested deeper than pickle goes."""
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    return nest


def closure_over(thing: Any) -> Callable[[], Any]:
    return lambda: thing


def default_of(thing: Any) -> Callable[[], Any]:
    def inner(given: Any = thing, *, named: Any = None) -> None:
        """Carries its default."""

    return inner


a_lock = threading.Lock()


def over_global() -> Callable[[], Any]:
    return lambda: [a_lock for _ in range(1)]


def local_class(attribute: Any) -> Any:
    class Local:
        held = attribute

    return Local


def annotated(**attributes: Any) -> Any:
    def inner() -> None:
        """Has attributes."""

    vars(inner).update(attributes)
    return inner


def bound_to(holder: Holder) -> Any:
    return functools.partial(holder.method)


# Objects that cannot be sent, and their names in errors. Made anew for each test.
SHAPES: dict[str, tuple[Callable[[], tuple[Any, tuple[Any, ...]]], str]] = {
    "attribute": (lambda: (take, (1, Holder())), "args[1].lock: _thread.lock"),
    "itself": (lambda: (take, (generator(),)), "args[0]: generator"),
    "frame": (lambda: (take, (os.environ, [sys._getframe()])), "args[1][0]: frame"),
    "dict": (lambda: (take, ({"model": Holder()},)), "args[0]['model'].lock: _thread.lock"),
    "tuple key": (lambda: (take, ({(0, "a"): generator()},)), "args[0][(0, 'a')]: generator"),
    "key": (lambda: (take, ({threading.Lock(): 1},)), "args[0] key <_thread.lock>: _thread.lock"),
    "object key": (lambda: (take, ({Deep(1): generator()},)), "args[0][<sending.Deep>]: generator"),
    "set": (lambda: (take, ({threading.Lock()},)), "args[0] item <_thread.lock>: _thread.lock"),
    "deque": (lambda: (take, (deque([1, generator()]),)), "args[0][1]: generator"),
    "named tuple": (lambda: (take, (Pair(1, generator()),)), "args[0].right: generator"),
    "slots": (lambda: (take, (Slots(),)), "args[0]._Slots__hidden: _thread.lock"),
    "circle": (lambda: (take, (Circle(),)), "args[0].lock: _thread.lock"),
    "made in passing": (lambda: (take, ([Stateful()],)), "args[0][0]: _thread.lock"),
    "exception": (lambda: (take, (Failed(1, generator()),)), "args[0].args[1]: generator"),
    "iterator": (lambda: (take, (map(int, generator()),)), "args[0]: generator"),
    "partial": (lambda: (functools.partial(take, 1, generator()), ()), "func.args[1]: generator"),
    "keyword": (lambda: (functools.partial(take, k=generator()), ()), "func.keywords['k']: generator"),
    "bound": (lambda: (Holder().method, ()), "func.__self__.lock: _thread.lock"),
    "bound in partial": (lambda: (bound_to(Holder()), ()), "func.func.__self__.lock: _thread.lock"),
    "closure": (lambda: (closure_over(Holder()), ()), "func closure 'thing'.lock: _thread.lock"),
    "default": (lambda: (default_of(generator()), ()), "func default 0: generator"),
    "global": (lambda: (over_global(), ()), "func global 'a_lock': _thread.lock"),
    "function's attribute": (lambda: (annotated(kept=generator()), ()), "func.kept: generator"),
    "class's attribute": (lambda: (take, (local_class(generator()),)), "args[0].held: generator"),
    "class of an instance": (lambda: (take, (local_class(generator())(),)), "args[0].held: generator"),
    "long": (lambda: (take, (long_list(),)), "args[0][300000]: generator"),
    "args itself": (lambda: (take, generator()), "args: generator"),
}
