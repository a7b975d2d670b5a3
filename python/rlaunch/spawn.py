"""``rlaunch.spawn``: runs a function on several ranks. Contract: ``paddle.distributed.spawn`` of 3.3."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # Importing typing for this name would double the time of `import rlaunch`.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

    from . import _lib
    from ._preload import Zygote
    from .context import MultiprocessContext

__all__ = ["MultiprocessContext", "spawn"]


def __getattr__(name: str) -> Any:
    # multiprocessing takes longer to import than all of rlaunch; `import rlaunch` does without it.
    if name == "MultiprocessContext":
        from .context import MultiprocessContext

        return MultiprocessContext
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def spawn(
    func: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = -1,
    join: bool = True,
    daemon: bool = False,
    **options: Any,
) -> MultiprocessContext:
    """Runs ``func(*args)`` in ``nprocs`` processes, each told which rank it is.

    Args:
        func: what each rank runs. With the start methods ``spawn`` and ``forkserver`` it is pickled: by
            name if it is defined at the top level of a module that ranks can import, else (a lambda, a
            closure, a function of a notebook or a prompt) by value, for which cloudpickle has to be
            installed.
        args: its arguments; pickled likewise, except with ``fork``.
        nprocs: how many ranks. -1: one for each device, or for each CPU where there is none. 0 or
            less: none.
        join: whether to wait until all ranks have ended.
        daemon: whether the ranks are daemonic processes: ended when this program ends.
        **options: as ``paddle.distributed.spawn`` has them: ``start_method`` (``"spawn"``, ``"fork"``
            or ``"forkserver"``), ``backend`` (``"auto"``, ``"gloo"``, ``"nccl"``, ``"bkcl"``, ``"xccl"``),
            ``gpus`` and ``xpus`` (comma lists), ``ips`` (comma list of the nodes' addresses, IPv6 bare or
            in brackets; default ``"127.0.0.1"``), ``print_config``; deprecated, but with effect:
            ``selected_devices``, ``cluster_node_ips`` (older name of ``ips``), ``node_ip`` (which of them
            this node is; default: the one that this machine has), ``started_port`` (port of each node's
            first rank, 1 to 65535; default 6070 on several nodes, else free ports), ``use_paddlecloud``
            (whether PaddleCloud's variables say all this; default: whether they are set). Extensions of
            rlaunch: ``grace`` (seconds between asking a rank to stop and killing it, default 10),
            ``log_dir`` (a folder; local rank i then writes to ``workerlog.i`` there) and ``dialect`` (the
            frameworks whose variables the ranks get, ``"paddle"``, ``"torch"``, ``"jax"`` joined by commas;
            default ``"paddle"``) and ``start_method="zygote"`` with ``preload`` (modules, joined by commas;
            default: the first of ``dialect``; with ``"auto"`` among them it starts without where it must):
            one process imports them, and ranks are forked off it, in this and later calls: it is there, with
            the memory of what it has imported, until this program ends or ``end_zygotes`` is called. Another
            is started where what imports read (OMP_NUM_THREADS, PYTHONPATH, ...) or what processes inherit
            (limits, CPUs, ignored signals, ...) has changed since. On several nodes rank 0 listens for torch
            on the port behind those of the first node's ranks and for jax on the next one; the same
            ``dialect`` is given on each node.

    With several ``ips``, which ``gloo`` has not, the program is started once on each node with the same
    ``ips`` and ``nprocs``: each starts its own ``nprocs`` ranks, numbered node after node as listed. No
    node speaks to another before the ranks do. Under PaddleCloud, so with PADDLE_TRAINERS, POD_IP,
    PADDLE_TRAINER_ID and TRAINER_PORTS_NUM set and PADDLE_TRAINERS_NUM set to more than 1, nodes and ports
    are the platform's: DISTRIBUTED_TRAINER_ENDPOINTS, else PADDLE_PORT, else ``started_port``, else 6170.

    Returns:
        The context, also when ``join`` is true; ``context.results()`` is the list of what the ranks
        returned, ``context.return_queues[i].get()`` what rank i did.

    Raises:
        RankError: a rank failed (only if ``join``).
        ValueError, RuntimeError, AssertionError: the options cannot be met, with the texts that
            ``paddle.distributed.spawn`` has; nothing was started. IndexError, TypeError: so too, under
            PaddleCloud; TypeError: ``preload`` has something else than names.
        ZygoteError: ``preload`` cannot be imported, or a fork would be unsafe afterwards.
        PicklingError, AttributeError, TypeError: ``func`` or ``args`` cannot be pickled; the first line
            names what in them, ``args[1].lock: _thread.lock``, and no rank was started. Whatever else a
            ``__reduce__`` raises comes too.
        OSError: the system would not start a rank; those started before it have been ended.
    """
    start_method = options.get("start_method")
    _options_valid_check(options)
    if start_method != "fork":
        check_main_is_imported()
    if nprocs == -1:
        nprocs = _get_default_nprocs()
    grace = _grace(options)
    environs, leases = _plan(nprocs, options)
    from . import _backup, _process
    from ._ranks import Ranks
    from ._worker import Told, run, taken_away
    from .context import MultiprocessContext

    start_method, zygote = _zygote(start_method, options)
    process_class = _process.process_class(start_method)
    logs = _log_files(options, len(environs))
    environs, backup = _backup.set_aside(environs)
    sent = {"func": func, "args": args}
    with Ranks(process_class, bool(daemon), grace, sent, leases, backup, zygote) as ranks:
        for environ, log in zip(environs, logs, strict=True):
            told = Told(environ, taken_away(environ))
            ranks.start(run, (func, args, options["backend"], log), told, log)
        context = MultiprocessContext(ranks.processes, ranks.outboxes, leases, grace, ranks.key)
        while join and not context.join():
            pass
    return context


def _zygote(start_method: str | None, options: dict[str, Any]) -> tuple[str | None, Zygote | None]:
    """The start method that is used, and the zygote that it needs."""
    preload = options.get("preload")
    if start_method != "zygote":
        if preload is not None:
            raise ValueError(f"preload is for start_method='zygote', but start_method is {start_method!r}")
        return start_method, None
    from . import _preload
    from .errors import ZygoteError

    framework = str(options.get("dialect") or "paddle").partition(",")[0].strip().lower()
    modules, or_not = _preload.asked(preload, framework)
    try:
        return "zygote", _preload.zygote_of(modules)
    except ZygoteError as error:
        if not or_not:
            raise
        _log([f"{error}; each rank imports for itself"])
        return "spawn", None


def check_main_is_imported() -> None:
    """Refuses to spawn while a rank still imports its main module: a script without a main guard.

    Raises:
        RuntimeError: multiprocessing's own, which says what to write.
    """
    spawn = sys.modules.get("multiprocessing.spawn")
    if spawn is not None:
        spawn._check_not_importing_main()


def _grace(options: dict[str, Any]) -> float:
    grace = options.get("grace")
    if grace is None:
        return 10.0
    try:
        seconds = float(grace)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ValueError(f"grace must be a number of seconds, 0 or more, but got {grace!r}")
    return seconds


def _log_files(options: dict[str, Any], ranks: int) -> list[str | None]:
    folder = options.get("log_dir")
    if folder is None:
        return [None] * ranks
    folder = os.path.abspath(os.fspath(folder))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return [os.path.join(folder, f"workerlog.{i}") for i in range(ranks)]


def _options_valid_check(options: dict[str, Any]) -> None:
    """Checks the names of options; warns of deprecated ones.

    Raises:
        ValueError: an option that does not exist.
    """
    import warnings

    from . import _lib

    for key in options:
        if _lib.check_option_name(key):
            warnings.warn(
                f"The config option ({key}) of `paddle.distributed.spawn` is deprecated. "
                "Please use the latest config options stated in the `spawn` API documentation.",
                DeprecationWarning,
                stacklevel=3,
            )


def _paddle() -> ModuleType | None:
    """Paddle, if this process has imported it (to the end)."""
    paddle = sys.modules.get("paddle")
    return paddle if hasattr(paddle, "device") and hasattr(paddle, "is_compiled_with_cuda") else None


def _custom_devices(paddle: ModuleType) -> list[str]:
    """``npu:0`` and so on, as that Paddle has them."""
    return list(getattr(paddle.device, "get_available_custom_device", list)() or ())


def _current_device() -> str:
    """``cpu``, ``gpu:0``, ``npu:0``, ...: what Paddle says if it is imported, else what the machine has."""
    from . import _lib

    paddle = _paddle()
    if paddle is not None:
        return str(paddle.device.get_device())
    kind, count = _lib.devices_seen(dict(os.environ))
    return f"{kind}:0" if count > 0 else "cpu"


def _is_custom(device: str) -> bool:
    paddle = _paddle()
    if paddle is None:
        return device.partition(":")[0] not in ("gpu", "xpu", "cpu")
    return device in _custom_devices(paddle)


def _unsupported(device: str) -> RuntimeError:
    return RuntimeError(
        f"`paddle.distributed.spawn` does not support parallel training on device `{device}` now."
    )


def _get_default_nprocs() -> int:
    """How many ranks -1 means: the devices of the current kind, or the CPUs."""
    from . import _lib

    device, paddle = _current_device(), _paddle()
    if paddle is None:
        return _lib.devices_seen(dict(os.environ))[1] or os.cpu_count() or 1
    if _is_custom(device):
        return _custom_count(paddle, device.partition(":")[0])
    if "gpu" in device:
        return int(paddle.device.cuda.device_count())
    if "xpu" in device:
        return int(paddle.device.xpu.device_count())
    if "cpu" in device:
        return os.cpu_count() or 1
    raise _unsupported(device)


def _custom_count(paddle: ModuleType, kind: str) -> int:
    return int(paddle.base.core.get_custom_device_count(kind))


def _get_default_backend() -> str:
    device = _current_device()
    if _is_custom(device):
        return "xccl"
    for kind, backend in (("gpu", "nccl"), ("xpu", "bkcl"), ("cpu", "gloo")):
        if kind in device:
            return backend
    raise _unsupported(device)


def _check_compiled(backend: str) -> None:
    """Refuses a backend that the imported Paddle was built without."""
    paddle = _paddle()
    if paddle is None:
        return
    for name, kind in (("nccl", "cuda"), ("bkcl", "xpu"), ("flagcx", "flagcx")):
        if backend == name and not _is_compiled_with(paddle, kind):
            raise ValueError(
                "paddle.distributed initialize error, your paddle is not compiled with "
                f"{kind} but you assign '{name}' as backend."
            )


def _is_compiled_with(paddle: ModuleType, kind: str) -> bool:
    name = f"is_compiled_with_{kind}"
    core = getattr(getattr(paddle, "base", None), "core", None)
    return bool(getattr(paddle, name, getattr(core, name, lambda: False))())


def _get_subprocess_env_list(nprocs: int, options: dict[str, Any]) -> list[dict[str, str]]:
    """What each of ``nprocs`` ranks is told; sets ``options["backend"]`` to the one that is used.

    Raises:
        ValueError, RuntimeError, AssertionError, IndexError, TypeError: see ``spawn``.
    """
    return _plan(nprocs, options)[0]


def _plan(nprocs: int, options: dict[str, Any]) -> tuple[list[dict[str, str]], _lib.PortLeases]:
    from . import _lib

    backend = options.get("backend", "auto")
    if backend == "auto":
        backend = options["backend"] = _get_default_backend()
    _lib.check_backend(str(backend))
    _check_compiled(backend)
    if backend == "gloo":
        import warnings

        warnings.warn(
            "Your model will be trained under CPUONLY mode by using GLOO,"
            "because CPUPlace is specified manually or your installed PaddlePaddle only support CPU Device.",
            stacklevel=3,
        )
    wanted = {key: value for key, value in options.items() if key not in _unused_by(backend)}
    _only_text(wanted)
    devices, custom = _asked_of_paddle(backend)
    here = _own_addresses() if backend != "gloo" and _needs_own_address(wanted) else []
    rows, leases, node_ip, said = _lib.plan_spawn(nprocs, wanted, dict(os.environ), devices, custom, here)
    _log(said)
    environs = [dict(row) for row in rows]
    if options.get("print_config"):
        _print_config(options, backend, environs, node_ip)
    return environs, leases


def _needs_own_address(options: dict[str, Any]) -> bool:
    """Whether there are several nodes, and it is not said which of them this is."""
    ips = options.get("ips") or options.get("cluster_node_ips") or ""
    return "," in ips and options.get("node_ip") is None


def _own_addresses() -> list[str]:
    """The address of this machine's name (the name, if it has none), then those of its interfaces."""
    import socket

    from . import _lib

    name = socket.gethostname()
    try:
        by_name = socket.gethostbyname(name)
    except (OSError, UnicodeError):
        by_name = name
    return [by_name, *_lib.addresses()]


def _log(warnings: list[str]) -> None:
    """Logs what Paddle logs too: on stderr, unless the program has set up something else."""
    if warnings:
        import logging

        for text in warnings:
            logging.getLogger("rlaunch").warning("%s", text)


def _asked_of_paddle(backend: str) -> tuple[int, str | None]:
    """How many devices of a backend's kind Paddle has, -1 if not asked, and its first custom type."""
    paddle = _paddle()
    if paddle is None or backend not in ("nccl", "bkcl", "xccl"):
        return -1, None
    if backend != "xccl":
        own = paddle.device.cuda if backend == "nccl" else paddle.device.xpu
        return int(own.device_count()), None
    kinds = paddle.device.get_all_custom_device_type() or [None]
    return (_custom_count(paddle, kinds[0]) if kinds[0] else 0), kinds[0]


def _only_text(options: dict[str, Any]) -> None:
    """Refuses lists where texts are wanted, with the AttributeError that the contract has."""
    if options.get("backend") == "gloo" and options.get("use_paddlecloud") is not None:
        # Refused for that, before anything else is looked at.
        options.update(ips=None, cluster_node_ips=None)
    for keys in (("gpus", "xpus", "selected_devices"), ("ips", "cluster_node_ips")):
        used = next((options[key] for key in keys if options.get(key) is not None), None)
        if used is not None:
            used.split  # noqa: B018
        # What an option of more weight hides is not looked at.
        for key in keys:
            if options.get(key) is not used:
                options[key] = None


def _unused_by(backend: str) -> tuple[str, ...]:
    """Options that a backend does not look at."""
    return {
        "gloo": ("gpus", "xpus", "selected_devices", "started_port", "node_ip"),
        "nccl": ("xpus",),
        "bkcl": ("gpus",),
        "xccl": ("gpus", "xpus", "selected_devices"),
    }.get(backend, ())


def _print_config(
    options: dict[str, Any], backend: str, environs: list[dict[str, str]], address: str
) -> None:
    def first(*keys: str) -> Any:
        return next((options[key] for key in keys if options.get(key) is not None), None)

    ips = first("ips", "cluster_node_ips")
    ips = "127.0.0.1" if ips is None else ips
    node_ip, cloud = options.get("node_ip"), options.get("use_paddlecloud")
    if node_ip is None:
        node_ip = address if "," in ips else ips.strip()
    config = {
        "cluster_node_ips": ips,
        "node_ip": node_ip,
        "print_config": options["print_config"],
        "selected_devices": None,
        "started_port": options.get("started_port"),
        "use_paddlecloud": all(name in os.environ for name in _PADDLECLOUD) if cloud is None else cloud,
    }
    if backend == "gloo":
        config |= {"ips": ips, "paddle_cpuonly": True}
    else:
        ranks = len(environs)
        # The first variable of a rank is FLAGS_selected_npus, or another type's.
        flag = next(iter(environs[0])) if environs else ""
        name = {"nccl": "CUDA_VISIBLE_DEVICES", "bkcl": "XPU_VISIBLE_DEVICES"}.get(backend, flag)
        visible = os.environ.get(name) or ",".join(map(str, range(ranks)))
        own = {"nccl": "gpus", "bkcl": "xpus"}.get(backend)
        chosen = None if own is None else first(own, "selected_devices")
        config["selected_devices"] = ",".join(visible.split(",")[:ranks]) if chosen is None else chosen
    print("-----------  Configuration Arguments -----------")
    for key in sorted(config):
        print(f"{key}: {config[key]}")
    print("-" * 48)


_PADDLECLOUD = ("PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM")
