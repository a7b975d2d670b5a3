"""Functions of the ranks of the spawn tests: found again by import, with any start method."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

nothing = lambda: None  # noqa: E731  A lambda is pickled by a name that is not there.


def my_rank() -> int:
    return int(os.environ["PADDLE_TRAINER_ID"])


def echo(*args: Any) -> tuple[Any, ...]:
    return args


def give_none() -> None:
    return None


def environ(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("PADDLE_", "FLAGS_"))}


def meet() -> tuple[int, list[int]]:
    """Listens at this rank's endpoint, calls all the others, and hears the callers."""
    own, endpoints = os.environ["PADDLE_CURRENT_ENDPOINT"], os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")
    addresses = {e: (e.rpartition(":")[0], int(e.rpartition(":")[2])) for e in endpoints}
    heard = []
    with socket.create_server(addresses[own]) as server:
        for other in set(endpoints) - {own}:
            caller = socket.socket()
            deadline = time.monotonic() + 60
            while caller.connect_ex(addresses[other]) and time.monotonic() < deadline:
                time.sleep(0.01)
            caller.sendall(bytes([my_rank()]))
            caller.close()
        for _ in range(len(endpoints) - 1):
            heard += server.accept()[0].recv(1)
    return my_rank(), sorted(heard)


def endpoints_of_paddle() -> tuple[list[str], str, int, int]:
    """The values that Paddle itself reads, in a process that can still start programs."""
    subprocess.run(["true"], check=True)
    import paddle.distributed

    env = paddle.distributed.ParallelEnv()
    return env.trainer_endpoints, env.current_endpoint, env.rank, env.world_size


class Adder:
    """Its bound method is what the ranks run."""

    def __init__(self, base: int) -> None:
        self.base = base

    def add(self, more: int) -> int:
        return self.base + more + my_rank()


class PicklesOnce:
    """Pickled for one rank, and no further."""

    pickled = 0

    def __reduce__(self) -> tuple[Any, ...]:
        PicklesOnce.pickled += 1
        if PicklesOnce.pickled > 1:
            raise TypeError("no second copy")
        return PicklesOnce, ()


class Odd(BaseException):
    """Neither an Exception nor one that Python knows."""


def pick_generator() -> Iterator[int]:
    return (i for i in ())


def boom(text: str) -> None:
    raise ValueError(text)


def raise_base(name: str) -> None:
    raise {"KeyboardInterrupt": KeyboardInterrupt, "GeneratorExit": GeneratorExit, "Odd": Odd}[name]("why")


def leave(*code: Any) -> None:
    sys.exit(*code)


def leave_now(code: int) -> None:
    os._exit(code)


class Unloadable:
    def __reduce__(self) -> Any:
        return divmod, (1, 0)


def return_unloadable() -> Unloadable:
    return Unloadable()


def kill_self(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sleep()


def sleep(*_: Any) -> None:
    time.sleep(600)


def ready_then_sleep(folder: str) -> None:
    """Says that it is there by a file with its pid, complete when it appears."""
    draft = Path(folder, f"draft.{my_rank()}")
    draft.write_text(str(os.getpid()))
    draft.rename(Path(folder, f"ready.{my_rank()}"))
    sleep()


def deaf_then_sleep(folder: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready_then_sleep(folder)


def signal_parent(number: int) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    os.kill(parent.pid or 0, number)


def keep_signalling_parent(number: int) -> None:
    while True:
        signal_parent(number)
        time.sleep(0.05)


def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.005)


def wait_then(path: str, then: str, *args: Any) -> Any:
    wait_for(path)
    return globals()[then](*args)


def by_rank(*actions: tuple[Any, ...]) -> Any:
    """Rank i does ``actions[i]``: a function of this module by name, and its arguments."""
    name, *args = actions[my_rank()]
    return globals()[name](*args)


def leave_thread(path: str) -> str:
    """Returns while a thread that is no daemon runs on until there is a file."""
    threading.Thread(target=wait_for, args=(path,)).start()
    return "returned"


def have_child() -> None:
    multiprocessing.get_context("spawn").Process(target=give_none).start()


def leave_grandchild(path: str) -> None:
    """Leaves behind a process that holds every descriptor it can get."""
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(program, close_fds=False)  # The rank's end is not to wait for it.
    Path(path).write_text(str(process.pid))
    os._exit(0)


def speak(text: str) -> None:
    print(f"{text} out {my_rank()}")
    print(f"{text} err {my_rank()}", file=sys.stderr)


def nested(nprocs: int) -> Any:
    """A job started by a rank, which is no daemon."""
    import rlaunch

    return [queue.get() for queue in rlaunch.spawn(my_rank, nprocs=nprocs).return_queues]


def where_am_i() -> dict[str, Any]:
    return {
        "session": os.getsid(0),
        "group": os.getpgid(0),
        "stdin": sys.stdin.read(),
        "parent": multiprocessing.parent_process().pid,
        "daemon": multiprocessing.current_process().daemon,
        "name": multiprocessing.current_process().name,
    }


def use(lock: Any, queue: Any, number: Any) -> None:
    with lock:
        number.value += 1
    queue.put(my_rank())
