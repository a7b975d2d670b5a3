"""Who am I in this job: rank, world size, device and endpoints, read from the environment.

Drop-in for ``paddle.distributed.ParallelEnv``, ``get_rank``, ``get_world_size`` and
``init_parallel_env`` that needs no framework: only ``os`` and ``sys`` are imported.

Three dialects are understood:

* **Paddle's**, when ``PADDLE_TRAINER_ID`` or ``PADDLE_TRAINERS_NUM`` is set, and when nothing is set;
* **torch's**, when neither of them is set and ``RANK`` or ``WORLD_SIZE`` is;
* **jax's**, when none of these four is set and ``JAX_PROCESS_ID`` and ``JAX_NUM_PROCESSES`` are, which
  rlaunch writes with ``--dialect jax``: rank and world size are theirs, ``local_rank`` is
  ``OMPI_COMM_WORLD_LOCAL_RANK``, else the rank; all else is as in Paddle's, and 0 or empty there.

The dialect is chosen as a whole, never variable by variable: with ``PADDLE_TRAINER_ID=1`` and
``WORLD_SIZE=4`` alone the world size is 1, as it is for Paddle.

============================  ====================================  =====================================
value                         Paddle's dialect                      torch's dialect
============================  ====================================  =====================================
``rank``                      ``PADDLE_TRAINER_ID``, else 0         ``RANK``, else 0
``world_size``, ``nranks``    ``PADDLE_TRAINERS_NUM``, else 1       ``WORLD_SIZE``, else 1
``local_rank``                same as ``rank`` (Paddle's alias!)    ``LOCAL_RANK``, else ``rank``
``device_id``, ``dev_id``     ``FLAGS_selected_*``, else 0          the same, else ``LOCAL_RANK``, else 0
``trainer_endpoints``         ``PADDLE_TRAINER_ENDPOINTS``, else    the same, else the one endpoint
                              that of the backup file, else ``""``  ``MASTER_ADDR:MASTER_PORT``, else ``""``
``current_endpoint``          ``PADDLE_CURRENT_ENDPOINT``, else ""  the same, else on rank 0 the master's
============================  ====================================  =====================================

In both: ``device_type`` from the name of ``FLAGS_selected_*``, ``nrings`` from ``FLAGS_nccl_nrings``
(1 to 8, else 1), ``pg_timeout`` from ``PADDLE_PG_TIMEOUT`` (milliseconds, else 1800000).

Known differences from Paddle 3.3.1, all where it fails or gives stale answers: ``device_id`` is 0 on a
CPU-only Paddle instead of an ``AttributeError``; a broken ``FLAGS_selected_*`` fails when ``device_id``
is read, not in the constructor; the backup file is opened only when it is needed and again by every
instance; ``get_rank()`` and ``get_world_size()`` read the environment each time, so they see variables
set after their first call.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ParallelEnv", "get_rank", "get_world_size", "init_parallel_env"]

_FLAG = "FLAGS_selected_"
# Names of FLAGS_selected_* that are no custom device: two have a meaning of their own, the others are
# written by Paddle's launcher and read by nobody.
_NOT_CUSTOM = frozenset({"gpus", "xpus", "cpus", "ipus", "devices", "s", ""})


class ParallelEnv:
    """The place of this process in its job: a snapshot of the environment, taken on construction.

    Has every property and alias of ``paddle.distributed.ParallelEnv`` (3.3.1) with its types and
    defaults, and reads torch's variables too. Which variables, and where it differs from Paddle on
    purpose, is in the module's documentation. Nothing is checked across variables: a rank beyond the
    world size is handed out as it is, as by Paddle.

    Raises:
        ValueError: a variable that must be an integer is not (it is named, with its value), or the
            backup file is not a JSON object of strings.
        AssertionError: ``FLAGS_nccl_nrings`` is not within 1 to 8 (also under ``python -O``).
        OSError: ``PADDLE_BACKUP_ENV_PATH`` is needed and names a file that cannot be read; the class is
            the one that fits, such as ``FileNotFoundError``.

    Example:
        >>> import os
        >>> os.environ.update(PADDLE_TRAINER_ID="1", PADDLE_TRAINERS_NUM="2")
        >>> env = ParallelEnv()
        >>> env.rank, env.world_size
        (1, 2)
    """

    def __init__(self) -> None:
        torch = _speaks_torch()
        self._rank = _rank()
        self._world_size = _world_size()
        local = "LOCAL_RANK" if torch else "OMPI_COMM_WORLD_LOCAL_RANK" if _speaks_jax() else None
        self._local_rank = self._rank if local is None else _integer(local, self._rank)
        self._pg_timeout = _integer("PADDLE_PG_TIMEOUT", 1800000)
        self._device_type, self._device_flag = _device_flag(torch)
        master = _master_endpoint() if torch else ""
        endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS")
        if endpoints is None:
            endpoints = _from_backup("PADDLE_TRAINER_ENDPOINTS")
        self._trainer_endpoints = (master if endpoints is None else endpoints).split(",")
        self._current_endpoint = os.environ.get("PADDLE_CURRENT_ENDPOINT", master if self._rank == 0 else "")
        self._nrings = _nrings()

    @property
    def rank(self) -> int:
        """``int``: this process's number among all processes of the job, from 0; 0 by default."""
        return self._rank

    @property
    def world_size(self) -> int:
        """``int``: how many processes the job has, on all nodes together; 1 by default."""
        return self._world_size

    @property
    def local_rank(self) -> int:
        """``int``: in Paddle's dialect **the same as** :attr:`rank`, so global, as in Paddle, where it
        is an alias; in torch's dialect ``LOCAL_RANK``, and in jax's ``OMPI_COMM_WORLD_LOCAL_RANK``, the
        number on this node (without it, the rank).
        """
        return self._local_rank

    @property
    def device_id(self) -> int:
        """``int``: index of this process's device; 0 by default.

        The first item of ``FLAGS_selected_{type}s`` of a custom device, else of ``FLAGS_selected_gpus``,
        else of ``FLAGS_selected_xpus``; in torch's dialect else ``LOCAL_RANK``.

        Raises:
            ValueError: that variable's first item is not an integer. It is raised here and not by the
                constructor, because Paddle on CPU accepts such values and never looks at them.
        """
        if self._device_flag is None:
            return 0
        name, value = self._device_flag
        return _to_int(name, value, value.split(",", 1)[0], 0)

    @property
    def device_type(self) -> str:
        """``str``: type of the custom device, such as ``"npu"``; ``""`` on GPU, XPU and CPU.

        Paddle asks its plug-ins; here it is the ``{type}`` of the ``FLAGS_selected_{type}s`` that is set
        (the first by name when there are several), so without that variable it is ``""``.
        """
        return self._device_type

    @property
    def current_endpoint(self) -> str:
        """``str``: ``host:port`` of this process; ``""`` when it is not known (see the module)."""
        return self._current_endpoint

    @property
    def trainer_endpoints(self) -> list[str]:
        """``list[str]``: ``host:port`` of all processes in rank order, cut at commas and not stripped.

        ``[""]`` by default, as in Paddle. torch's variables tell only the master's endpoint, so in
        torch's dialect its length is usually not the world size.
        """
        return self._trainer_endpoints

    @property
    def nrings(self) -> int:
        """``int``: NCCL rings, 1 to 8; 1 by default."""
        return self._nrings

    @property
    def pg_timeout(self) -> int:
        """``int``: time limit of process groups in milliseconds; 1800000 (30 minutes) by default."""
        return self._pg_timeout

    nranks = world_size
    dev_id = device_id


