"""Runs a program in this process as ``python [flags] SCRIPT|-m MODULE|-c CODE`` would in one of its own."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType, TracebackType
    from typing import Any

# Of Python's own options those that take their value from the next word.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """An interpreter's command line: itself and its flags; and what it runs, with that one's arguments."""
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-", "-m", "-c"):
        at += 2 if argv[at] in _WITH_VALUE else 1
    return argv[:at], argv[at:]


def run(argv: list[str], first: str | None) -> int:
    """Runs it; returns when it has ended well, and raises what it raises, seen as from its main module.

    ``argv``: as given to the interpreter, which comes first; ``first``: what the zygote had first in
    ``sys.path``, in place of this program's folder, if anything.
    """
    _, program = split(argv)
    sys.orig_argv[:] = argv
    try:
        if program[:1] == ["-m"]:
            _run_module(program[1:], first)
        elif program[:1] == ["-c"]:
            sys.argv[:] = ["-c", *program[2:]]
            _put_first("", first)
            exec(_compiled(program[1], "<string>"), _new_main().__dict__)
        else:
            _run_script(program, first)
    except SystemExit:
        raise
    except BaseException:
        # Whoever prints it is not to see what is above the program.
        shown = sys.excepthook

        def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> Any:
            trace = _from_program(trace)
            return shown(kind, value.with_traceback(trace), trace)

        sys.excepthook = hook
        raise
    return 0


def _put_first(folder: str, place: str | None) -> None:
    """Where modules are looked for first. ``place`` is there instead, maybe behind what imports have put."""
    if place is None or getattr(sys.flags, "safe_path", False):  # Python 3.11.
        return
    if place in sys.path:
        sys.path[sys.path.index(place)] = folder


def _compiled(source: str | bytes, name: str) -> CodeType:
    # The futures of this module are not the program's.
    return compile(source, name, "exec", dont_inherit=True)


def _new_main() -> ModuleType:
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main


def _run_module(words: list[str], first: str | None) -> None:
    import runpy

    sys.argv[:] = ["-m", *words[1:]]
    _put_first(os.getcwd(), first)
    _new_main()
    runpy._run_module_as_main(words[0])  # type: ignore[attr-defined]


def _run_script(words: list[str], first: str | None) -> None:
    sys.argv[:] = words
    path = words[0]
    if os.path.isdir(path) or _is_archive(path):
        import runpy

        _put_first(path, first)
        _new_main()
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        # Python's own words, and its status.
        name = f"{sys.orig_argv[0]}: can't open file {os.path.abspath(path)!r}"
        print(f"{name}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    _put_first(os.path.dirname(os.path.realpath(path)), first)
    from importlib.machinery import SourceFileLoader

    main = _new_main()
    main.__file__ = os.path.abspath(path)
    main.__dict__.update(__loader__=SourceFileLoader("__main__", main.__file__), __cached__=None)
    exec(_compiled(source, path if os.path.isabs(path) else main.__file__), main.__dict__)


def _is_archive(path: str) -> bool:
    import zipimport

    try:
        zipimport.zipimporter(path)
    except zipimport.ZipImportError:
        return False
    return True


def _from_program(trace: TracebackType | None) -> TracebackType | None:
    """Of a traceback, what is below this module."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != __file__:
        found = found.tb_next
    if found is None:
        return trace
    while found is not None and found.tb_frame.f_code.co_filename == __file__:
        found = found.tb_next
    return found  # None: it could not be compiled.
