"""Runs in each Python process of a job before its program does (``rlaunch_rank.pth``).

It notes the exception that ends a rank, and prepares torch and Paddle when they are imported. It is a module
of its own because to import the package would take longer than all else, as would ``threading``.
"""

import _thread
import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

# The rank's file for the exception (docs/environment.md).
EXCEPTION_FILE = "RLAUNCH_EXCEPTION_FILE"

# Code that connects to a debugger.
DEBUGGER = "RLAUNCH_DEBUGGER"

# Modules whose functions wait for threads when the interpreter ends.
WAITING_MODULES = ("threading", "concurrent.futures.thread")

# gevent replaces the module's.
_get_thread = _thread.get_ident

# Characters of an exception's message that are noted.
_LONGEST_TEXT = 8192

# The process that is the rank, by its name below /proc. Another process may run the program for it.
rank_process = "self"


class ExceptionNote:
    """Notes in a file of the launcher's the exception that ends this process, and first that none has so far.

    Each line begins with the process that has written it: the launcher believes the rank alone.
    ``sys.excepthook`` stays as it is: other libraries compare it with Python's own.
    It also notes the first exception that ends a thread, and where the program called ``sys.exit``.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._is_written = False
        self._registered_after: set[str] = set()
        self._writer = _identity()
        self._write(b"started\n")
        self._exit_call: dict[str, Any] | None = None
        self._has_left = False
        self._has_thread = False
        self._is_ending = False
        atexit.register(self._note)
        self._stay_last_registered()
        self._watch_exit_calls()
        self.register()

    def _stay_last_registered(self) -> None:
        register = atexit.register

        # The functions registered last are called first. Some take long. ``threading`` calls its own before.
        def register_before_note(func: "Any", /, *args: "Any", **kwargs: "Any") -> "Any":
            done = register(func, *args, **kwargs)
            # A child that was forked has this function too.
            if "threading" not in self._registered_after and os.getpid() == self._pid:
                # Once more, for `unregister` would call `__eq__` of each function of the program.
                register(self._note)
            return done

        _take_identity(register_before_note, register)
        atexit.register = register_before_note

    def _watch_exit_calls(self) -> None:
        main_thread = _get_thread()

        def watched(leave: "Any") -> "Any":
            def exit(*args: "Any", **kwargs: "Any") -> "Any":
                __tracebackhide__ = True  # For pytest and IPython.
                try:
                    leave(*args, **kwargs)
                except SystemExit as error:
                    if _get_thread() == main_thread and not self._is_ending:
                        self._mark(error)
                    raise

            _take_identity(exit, leave)
            return exit

        sys.exit = watched(sys.exit)
        # The class of the builtins ``exit`` and ``quit``, which ``site`` makes later.
        quitter: Any = getattr(sys.modules.get("_sitebuiltins"), "Quitter", None)
        if quitter is not None:
            quitter.__call__ = watched(quitter.__call__)

    def _mark(self, error: SystemExit) -> None:
        try:
            self._exit_call = _describe_exit(error.code, sys._getframe(2))
            error._rlaunch = _ExitMark(self, self._exit_call)  # type: ignore[attr-defined]
        except Exception:
            return  # A failure here must not become the program's.

    def leaves(self, call: "dict[str, Any] | None") -> None:
        """Takes the call of ``sys.exit`` that ends the main program.

        A later one is of a function of ``atexit``, and Python ignores it.
        """
        if not self._is_ending:
            self._exit_call, self._has_left = call, True

    def _watch_threads(self) -> None:
        # The program may replace ``threading.excepthook``, and libraries compare it.
        threading: Any = sys.modules["threading"]
        make = getattr(threading, "_make_invoke_excepthook", None)
        if make is None:
            return

        def make_noting() -> "Any":
            invoke = make()

            def note_and_invoke(thread: "Any") -> "Any":
                self._note_thread(thread)
                return invoke(thread)

            return note_and_invoke

        threading._make_invoke_excepthook = make_noting

    def _note_thread(self, thread: "Any") -> None:
        try:
            value = sys.exc_info()[1]
            if self._has_thread or os.getpid() != self._pid or value is None or isinstance(value, SystemExit):
                return
            self._has_thread = True
            self._write(_encode({"thread": str(thread.name)[:200], **describe(value)}))
        except Exception:
            return  # The thread's own traceback remains.

    def register(self, complete: str = "") -> None:
        """Has the exception noted before the functions of ``atexit`` run, if ``threading`` is imported.

        The functions of ``threading`` are called in reverse too. That of ``concurrent.futures`` waits for
        its threads. ``complete``: a module whose code has run, though its import is not over.
        """
        for name in WAITING_MODULES:
            if name in sys.modules and name not in self._registered_after:
                register = getattr(sys.modules.get("threading"), "_register_atexit", None)
                # While a module is being imported it has not registered its own function yet.
                if register is None or (name != complete and _is_being_imported(sys.modules[name])):
                    return
                self._registered_after.add(name)
                if name == "threading":
                    self._watch_threads()
                try:
                    register(self._note)
                except RuntimeError:
                    return  # The interpreter is exiting.

    def _note(self) -> None:
        # Python sets it for an exception that nothing caught, before it calls sys.excepthook.
        value = getattr(sys, "last_value", None)
        self._is_ending = True
        # A child that was forked has this object too.
        if self._is_written or os.getpid() != self._pid:
            return
        if not isinstance(value, BaseException):
            self._note_exit_call()
            return
        if not _left_main_program(value):
            return
        self._is_written = True
        try:
            # After an import here, Python 3.10 would not end this process by SIGINT.
            if isinstance(value, KeyboardInterrupt) and sys.version_info < (3, 11):
                raise NotImplementedError
            note = _encode(describe(value))
        except Exception:
            note = b"unknown\n"  # The launcher reads the traceback.
        try:
            self._write(note)
            self._wake_launcher()
        except OSError:
            return  # The launcher has ended.

    def _wake_launcher(self) -> None:
        # It waits for the end of this process from now on. The module `signal` would import `enum`.
        os.kill(int(self._path.split("/")[2]), sys.modules["_signal"].SIGCHLD)

    def _note_exit_call(self) -> None:
        call, self._exit_call = self._exit_call, None
        try:
            if call is not None and call["exit"] != 0:
                # A call that the program may have caught explains an exit status, and is no failure.
                self._write(_encode({**call, "left": self._has_left}))
                self._wake_launcher()
        except Exception:
            return  # The exit status remains.

    def _write(self, data: bytes) -> None:
        # The launcher may have ended, and its process id belong to another program.
        if "rlaunch-exception" not in os.readlink(self._path):
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, self._writer + data)
        finally:
            os.close(fd)


class _ExitMark:
    """An attribute of a ``SystemExit``, which nothing has caught if no Python code runs when it is freed."""

    def __init__(self, note: ExceptionNote, call: "dict[str, Any] | None") -> None:
        self._note = note
        self._call = call
        self._thread = _get_thread()

    # While the interpreter ends, the names of this module may be gone.
    def __del__(self, get_frame: "Any" = sys._getframe, get_thread: "Any" = _get_thread) -> None:
        if get_frame().f_back is None and get_thread() == self._thread:
            self._note.leaves(self._call)

    def __reduce__(self) -> "Any":
        return object, ()  # Exceptions are pickled with their attributes.


class ImportWatch:
    """Finds no module, but sees each import as the first of ``sys.meta_path``."""

    def __init__(self, note: ExceptionNote | None) -> None:
        self._note = note
        self._is_prepared = os.environ.get("RLAUNCH_STORE_WAIT") == "0"

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        """For ``sys.meta_path``."""
        if self._note is not None:
            self._note.register()
            if name in WAITING_MODULES:
                return self._register_after(self._note, name, path)
        if name in ("torch", "paddle") and not self._is_prepared:
            self._is_prepared = True
            try:
                from importlib.machinery import PathFinder

                found = PathFinder.find_spec("rlaunch")
                # Else a module of the program has this name.
                if found is not None and found.submodule_search_locations:
                    import rlaunch._rank.startup  # noqa: F401
            except Exception as error:
                print("rlaunch: warning: cannot prepare this rank:", repr(error), file=sys.stderr)
        return None

    @staticmethod
    def _register_after(note: ExceptionNote, name: str, path: "Any") -> "ModuleSpec | None":
        """Returns the module's own spec, whose loader registers the note once the module's code has run.

        There may be no further import.
        """
        finder: Any = sys.modules["_frozen_importlib_external"]
        found: ModuleSpec | None = finder.PathFinder.find_spec(name, path)
        loader: Any = found.loader if found is not None else None
        # Else the next import registers it.
        if hasattr(loader, "__dict__"):
            execute = loader.exec_module

            def execute_and_register(module: "Any") -> None:
                execute(module)
                note.register(complete=name)

            loader.exec_module = execute_and_register
        return found


def describe(value: BaseException) -> "dict[str, Any]":
    """Returns an exception as the launcher reads it (src/report/cause/uncaught.rs).

    Its place is the innermost frame of the user's own code, or the innermost of all.
    """
    kind = type(value)
    prefix = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    note: dict[str, Any] = {"what": prefix + kind.__qualname__, "file": None}
    if isinstance(value, SyntaxError):
        note.update(text=value.msg, file=value.filename, line=value.lineno or 0, function=None)
        return note
    text = "\n".join([str(value), *map(str, getattr(value, "__notes__", ()))])
    note["text"] = text[:_LONGEST_TEXT]
    if isinstance(value, ImportError):
        note["interpreter"] = sys.executable
        venv = os.environ.get("VIRTUAL_ENV", "")
        if venv and os.path.realpath(venv) != os.path.realpath(sys.prefix):
            note["other_venv"] = venv
    is_users = False
    trace = value.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        name = code.co_filename
        note["raised_in"] = name
        own = _is_users(name)
        if own or not is_users:
            note.update(file=name, line=trace.tb_lineno or 0, function=code.co_name)
            is_users = own
        trace = trace.tb_next
    return note


def _describe_exit(status: object, frame: "Any") -> "dict[str, Any] | None":
    """Returns the call of ``sys.exit`` as the launcher reads it: the innermost line of the user's code.

    ``frame``: that of the caller.
    """
    place = frame
    while place is not None and not _is_users(place.f_code.co_filename):
        place = place.f_back
    place = place or frame
    if place is None:
        return None  # C code has called it.
    code = place.f_code
    number = int(status) & 0xFF if isinstance(status, int) else 0 if status is None else 1
    return {"exit": number, "file": code.co_filename, "line": place.f_lineno or 0, "function": code.co_name}


def _encode(note: "dict[str, Any]") -> bytes:
    """Returns a note as a line, with its time. A path that is no UTF-8 has surrogates, which no JSON has."""
    import json
    import time

    text = json.dumps({**note, "at_ns": time.monotonic_ns()}, ensure_ascii=False)
    return text.encode("utf-8", "replace") + b"\n"


def _is_users(file: str) -> bool:
    libraries = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3")
    return not file.startswith("<frozen") and not any(one in file for one in libraries)


def _take_identity(function: "Any", original: "Any") -> None:
    """Lets a function be printed and pickled as the original one."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, name, getattr(original, name))


