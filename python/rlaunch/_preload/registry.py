"""The preload servers (zygotes) of this program. They run until the program ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import threading
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

from .. import _lib
from .client import Zygote, forget_closed, reap_closed

if TYPE_CHECKING:
    from collections.abc import Iterator

# Prefixes of variables that libraries read when they are loaded. Another value needs another zygote.
_READ_BY_IMPORTS = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "LD_", "GLIBC_", "MALLOC_", "PYTHON"),
    *("LANG", "LC_", "FLAGS_", "TORCH", "PYTORCH_", "XLA_", "JAX_"),
)

# Lines of /proc/PID/status (proc_pid_status(5)) with what a process inherits from its parent: session and
# group, credentials, umask, blocked and ignored signals, CPUs.
_INHERITED_STATUS = (
    *("NSpgid", "NSsid", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapPrm", "Umask"),
    *("SigBlk", "SigIgn", "Cpus_allowed"),
)

# Except the limit of open files, which each request carries: rlaunch raises it for many ranks.
_INHERITED_LIMITS = [
    name for name in dir(resource) if name.startswith("RLIMIT_") and name[7:] not in ("NOFILE", "OFILE")
]

# Zygotes by their modules and by what they inherited from this process. The one that was used least recently
# comes first.
_zygotes: dict[tuple[Any, ...], Zygote] = {}
# Each zygote has hundreds of megabytes.
_MAX_ZYGOTES = 4
# Lets one thread start a zygote, which the others then use.
_starting = threading.Lock()
_import_limit: tuple[float, str] | None = None


def parse_preload(preload: Any, framework: str) -> tuple[list[str], bool]:
    """Reads the option ``preload``.

    Args:
        preload: module names joined by commas, or a list of them. None and "auto" alone mean ``framework``.
        framework: the module to import by default.

    Returns:
        The modules, and whether "auto" was among them: ranks then start without a zygote if need be.

    Raises:
        ValueError: it names no module.
        TypeError: it is something else.
    """
    words = [] if preload is None else preload.split(",") if isinstance(preload, str) else list(preload)
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"preload must be names of modules, as in 'torch,my.models', but got {preload!r}")
    return _lib.preload_modules(words, framework)


@contextlib.contextmanager
def import_limit(seconds: float | None, setting: str) -> Iterator[None]:
    """Zygotes that are started in the block have so many seconds for their imports; None: no limit.

    ``setting``: the name of what sets it, for the error.
    """
    global _import_limit
    previous, _import_limit = _import_limit, None if seconds is None else (seconds, setting)
    try:
        yield
    finally:
        _import_limit = previous


def get_zygote(modules: list[str]) -> Zygote:
    """Returns the zygote that has imported these modules; starts one if there is none.

    Raises:
        ZygoteError, OSError: as ``Zygote`` does.
    """
    variables = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(_READ_BY_IMPORTS)))
    key = (tuple(modules), spawn.get_executable(), variables, _read_inherited())
    with _starting:
        reap_closed(0)
        zygote = _zygotes.get(key)
        if zygote is not None and not zygote.can_fork():
            zygote.close()
            zygote = None
        if zygote is None:
            zygote = Zygote(modules, _import_limit)
        _zygotes.pop(key, None)
        _zygotes[key] = zygote
        while len(_zygotes) > _MAX_ZYGOTES:
            _zygotes.pop(next(iter(_zygotes))).close()
        return zygote


def _read_inherited() -> tuple[Any, ...]:
    """Returns what a process inherits from this one and a fork request does not carry."""
    status: tuple[str, ...] = ()
    # Without /proc the zygote refuses, and says why.
    with (
        contextlib.suppress(OSError),
        open("/proc/thread-self/status", encoding="utf-8", errors="surrogateescape") as file,
    ):
        status = tuple(line for line in file if line.partition(":")[0] in _INHERITED_STATUS)
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in _INHERITED_LIMITS}
    return (*status, *limits.items(), os.getpriority(os.PRIO_PROCESS, 0))


def end_zygotes() -> None:
    """Ends the processes that ``spawn(start_method="zygote")`` keeps for later calls.

    Each holds the memory of its imports (350 MB for torch) and otherwise ends with this program. One whose
    ranks still run ends after them; ``end_zygotes`` waits for the others, at most one second. A later
    ``spawn`` starts a new one.
    """
    with _starting:
        while _zygotes:
            _zygotes.popitem()[1].close()
        reap_closed(1.0)


def _close_all() -> None:
    while _zygotes:
        with contextlib.suppress(KeyError):
            _zygotes.popitem()[1].close_unlocked()


def _forget_all() -> None:
    """In a process forked off this one: the zygotes are the parent's."""
    global _starting
    _starting = threading.Lock()
    _close_all()
    forget_closed()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