def get_rank(group: object = None) -> int:
    """Rank of this process, in the whole job or in a group.

    Args:
        group: ``None`` for the whole job, or a group object of Paddle or torch: its ``rank`` (attribute
            or method) is the answer.

    Returns:
        The rank from 0; 0 by default; -1 when this process is no member of the group.

    Raises:
        ValueError: the variable is not an integer; it is named, with its value.
        TypeError: the group object has no ``rank``.

    Meets ``paddle.distributed.get_rank``, except that the environment is read at each call.
    """
    if group is None:
        return _rank()
    return _ask_group(group, "get_rank", ("rank",))


def get_world_size(group: object = None) -> int:
    """Number of processes in the whole job or in a group.

    Args:
        group: ``None`` for the whole job, or a group object of Paddle or torch: the first that it has of
            ``world_size``, ``nranks`` and ``size`` (attribute or method) is the answer.

    Returns:
        The number of processes; 1 by default; -1 when this process is no member of the group.

    Raises:
        ValueError: the variable is not an integer; it is named, with its value.
        TypeError: the group object has none of these.

    Meets ``paddle.distributed.get_world_size``, except that the environment is read at each call.
    """
    if group is None:
        return _world_size()
    return _ask_group(group, "get_world_size", ("world_size", "nranks", "size"))


