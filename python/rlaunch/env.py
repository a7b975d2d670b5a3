"""The place of this process in its job: rank, world size, device and endpoints, from the environment.

Replaces ``paddle.distributed.ParallelEnv``, ``get_rank``, ``get_world_size`` and ``init_parallel_env`` and
needs no framework: it imports only ``os`` and ``sys``.

It reads the variables of one framework:

* **Paddle's**, if ``PADDLE_TRAINER_ID`` or ``PADDLE_TRAINERS_NUM`` is set, and if nothing is set;
* **torch's**, if neither of them is set and ``RANK`` or ``WORLD_SIZE`` is;
* **jax's**, if none of these four is set and ``JAX_PROCESS_ID`` and ``JAX_NUM_PROCESSES`` are (rlaunch sets
  them with ``--frameworks jax``). Rank and world size are theirs; ``local_rank`` is
  ``OMPI_COMM_WORLD_LOCAL_RANK``, else the rank; the rest is as with Paddle's variables.

It never mixes frameworks: with ``PADDLE_TRAINER_ID=1`` and ``WORLD_SIZE=4`` alone, the world size is 1, as
for Paddle.

============================  ====================================  =====================================
value                         Paddle's variables                    torch's variables
============================  ====================================  =====================================
``rank``                      ``PADDLE_TRAINER_ID``, else 0         ``RANK``, else 0
``world_size``, ``nranks``    ``PADDLE_TRAINERS_NUM``, else 1       ``WORLD_SIZE``, else 1
``local_rank``                same as ``rank`` (as in Paddle)       ``LOCAL_RANK``, else ``rank``
``device_id``, ``dev_id``     ``FLAGS_selected_*``, else 0          the same, else ``LOCAL_RANK``, else 0
``trainer_endpoints``         ``PADDLE_TRAINER_ENDPOINTS``, else    the same, else the one endpoint
                              that of the backup file, else ``""``  ``MASTER_ADDR:MASTER_PORT``, else ``""``
``current_endpoint``          ``PADDLE_CURRENT_ENDPOINT``, else ""  the same, else on rank 0 the master's
============================  ====================================  =====================================

With both: ``device_type`` from the name of ``FLAGS_selected_*``, ``nrings`` from ``FLAGS_nccl_nrings`` (1 to
8, else 1), ``pg_timeout`` from ``PADDLE_PG_TIMEOUT`` (milliseconds, else 1800000).

Differences from Paddle 3.3.1, all where Paddle fails or returns stale values:

* ``device_id`` is 0 on a CPU-only Paddle instead of an ``AttributeError``.
* An invalid ``FLAGS_selected_*`` fails when ``device_id`` is read, not in the constructor.
* The backup file is opened only if it is needed, and by every instance.
* ``get_rank()`` and ``get_world_size()`` read the environment at each call, not only at the first.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ParallelEnv", "get_rank", "get_world_size", "init_parallel_env"]

_FLAG = "FLAGS_selected_"
# FLAGS_selected_* of no custom device. gpus and xpus are read separately; nothing reads the others, which
# Paddle's launcher sets.
_NOT_CUSTOM = frozenset({"gpus", "xpus", "cpus", "ipus", "devices", "s", ""})


class ParallelEnv:
    """The place of this process in its job: a snapshot of the environment at construction.

    It has the properties and aliases of ``paddle.distributed.ParallelEnv`` (3.3.1) with their types and
    defaults. The module's documentation lists the variables and the differences from Paddle. As in Paddle,
    variables are not checked against each other: a rank may exceed the world size.

    Raises:
        ValueError: a variable that must be an integer is not (the text has its name and value), or the
            backup file is not a JSON object of strings.
        AssertionError: ``FLAGS_nccl_nrings`` is not within 1 to 8 (also under ``python -O``).
        OSError: ``PADDLE_BACKUP_ENV_PATH`` is needed and its file cannot be read; a subclass that fits, such
            as ``FileNotFoundError``.

    Example:
        >>> import os
        >>> os.environ.update(PADDLE_TRAINER_ID="1", PADDLE_TRAINERS_NUM="2")
        >>> env = ParallelEnv()
        >>> env.rank, env.world_size
        (1, 2)
    """

    def __init__(self) -> None:
        uses_torch = _uses_torch_variables()
        self._rank = _read_rank()
        self._world_size = _read_world_size()
        local = (
            "LOCAL_RANK" if uses_torch else "OMPI_COMM_WORLD_LOCAL_RANK" if _uses_jax_variables() else None
        )
        self._local_rank = self._rank if local is None else _read_int(local, self._rank)
        self._pg_timeout = _read_int("PADDLE_PG_TIMEOUT", 1800000)
        self._device_type, self._device_flag = _read_device_flag(uses_torch)
        master = _read_master_endpoint() if uses_torch else ""
        endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS")
        if endpoints is None:
            endpoints = _read_backup("PADDLE_TRAINER_ENDPOINTS")
        self._trainer_endpoints = (master if endpoints is None else endpoints).split(",")
        self._current_endpoint = os.environ.get("PADDLE_CURRENT_ENDPOINT", master if self._rank == 0 else "")
        self._nrings = _read_nrings()

    @property
    def rank(self) -> int:
        """``int``: number of this process in the job, from 0; 0 by default."""
        return self._rank

    @property
    def world_size(self) -> int:
        """``int``: number of processes in the job, on all nodes; 1 by default."""
        return self._world_size

    @property
    def local_rank(self) -> int:
        """``int``: with Paddle's variables **the same as** ``rank``, as in Paddle.

        With torch's variables ``LOCAL_RANK`` and with jax's ``OMPI_COMM_WORLD_LOCAL_RANK``: the number on
        this node; the rank if it is not set.
        """
        return self._local_rank

    @property
    def device_id(self) -> int:
        """``int``: index of this process's device; 0 by default.

        The first item of ``FLAGS_selected_{type}s`` of a custom device, else of ``FLAGS_selected_gpus``,
        else of ``FLAGS_selected_xpus``; with torch's variables else ``LOCAL_RANK``.

        Raises:
            ValueError: that variable's first item is not an integer. The constructor does not raise it,
                because Paddle on CPU accepts such values and never reads them.
        """
        if self._device_flag is None:
            return 0
        name, value = self._device_flag
        return _parse_int(name, value, value.split(",", 1)[0], 0)

    @property
    def device_type(self) -> str:
        """``str``: type of the custom device, such as ``"npu"``; ``""`` on GPU, XPU and CPU.

        It is the ``{type}`` of the ``FLAGS_selected_{type}s`` that is set, the first by name of several.
        Paddle asks its plug-ins instead.
        """
        return self._device_type

    @property
    def current_endpoint(self) -> str:
        """``str``: ``host:port`` of this process; ``""`` if it is unknown (see the module)."""
        return self._current_endpoint

    @property
    def trainer_endpoints(self) -> list[str]:
        """``list[str]``: ``host:port`` of all processes in rank order, split at commas and not stripped.

        ``[""]`` by default, as in Paddle. torch's variables contain only the master's endpoint: with them the
        length usually differs from the world size.
        """
        return self._trainer_endpoints

    @property
    def nrings(self) -> int:
        """``int``: number of NCCL rings, 1 to 8; 1 by default."""
        return self._nrings

    @property
    def pg_timeout(self) -> int:
        """``int``: timeout of process groups in milliseconds; 1800000 (30 minutes) by default."""
        return self._pg_timeout

    nranks = world_size
    dev_id = device_id


def get_rank(group: object = None) -> int:
    """Returns the rank of this process in the job or in a group.

    Like ``paddle.distributed.get_rank``, except that it reads the environment at each call.

    Args:
        group: ``None``: the whole job; or a group object of Paddle or torch with an attribute or method
            ``rank``.

    Returns:
        The rank, from 0; 0 by default; -1 if this process is not a member of the group.

    Raises:
        ValueError: the variable is not an integer; the text has its name and value.
        TypeError: the group object has no ``rank``.
    """
    if group is None:
        return _read_rank()
    return _ask_group(group, "get_rank", ("rank",))


def get_world_size(group: object = None) -> int:
    """Returns the number of processes in the job or in a group.

    Like ``paddle.distributed.get_world_size``, except that it reads the environment at each call.

    Args:
        group: ``None``: the whole job; or a group object of Paddle or torch with an attribute or method
            ``world_size``, ``nranks`` or ``size``, tried in this order.

    Returns:
        The number of processes; 1 by default; -1 if this process is not a member of the group.

    Raises:
        ValueError: the variable is not an integer; the text has its name and value.
        TypeError: the group object has none of these attributes.
    """
    if group is None:
        return _read_world_size()
    return _ask_group(group, "get_world_size", ("world_size", "nranks", "size"))


def init_parallel_env(nccl_config: object = None) -> Any:
    """Initializes communication between the processes, with the framework that the program has imported.

    * ``paddle`` is imported: ``paddle.distributed.init_parallel_env()``. In a job of one process that warns
      and does nothing.
    * ``torch`` is imported: ``torch.distributed.init_process_group()`` over ``env://``. With ``nccl`` if CUDA
      is available and ``LOCAL_RANK`` is set; that device becomes the current one, as with Paddle. Otherwise
      with ``gloo``.
    * Both are imported: torch with torch's variables (``RANK`` or ``WORLD_SIZE``, and neither
      ``PADDLE_TRAINER_ID`` nor ``PADDLE_TRAINERS_NUM``), otherwise Paddle.

    Args:
        nccl_config: passed to Paddle's function; torch's has no such argument.

    Returns:
        What the framework's function returns: Paddle's group or ``None``; ``None`` from torch.

    Raises:
        RuntimeError: neither framework is imported; the job has several processes but its variables are those
            of the other framework; or ``LOCAL_RANK`` names a CUDA device that does not exist.
        TypeError: ``nccl_config`` is given and the framework is torch.
        ValueError: a variable that must be an integer is not; the text has its name and value.

    Exceptions of the framework pass through.
    """
    has_paddle = sys.modules.get("paddle") is not None
    has_torch = sys.modules.get("torch") is not None
    if not has_paddle and not has_torch:
        raise RuntimeError(
            "init_parallel_env() calls the framework that is imported, and none is: "
            "`import paddle` or `import torch` before calling it"
        )
    uses_torch = _uses_torch_variables()
    if has_torch and (uses_torch or not has_paddle):
        if nccl_config is not None:
            raise TypeError("nccl_config is an argument of Paddle's init_parallel_env(); torch has none")
        return _init_torch()
    return _init_paddle(uses_torch, nccl_config)


def _init_paddle(uses_torch: bool, nccl_config: object) -> Any:
    # Paddle would assume a job of one process, warn, and train every rank separately.
    if uses_torch and _read_world_size() > 1:
        raise RuntimeError(
            f"the job has {_read_world_size()} processes by torch's WORLD_SIZE, but paddle is imported and "
            "reads PADDLE_TRAINER_ID and PADDLE_TRAINERS_NUM, which are not set: start it with "
            "`python -m rlaunch`, or unset RANK and WORLD_SIZE to run one process"
        )
    from importlib import import_module

    distributed = import_module("paddle.distributed")
    if nccl_config is None:
        return distributed.init_parallel_env()
    return distributed.init_parallel_env(nccl_config)


def _init_torch() -> Any:
    missing = [name for name in ("RANK", "WORLD_SIZE") if name not in os.environ]
    if missing and _uses_paddle_variables():
        raise RuntimeError(
            f"the job has Paddle's variables and lacks {' and '.join(missing)}, but torch is imported: "
            "start it with `python -m rlaunch.run`, or `import paddle`"
        )
    from importlib import import_module

    torch = import_module("torch")
    distributed = import_module("torch.distributed")
    backend = "gloo"
    if "LOCAL_RANK" in os.environ and torch.cuda.is_available() and distributed.is_nccl_available():
        local_rank, devices = _read_int("LOCAL_RANK", 0), torch.cuda.device_count()
        # Not gloo: the ranks with a device would use nccl, and all ranks would wait without end.
        if not 0 <= local_rank < devices:
            raise RuntimeError(
                f"LOCAL_RANK={local_rank} has no CUDA device: {devices} visible. Start at most {devices} "
                "processes on this node, or set CUDA_VISIBLE_DEVICES= (empty) for all to use gloo"
            )
        torch.cuda.set_device(local_rank)
        backend = "nccl"
    return distributed.init_process_group(backend=backend)


def _uses_paddle_variables() -> bool:
    return "PADDLE_TRAINER_ID" in os.environ or "PADDLE_TRAINERS_NUM" in os.environ


def _uses_torch_variables() -> bool:
    return not _uses_paddle_variables() and ("RANK" in os.environ or "WORLD_SIZE" in os.environ)


def _uses_jax_variables() -> bool:
    has_both = "JAX_PROCESS_ID" in os.environ and "JAX_NUM_PROCESSES" in os.environ
    return has_both and not _uses_paddle_variables() and not _uses_torch_variables()


def _read_rank() -> int:
    if _uses_jax_variables():
        return _read_int("JAX_PROCESS_ID", 0)
    return _read_int("RANK" if _uses_torch_variables() else "PADDLE_TRAINER_ID", 0)


def _read_world_size() -> int:
    if _uses_jax_variables():
        return _read_int("JAX_NUM_PROCESSES", 1)
    return _read_int("WORLD_SIZE" if _uses_torch_variables() else "PADDLE_TRAINERS_NUM", 1)


def _read_nrings() -> int:
    nrings = _read_int("FLAGS_nccl_nrings", 1)
    # AssertionError and the beginnings of the texts are Paddle's; programs may match them.
    if nrings <= 0:
        problem = "nccl_nrings must be an integer greater than 0."
    elif nrings >= 9:
        problem = "nccl_nrings should be less than 9, which is enough in most scenarios."
    else:
        return nrings
    raise AssertionError(f"{problem} FLAGS_nccl_nrings={nrings}: set it to 1 to 8, or unset it for 1")


def _read_device_flag(uses_torch: bool) -> tuple[str, tuple[str, str] | None]:
    """Returns the type of the custom device or ``""``, and name and value of the variable with its index."""
    custom = sorted(
        kind
        for kind in (name[len(_FLAG) :] for name in os.environ if name.startswith(_FLAG))
        if kind.endswith("s") and kind not in _NOT_CUSTOM
    )
    names = [_FLAG + kind for kind in (*custom[:1], "gpus", "xpus")]
    if uses_torch:
        names.append("LOCAL_RANK")
    flag = next(((name, os.environ[name]) for name in names if name in os.environ), None)
    return (custom[0][:-1] if custom else ""), flag


def _read_master_endpoint() -> str:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port:
        return ""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _read_backup(name: str) -> str | None:
    """Returns ``name`` from the JSON file of PADDLE_BACKUP_ENV_PATH; None if either is missing."""
    path = os.environ.get("PADDLE_BACKUP_ENV_PATH")
    if path is None:
        return None
    import json

    way_out = f"PADDLE_BACKUP_ENV_PATH names it and {name} is not set: set {name}, or unset the former"
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
    except OSError as error:
        # With an errno, OSError() returns the subclass that fits, and its text has the path.
        raise OSError(
            error.errno, f"cannot read the backup file ({error.strerror}; {way_out})", path
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the backup file {path!r} is not JSON: {error}; {way_out}") from error
    if not isinstance(stored, dict):
        raise ValueError(
            f"the backup file {path!r} holds a {type(stored).__name__}, not a JSON object; {way_out}"
        )
    value = stored.get(name)
    if value is None and name not in stored:
        return None
    if not isinstance(value, str):
        raise ValueError(f"in the backup file {path!r} {name} is not a string; {way_out}")
    return value


def _read_int(name: str, default: int) -> int:
    value = os.environ.get(name)
    return default if value is None else _parse_int(name, value, value, default)


def _parse_int(name: str, value: str, item: str, default: int) -> int:
    try:
        return int(item)
    except ValueError:
        shown = repr(value if len(value) <= 80 else value[:77] + "...")
    raise ValueError(
        f"{name}={shown}: {'its first item' if item != value else 'it'} is not an integer. Set it to one, or "
        f"unset it (which means {default}); a launcher such as `python -m rlaunch` sets it for each process"
    )


def _ask_group(group: object, function: str, names: tuple[str, ...]) -> int:
    # torch's new_group() returns a number to a process outside the group.
    member = getattr(sys.modules.get("torch.distributed"), "GroupMember", None)
    if isinstance(group, int) and group == getattr(member, "NON_GROUP_MEMBER", None):
        return -1
    for name in names:
        value: Any = getattr(group, name, None)
        if value is not None:
            return int(value() if callable(value) else value)
    raise TypeError(
        f"{function}() takes None or a group object of paddle or torch, not a {type(group).__name__} "
        f"(it has no {' or '.join(names)})"
    )
