"""Python interpreters that have imported torch, Paddle, or pytest once for all tests of a session.

``python("torch")`` is the beginning of a command, as ``[sys.executable]`` is: the program behind it (a file,
``-c`` or ``-m``, and its arguments) runs in a process that is forked off one server of the session, with the
descriptors 0 to 2, the environment and the folder of the command. To import torch costs 2 seconds of CPU.

What a framework reads of the environment while it is imported is the server's, not the program's.

``head("torch")`` is the beginning of a rank's script that has the rest of the script run so, in the rank's
network namespace, while the rank waits for it and ends as it ends.

The command is this file, run: a client that waits for the program and ends with its exit status. If the
client is killed, the server kills the program. The server ends once the last process that called ``python``
has; all of a session, pytest-xdist's workers too, share it.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
from typing import Any, NoReturn

# More would not fit into a message, so the request is in a file without a name.
DESCRIPTORS = 4
PATIENCE = 60.0
# pytest imports its own plugins for each session.
_PLUGINS = ("python", "terminal", "unittest", "skipping", "doctest", "junitxml", "logging", "recwarn")
IMPORTS = {
    "torch": ["torch.distributed.run"],
    "paddle": ["paddle.distributed.launch.main"],
    "pytest": ["pytest", *(f"_pytest.{name}" for name in _PLUGINS)],
}
_held: dict[str, socket.socket] = {}
# That of the session, before any test has changed it: a server outlives the test that needs it first.
_ENVIRONMENT = dict(os.environ)
_inside = False  # Whether this process is forked off a server.


def python(framework: str) -> list[str]:
    """The beginning of a command that runs Python where this framework is imported already."""
    import tempfile  # Not for clients, of which there are many.

    session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    # Not an abstract name, which other network namespaces do not see.
    name = os.path.join(tempfile.gettempdir(), f"rlaunch-tests-{framework}-{session}")
    if framework not in _held:
        _held[framework] = _connected(framework, name)
        atexit.register(_held[framework].close)
    # Without site-packages, which only the server needs.
    return [sys.executable, "-I", "-S", __file__, name]


def head(framework: str) -> str:
    """The first line of a script that runs where this framework is imported already."""
    *_, name = python(framework)
    here = os.path.dirname(os.path.abspath(__file__))
    return (
        f"import sys; sys.path.insert(0, {here!r}); import preloaded; "
        f"del sys.path[0]; preloaded.move({name!r})\n"
    )


def _connected(framework: str, name: str) -> socket.socket:
    """A connection that keeps the server; started if there is none."""
    deadline = time.monotonic() + PATIENCE
    while True:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            link.connect(name)
            return link
        except (FileNotFoundError, ConnectionRefusedError):
            link.close()
            assert time.monotonic() < deadline, f"no server for {framework}"
        env = {k: v for k, v in _ENVIRONMENT.items() if not k.startswith(("PADDLE_", "FLAGS_", "OMP_"))}
        if framework == "torch":
            env["OMP_NUM_THREADS"] = "1"  # As ranks have it from their launchers.
        subprocess.run([sys.executable, __file__, name, "serve", framework], env=env, check=False)


# --- The client ------------------------------------------------------------------------------------------


def run(name: str, argv: list[str]) -> int | None:
    """Runs a program in the server and waits for its exit status, negative for a signal. None: no server."""
    request = {
        "argv": argv,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": _umask(),
        "pid": os.getpid(),
    }
    memory = os.memfd_create("request")
    with open(memory, "w", encoding="utf-8", closefd=False) as file:
        json.dump(request, file)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.connect(name)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    socket.send_fds(link, [b"run"], [memory, 0, 1, 2])
    # Only the program holds them from here on.
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    answer = link.recv(64)
    return int(answer) if answer else 1


def move(name: str) -> None:
    """Has this script run in the server, and ends as it ends. Does nothing in the server's own processes."""
    if not _inside and (status := run(name, sys.argv)) is not None:
        end(status)


def end(status: int) -> NoReturn:
    """Ends this process as another has ended, by a signal if it is negative."""
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


# --- The server ------------------------------------------------------------------------------------------