def _left_main_program(value: BaseException) -> bool:
    """Whether an exception left the main program.

    C code and consoles set ``sys.last_value`` too, and go on.
    """
    trace = value.__traceback__
    # A SyntaxError of the script itself has none.
    return trace is None or trace.tb_frame.f_globals.get("__name__") in ("__main__", "runpy")


def _is_being_imported(module: object) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


def _identity() -> bytes:
    """The id and the start time of this process, each with a blank after it (proc_pid_stat(5))."""
    with open(f"/proc/{rank_process}/stat", "rb") as file:
        line = file.read()
    # The name may contain any byte.
    return b"%s %s " % (line.split(b" ", 1)[0], line.rpartition(b")")[2].split()[19])


def note_exceptions() -> ExceptionNote | None:
    """Has the exception noted that ends this process, which is a rank, if the launcher gave it a file."""
    path = os.environ.get(EXCEPTION_FILE)
    try:
        return ExceptionNote(path) if path else None
    except OSError:
        return None  # Of another user, say. The launcher reads the traceback.


def _is_rank() -> bool:
    """Whether the launcher may have started this process. Programs of a rank have the variable too."""
    # /proc/PID/fd/NUMBER
    # A rank leads its session. A daemon that a rank has started has the launcher as its parent too, and may
    # lead a session: the launcher does not believe what it notes.
    is_child = os.environ.get(EXCEPTION_FILE, "").startswith(f"/proc/{os.getppid()}/")
    return is_child and os.getsid(0) == os.getpid()