def init_parallel_env(nccl_config: object = None) -> Any:
    """Set up communication between the processes with the framework that the program has imported.

    * ``paddle`` imported: ``paddle.distributed.init_parallel_env()``. In a job of one process that warns
      and does nothing.
    * ``torch`` imported: ``torch.distributed.init_process_group()`` over ``env://``, with ``nccl`` if
      CUDA is there and ``LOCAL_RANK`` is set (that device is made the current one, as Paddle does),
      else with ``gloo``.
    * both imported: torch in torch's dialect (``RANK`` or ``WORLD_SIZE`` and no ``PADDLE_TRAINER_ID``
      or ``PADDLE_TRAINERS_NUM``), else Paddle.

    Args:
        nccl_config: passed on to Paddle if given; torch has no such thing.

    Returns:
        What the framework's function returns: Paddle's group or ``None``; ``None`` from torch.

    Raises:
        RuntimeError: neither is imported; the job has several processes but its variables are those of
            the other framework; or ``LOCAL_RANK`` names a CUDA device that is not there.
        TypeError: ``nccl_config`` was given and the framework is torch.
        ValueError: a variable that must be an integer is not; it is named, with its value.

    Errors of the framework pass through.
    """
    has_paddle = sys.modules.get("paddle") is not None
    has_torch = sys.modules.get("torch") is not None
    if not has_paddle and not has_torch:
        raise RuntimeError(
            "init_parallel_env() hands over to the framework that is imported, and none is: "
            "`import paddle` or `import torch` before calling it"
        )
    speaks_torch = _speaks_torch()
    if has_torch and (speaks_torch or not has_paddle):
        if nccl_config is not None:
            raise TypeError("nccl_config is an argument of Paddle's init_parallel_env(); torch has none")
        return _init_torch()
    return _init_paddle(speaks_torch, nccl_config)


