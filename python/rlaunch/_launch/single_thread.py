"""Runs the launcher in a process with one thread, because it forks."""

from __future__ import annotations

import os
import sys

from .. import _lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# For an interpreter without site, and so without sitecustomize and .pth files. If it has several threads
# too, another one runs the code without LD_PRELOAD, which ranks get back.
_CODE = """\
import sys
sys.path[:] = [path for path in sys.path if path]
import os
def has_threads():
    try:
        return len(os.listdir('/proc/self/task')) > 1
    except OSError:
        return False
code = {code!r}
if 'LD_PRELOAD' in os.environ and has_threads():
    env = {{name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}}
    os.execve(sys.executable, [sys.executable, '-S', '-c', code, *sys.argv[1:]], env)
exec(code)"""
_RUN_CODE = """\
import sys
sys.path[:] = [path for path in sys.path if path]
import os, importlib.util as util
os.environ.update({preloaded!r})
spec = util.spec_from_file_location('rlaunch._lib', {module!r})
module = util.module_from_spec(spec)
spec.loader.exec_module(module)
os._exit(module.{function}(sys.argv[1:], {interpreter!r}, *{rest!r}))"""


def describe_interpreter() -> tuple[str, str, list[str]]:
    """Returns the path, the version and the module search path of this interpreter."""
    # Programs may put other objects there.
    path = [part for part in sys.path if isinstance(part, str)]
    return sys.executable, sys.version.split(maxsplit=1)[0], path


def run_launcher_function(function: str, *rest: object) -> NoReturn:
    """Calls ``_lib.FUNCTION(arguments of this program, interpreter, *rest)`` and exits with what it returns.

    A fork of a process with several threads inherits the locks that the others hold. If something has
    started a thread here, such as sitecustomize or a library of LD_PRELOAD, an interpreter without it takes
    this process over. A library may start its thread later: of that the launcher warns.
    """
    if _has_threads():
        from .._process.debugger import build_code

        if build_code():
            _run_beside_debugger("rlaunch" if function == "main" else "rlaunch.run")
        sys.stdout.flush()
        sys.stderr.flush()
        # Without site, the path of the other interpreter is not that of the ranks.
        code = _RUN_CODE.format(
            module=_lib.__file__,
            function=function,
            interpreter=describe_interpreter(),
            rest=rest,
            preloaded={name: value for name, value in os.environ.items() if name == "LD_PRELOAD"},
        )
        os.execv(sys.executable, [sys.executable, "-S", "-c", _CODE.format(code=code), *sys.argv[1:]])
    status = getattr(_lib, function)(sys.argv[1:], describe_interpreter(), *rest)
    # Nothing is left to flush, and finalizing the interpreter takes longer than everything before.
    os._exit(status)


def _run_beside_debugger(module: str) -> NoReturn:
    """Runs the launcher as a child process: the debugger needs this one, and its threads."""
    from .launcher_process import run_launcher
    from .outcome import print_unraised_report

    argv = [os.fsencode(word) for word in [sys.executable, "-m", module, *sys.argv[1:]]]
    record, status = run_launcher(argv, dict(os.environ), None)
    print_unraised_report(record)
    sys.exit(status)


def _has_threads() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except OSError:
        return False