def _connect_debugger() -> None:
    """Connects this rank to the launcher's debugger, if it has one (python/rlaunch/_process/debugger.py)."""
    code = os.environ.pop(DEBUGGER, "")
    if code:
        # The ranks' libraries of Python are compiled in, which pydevd would warn of.
        os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        try:
            exec(code, {})
        except Exception as error:
            print("rlaunch: warning: cannot connect this rank to the debugger:", repr(error), file=sys.stderr)


def _yield_to_torch() -> None:
    """Lets threads of torch take the GIL that they wait for, before the interpreter ends.

    A thread of gloo needs it to free the last collective. An interpreter that is ending gives it to no
    thread: before Python 3.14 it unwinds the thread's stack, which a destructor of torch 2.15 answers by
    aborting the process ("terminate called without an active exception").
    """
    if "torch.distributed" in sys.modules and sys.version_info < (3, 14):
        import time

        time.sleep(0.01)


def prepare() -> None:
    """Prepares this process, once: Python reads a start file twice if its folder has two names."""
    if not any(isinstance(one, ImportWatch) for one in sys.meta_path):
        atexit.register(_yield_to_torch)  # The function registered first is called last.
        is_rank = _is_rank()
        sys.meta_path.insert(0, ImportWatch(note_exceptions() if is_rank else None))
        if is_rank:
            _connect_debugger()