def _init_paddle(speaks_torch: bool, nccl_config: object) -> Any:
    # Paddle would take this process for the only one, warn, and train every rank on its own.
    if speaks_torch and _world_size() > 1:
        raise RuntimeError(
            f"the job has {_world_size()} processes by torch's WORLD_SIZE, but paddle is imported and "
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
    if missing and _speaks_paddle():
        raise RuntimeError(
            f"the job has Paddle's variables and lacks {' and '.join(missing)}, but torch is imported: "
            "start it with `python -m rlaunch.run`, or `import paddle`"
        )
    from importlib import import_module

    torch = import_module("torch")
    distributed = import_module("torch.distributed")
    backend = "gloo"
    if "LOCAL_RANK" in os.environ and torch.cuda.is_available() and distributed.is_nccl_available():
        local_rank, devices = _integer("LOCAL_RANK", 0), torch.cuda.device_count()
        # Not gloo here: the ranks below would take nccl, and all would wait for ever.
        if not 0 <= local_rank < devices:
            raise RuntimeError(
                f"LOCAL_RANK={local_rank} has no CUDA device: {devices} visible. Start at most {devices} "
                "processes on this node, or set CUDA_VISIBLE_DEVICES= (empty) for all to use gloo"
            )
        torch.cuda.set_device(local_rank)
        backend = "nccl"
    return distributed.init_process_group(backend=backend)


def _speaks_paddle() -> bool:
    return "PADDLE_TRAINER_ID" in os.environ or "PADDLE_TRAINERS_NUM" in os.environ


def _speaks_torch() -> bool:
    return not _speaks_paddle() and ("RANK" in os.environ or "WORLD_SIZE" in os.environ)


def _speaks_jax() -> bool:
    jaxs = "JAX_PROCESS_ID" in os.environ and "JAX_NUM_PROCESSES" in os.environ
    return jaxs and not _speaks_paddle() and not _speaks_torch()


def _rank() -> int:
    if _speaks_jax():
        return _integer("JAX_PROCESS_ID", 0)
    return _integer("RANK" if _speaks_torch() else "PADDLE_TRAINER_ID", 0)


def _world_size() -> int:
    if _speaks_jax():
        return _integer("JAX_NUM_PROCESSES", 1)
    return _integer("WORLD_SIZE" if _speaks_torch() else "PADDLE_TRAINERS_NUM", 1)


def _nrings() -> int:
    nrings = _integer("FLAGS_nccl_nrings", 1)
    # AssertionError and these openings are Paddle's; callers may match on them.
    if nrings <= 0:
        problem = "nccl_nrings must be an integer greater than 0."
    elif nrings >= 9:
        problem = "nccl_nrings should be less than 9, which is enough in most scenarios."
    else:
        return nrings
    raise AssertionError(f"{problem} FLAGS_nccl_nrings={nrings}: set it to 1 to 8, or unset it for 1")


def _device_flag(torch: bool) -> tuple[str, tuple[str, str] | None]:
    """Type of the custom device or ``""``, and (name, value) of the variable with the device's index."""
    custom = sorted(
        kind
        for kind in (name[len(_FLAG) :] for name in os.environ if name.startswith(_FLAG))
        if kind.endswith("s") and kind not in _NOT_CUSTOM
    )
    names = [_FLAG + kind for kind in (*custom[:1], "gpus", "xpus")]
    if torch:
        names.append("LOCAL_RANK")
    flag = next(((name, os.environ[name]) for name in names if name in os.environ), None)
    return (custom[0][:-1] if custom else ""), flag


def _master_endpoint() -> str:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port:
        return ""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _from_backup(name: str) -> str | None:
    """``name`` from the JSON file that PADDLE_BACKUP_ENV_PATH names, or None if either is not there."""
    path = os.environ.get("PADDLE_BACKUP_ENV_PATH")
    if path is None:
        return None
    import json

    way_out = f"PADDLE_BACKUP_ENV_PATH names it and {name} is not set: set {name}, or unset the former"
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
    except OSError as error:
        # With an errno, OSError() makes the subclass that fits, and shows the path.
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


def _integer(name: str, default: int) -> int:
    value = os.environ.get(name)
    return default if value is None else _to_int(name, value, value, default)


def _to_int(name: str, value: str, item: str, default: int) -> int:
    try:
        return int(item)
    except ValueError:
        shown = repr(value if len(value) <= 80 else value[:77] + "...")
    raise ValueError(
        f"{name}={shown}: {'its first item' if item != value else 'it'} is not an integer. Set it to one, or "
        f"unset it (which means {default}); a launcher such as `python -m rlaunch` sets it for each process"
    )


def _ask_group(group: object, function: str, names: tuple[str, ...]) -> int:
    # What torch's new_group() gives to a process outside the group is a bare number.
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
