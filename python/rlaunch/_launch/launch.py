"""``rlaunch.launch``: ``python -m rlaunch`` from a Python program."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # Importing typing takes longer than this module.
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..report import Report

# pytest shows the caller's frames alone. IPython reads the name in each frame.
__tracebackhide__ = True

# What rlaunch.spawn and similar functions call an option.
_OTHER_NAMES = {"nprocs": "nproc_per_node", "nproc": "nproc_per_node"}


def launch(
    script: str | bytes | os.PathLike[Any],
    *args: Any,
    env: Mapping[str, str] | None = None,
    cwd: str | bytes | os.PathLike[Any] | None = None,
    **options: Any,
) -> Report:
    """Runs a script on several ranks and waits for the end: ``python -m rlaunch OPTIONS script ARGS``.

    The launcher runs in a process of its own. This process is not forked, and its children, signal handlers
    and threads stay as they are. When this process ends, even by SIGKILL, the job ends too.

    Output of the ranks and the launcher goes to this program's stdout and stderr: to descriptors 1 and 2 if
    ``sys.stdout`` and ``sys.stderr`` use them, otherwise (a notebook, pytest's capturing) through these
    objects. A shown rank's stdout and stderr are one log file, as in Paddle, and both go to stdout.

    Ctrl-C: the first one asks the ranks to stop, a second one kills them. When all ranks have ended, the
    KeyboardInterrupt is raised. The second one also kills a launcher that does not act on it: after 0.5 s if
    the launcher's interpreter is still starting or the launcher is stopped (SIGSTOP), otherwise after 15 s.
    The launcher's supervisor then ends the ranks, for which it has 5 s. Any other exception of a signal
    handler has the same effect. SIGTERM, SIGHUP and SIGQUIT stop the ranks and then end this process, unless
    the program handles or ignores them. SIGUSR1 and SIGUSR2 are forwarded to the ranks likewise, and stop
    nothing. This holds in the main thread, where Python runs signal handlers. A
    call in another thread shares the terminal's process group and stops only by the terminal's Ctrl-C. In a
    coroutine, call it through ``asyncio.to_thread``.

    Several nodes: each node calls it, with ``nnodes=2, master="10.0.0.1:6768"`` and the like, or without
    these in a program that Slurm, Open MPI or Kubernetes starts on each node. ``ranks`` of
    the report are those of this node; ``job_end`` is the outcome of the whole job, and ``job_culprit``
    what it failed by. A rank that fails on another node raises a WorkerError here too.

    Args:
        script: what each rank runs: a Python script; with ``module=True`` the name of a module; with
            ``no_python=True`` a program.
        *args: its arguments, converted to text.
        env: variables for the launcher and the ranks, added to this process's.
        cwd: the working folder. Relative paths of the script and of ``log_dir`` start there.
        **options: options of the command line by name (``nproc_per_node``, ``devices``, ``log_dir``,
            ``max_restart``, ...). They override variables. ``True`` and ``False`` become ``true``
            and ``false``, a list becomes comma-separated, None means the default.

    Returns:
        The report, if every rank exited successfully and the job was not preempted.

    Raises:
        WorkerError: a rank failed, a signal stopped the job, the job was preempted (``should_stop``), or
            another node was lost. Its ``report`` has the details. If a rank failed, its text is the failure
            report, which is not printed besides.
        LaunchError: the launcher could not start the job. Its ``status`` is the launcher's exit status: 73 if
            the rendezvous failed or the job did not admit this node.
        TypeError: an option does not exist, an argument of the script is a list, or ``env`` has a
            name or value that is neither text nor a path.
        OSError: the launcher cannot be started.
    """
    __tracebackhide__ = True
    _check_arguments(args)
    _check_environ(env or {})
    argv = [sys.executable, "-m", "rlaunch", *_build_flags(options), script, *args]
    from .launcher_process import run_launcher
    from .outcome import make_report

    # One expression without a local variable: an exception keeps the variables of its frames alive.
    return make_report(*run_launcher([_to_bytes(word) for word in argv], {**os.environ, **(env or {})}, cwd))


def _check_arguments(args: tuple[Any, ...]) -> None:
    __tracebackhide__ = True
    for number, argument in enumerate(args, 1):
        if isinstance(argument, (list, tuple, dict, set)):
            import reprlib

            kind = type(argument).__name__
            raise TypeError(
                f"argument {number} of the script is a {kind}, {reprlib.repr(argument)}; "
                "give each word as an argument of its own: launch(script, *words)"
            )


def _check_environ(env: Mapping[Any, Any]) -> None:
    for name, value in env.items():
        for what, word in (("a name in env", name), (f"env[{name!r}]", value)):
            if not isinstance(word, (str, bytes, os.PathLike)):
                import reprlib

                kind = type(word).__name__
                raise TypeError(f"{what} must be text, but got {reprlib.repr(word)} of type {kind}")


def _build_flags(options: dict[str, Any]) -> list[bytes]:
    __tracebackhide__ = True
    from .. import _lib

    known = _lib.launch_options()
    flags = []
    for name, value in options.items():
        if name not in known or name == "dry_run":
            raise TypeError(_describe_unknown(name, known))
        if value is None:
            continue
        if known[name]:
            flags += [b"--" + name.encode()] if value else []
        else:
            flags.append(b"--" + name.encode() + b"=" + _format_value(value))
    return flags


def _describe_unknown(name: str, known: dict[str, bool]) -> str:
    import difflib

    other = _OTHER_NAMES.get(name)
    near = [other] if other else difflib.get_close_matches(name, known.keys() - {name}, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"launch() has no option {name!r}{hint}"


def _format_value(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, (list, tuple)):
        return b",".join(map(_to_bytes, value))
    return _to_bytes(value)


def _to_bytes(word: Any) -> bytes:
    return os.fsencode(word if isinstance(word, (str, bytes, os.PathLike)) else str(word))
