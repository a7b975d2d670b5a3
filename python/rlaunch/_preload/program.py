"""Runs a Python program in this process as ``python [flags] SCRIPT|-m MODULE|-c CODE`` runs it."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType, TracebackType
    from typing import Any

# Options of the interpreter whose value is the next argument.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def split_command(argv: list[str]) -> tuple[list[str], list[str]]:
    """Splits a command line into the interpreter with its flags, and the program with its arguments."""
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-", "-m", "-c"):
        at += 2 if argv[at] in _WITH_VALUE else 1
    return argv[:at], argv[at:]


def run(argv: list[str], first: str | None) -> int:
    """Runs the program; returns 0 when it ends, and raises what it raises.

    Tracebacks that reach ``sys.excepthook`` begin at the program's main module.

    Args:
        argv: the command line, beginning with the interpreter.
        first: the entry of ``sys.path`` to replace by the program's folder; None: none.
    """
    _, program = split_command(argv)
    sys.orig_argv[:] = argv
    try:
        if program[:1] == ["-m"]:
            _run_module(program[1:], first)
        elif program[:1] == ["-c"]:
            sys.argv[:] = ["-c", *program[2:]]
            _set_first_path("", first)
            exec(_compile(program[1], "<string>"), _make_main_module().__dict__)
        else:
            _run_script(program, first)
    except SystemExit:
        raise
    except BaseException:
        # Hides the frames of rlaunch.
        original = sys.excepthook

        def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> Any:
            trace = _skip_own_frames(trace)
            return original(kind, value.with_traceback(trace), trace)

        sys.excepthook = hook
        raise
    return 0


def _set_first_path(folder: str, place: str | None) -> None:
    """Replaces the entry ``place`` of ``sys.path``, which imports may have moved, by ``folder``."""
    if place is None or getattr(sys.flags, "safe_path", False):  # Python 3.11.
        return
    if place in sys.path:
        sys.path[sys.path.index(place)] = folder


def _compile(source: str | bytes, name: str) -> CodeType:
    # dont_inherit: the program must not get the __future__ imports of this module.
    return compile(source, name, "exec", dont_inherit=True)


def _make_main_module() -> ModuleType:
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main


def _run_module(command: list[str], first: str | None) -> None:
    import runpy

    sys.argv[:] = ["-m", *command[1:]]
    _set_first_path(os.getcwd(), first)
    _make_main_module()
    runpy._run_module_as_main(command[0])  # type: ignore[attr-defined]


def _run_script(command: list[str], first: str | None) -> None:
    sys.argv[:] = command
    path = command[0]
    if os.path.isdir(path) or _is_archive(path):
        import runpy

        _set_first_path(path, first)
        _make_main_module()
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        # The interpreter's own message and exit status.
        name = f"{sys.orig_argv[0]}: can't open file {os.path.abspath(path)!r}"
        print(f"{name}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    _set_first_path(os.path.dirname(os.path.realpath(path)), first)
    from importlib.machinery import SourceFileLoader

    main = _make_main_module()
    main.__file__ = os.path.abspath(path)
    main.__dict__.update(__loader__=SourceFileLoader("__main__", main.__file__), __cached__=None)
    exec(_compile(source, path if os.path.isabs(path) else main.__file__), main.__dict__)


def _is_archive(path: str) -> bool:
    import zipimport

    try:
        zipimport.zipimporter(path)
    except zipimport.ZipImportError:
        return False
    return True


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback below this module."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != __file__:
        found = found.tb_next
    if found is None:
        return trace
    while found is not None and found.tb_frame.f_code.co_filename == __file__:
        found = found.tb_next
    return found  # None: the program does not compile.