def serve(name: str, framework: str) -> None:
    """Listens before it imports, so that no other process starts a server meanwhile."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(name)
    except OSError:
        return  # Another one is there.
    listener.listen(128)
    if os.fork() != 0:
        return  # It belongs to no test: it is a daemon.
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.chdir("/")
    try:
        before = dict(os.environ)
        for module in IMPORTS[framework]:
            __import__(module)
        set_by_import = {name: text for name, text in os.environ.items() if before.get(name) != text}
        gc.collect()
        gc.freeze()
        _loop(listener, set_by_import)
    finally:
        os.unlink(name)


def _loop(listener: socket.socket, set_by_import: dict[str, str]) -> None:
    import select

    # SIGCHLD interrupts the poll.
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(reader, select.POLLIN)
    links: dict[int, socket.socket] = {}
    programs: dict[int, socket.socket] = {}  # By their process numbers.
    served = False
    while not served or links:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                link = listener.accept()[0]
                links[link.fileno()] = link
                poll.register(link, select.POLLIN)
                served = True
            elif descriptor == reader:
                os.read(reader, 4096)
            elif link := links.get(descriptor):
                try:
                    message, ancillary, _, _ = link.recvmsg(16, socket.CMSG_SPACE(4 * DESCRIPTORS))
                except ConnectionResetError:  # The client was killed before it read its answer.
                    message = b""
                if message:
                    descriptors = array.array("i")
                    for _, _, data in ancillary:
                        descriptors.frombytes(data)
                    pid = _fork([listener, *links.values()], list(descriptors), set_by_import)
                    programs[pid] = link
                else:
                    for pid, of in programs.items():
                        if of is link:
                            os.kill(pid, signal.SIGKILL)
                    poll.unregister(link)
                    del links[descriptor]
                    link.close()
        _collect(programs)
    for pid in programs:
        os.kill(pid, signal.SIGKILL)


def _collect(programs: dict[int, socket.socket]) -> None:
    """Tells clients of programs that have ended."""
    while programs:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        link = programs.pop(pid)
        with contextlib.suppress(OSError):
            link.send(str(os.waitstatus_to_exitcode(status)).encode())


def _fork(links: list[socket.socket], descriptors: list[int], set_by_import: dict[str, str]) -> int:
    pid = os.fork()
    if pid != 0:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for link in links:
            link.close()
        memory, *standard = descriptors
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)
        with open(memory, encoding="utf-8") as file:
            file.seek(0)
            request = json.load(file)
        request["env"] = {**set_by_import, **request["env"]}
        status = _become(request)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _enter(pid: int) -> None:
    """Enters the network namespace of a process, and the user namespace that it belongs to."""
    import ctypes

    for kind in ("user", "net"):
        theirs = f"/proc/{pid}/ns/{kind}"
        if os.readlink(theirs) != os.readlink(f"/proc/self/ns/{kind}"):
            descriptor = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            os.close(descriptor)


def _become(request: dict[str, Any]) -> int:
    """Does what Python does with such arguments, and returns its exit status."""
    import multiprocessing.process
    import runpy
    import tempfile
    import threading

    os.setsid()
    _enter(request["pid"])
    os.chdir(request["cwd"])
    # Where a relative path of the main module is looked for; set at import, where the server was started.
    multiprocessing.process.ORIGINAL_DIR = request["cwd"]  # type: ignore[attr-defined]
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None
    argv: list[str] = request["argv"]
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if "RLAUNCH_EXCEPTION_FILE" in os.environ:
        import rlaunch_rank

        # The rank waits, and it is this process that may raise.
        rlaunch_rank.rank_process = str(request["pid"])
        if (note := rlaunch_rank.note_exceptions()) is not None:
            note.register()
    sys.path[:0] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    globals()["_inside"] = True
    sys.modules["preloaded"] = sys.modules.pop("__main__")
    status = 0
    try:
        if argv[0] == "-c":
            sys.argv = ["-c", *argv[2:]]
            sys.path.insert(0, "")
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(argv[1], "<string>", "exec"), main.__dict__)
        elif argv[0] == "-m":
            sys.argv = argv[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as ending:
        if ending.code is not None:
            status = ending.code if isinstance(ending.code, int) else 1
            if not isinstance(ending.code, int):
                print(ending.code, file=sys.stderr)
    except BaseException as error:
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    return status


if __name__ == "__main__":
    if sys.argv[2:3] == ["serve"]:
        serve(sys.argv[1], sys.argv[3])
    else:
        if (status := run(sys.argv[1], sys.argv[2:])) is None:
            os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
        end(status)
