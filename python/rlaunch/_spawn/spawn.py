"""``rlaunch.spawn``: runs a function on several ranks. Contract: ``paddle.distributed.spawn`` of 3.3.1."""

from __future__ import annotations

TYPE_CHECKING = False  # typing is imported only when a rank starts.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from typing_extensions import Unpack

    from .._preload.client import Zygote
    from .context import MultiprocessContext
    from .plan.options import SpawnOptions

# pytest shows the caller's frames alone. IPython reads the name in each frame.
__tracebackhide__ = True


def spawn(
    func: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = -1,
    join: bool = True,
    daemon: bool = False,
    **options: Unpack[SpawnOptions],
) -> MultiprocessContext:
    """Runs ``func(*args)`` in ``nprocs`` processes, each with the variables of its rank.

    Args:
        func: what each rank runs. With every start method but ``fork`` it is pickled: by name if it is
            defined at the top level of a module that ranks can import, otherwise by value. A lambda, a
            closure, and a function of a notebook or a prompt are sent by value, which needs cloudpickle.
        args: its arguments; pickled likewise.
        nprocs: number of ranks. -1: one for each device, or for each CPU on a machine without devices.
            0 and numbers below -1: none, with a warning.
        join: whether to wait until all ranks have ended.
        daemon: whether the ranks are daemonic processes, which end when this program ends.
        **options: see ``SpawnOptions``, which documents each.

    Several nodes: start the program once on each node, with the same ``ips``, ``nprocs`` and ``frameworks``,
    and a backend other than ``gloo``. Each node starts ``nprocs`` ranks, numbered node after node in the
    order of ``ips``. The nodes do not communicate before the ranks do. On several nodes rank 0 listens for
    torch on the port after those of the first node's ranks, and for jax on the next one.

    PaddleCloud: if PADDLE_TRAINERS, POD_IP, PADDLE_TRAINER_ID and TRAINER_PORTS_NUM are set and
    PADDLE_TRAINERS_NUM is more than 1, the platform's variables set the nodes and ports:
    DISTRIBUTED_TRAINER_ENDPOINTS, else PADDLE_PORT, else ``started_port``, else 6170.

    Preloading: with ``start_method="zygote"`` one process imports the modules of ``preload`` (default: the
    first one of ``frameworks``), and ranks of this and later calls are forked off it. It keeps the memory
    of its imports until this program ends or ``end_zygotes`` is called. A new one starts if something that
    it inherited has changed: variables that imports read (OMP_NUM_THREADS, PYTHONPATH, ...), limits, CPUs,
    ignored signals and the like.

    Returns:
        The context, also with ``join``. ``context.results()`` is the list of return values,
        ``context.return_queues[i].get()`` the return value of rank i.

    Raises:
        RankError: a rank failed (only with ``join``).
        ValueError, RuntimeError, AssertionError: an option is invalid; the texts are Paddle's. No rank was
            started. Under PaddleCloud also IndexError and TypeError.
        TypeError: ``func`` is no function, ``args`` no tuple, ``nprocs`` no integer, or ``preload`` contains
            something other than names.
        ZygoteError: a module of ``preload`` cannot be imported, or a fork would be unsafe afterwards.
        PicklingError, AttributeError, TypeError: ``func`` or ``args`` cannot be pickled. The first line names
            the culprit: ``args[1].lock: _thread.lock``. No rank was started. An exception of an object's
            own ``__reduce__`` passes through.
        OSError: the system cannot start a rank. The ranks that were started before it have been ended.
    """
    __tracebackhide__ = True
    from .plan.options import check_option_names, list_log_files, read_grace_period

    # A plain dictionary: the plan replaces "auto" by the backend in effect.
    settings: dict[str, Any] = {**options}
    check_option_names(settings)
    start_method = settings.get("start_method")
    if start_method != "fork":
        from .main_guard import check_main_guard

        check_main_guard()
    if nprocs == -1:
        from .plan.paddle_devices import default_nprocs

        nprocs = default_nprocs()
    grace = read_grace_period(settings)
    from .plan.ranks import check_call, plan_ranks

    check_call(func, args, nprocs)
    environs, leases = plan_ranks(nprocs, settings)
    from .context import MultiprocessContext
    from .plan.env_overflow import move_long_endpoints, vars_to_unset
    from .start.rank_starter import RankStarter
    from .start.start_methods import process_class
    from .worker import EnvDelta, run_rank

    start_method, zygote = _prepare_zygote(start_method, settings)
    rank_class = process_class(start_method)
    logs = list_log_files(settings, len(environs))
    environs, overflow = move_long_endpoints(environs)
    user_arguments = {"func": func, "args": args}
    with RankStarter(rank_class, bool(daemon), grace, user_arguments, leases, overflow, zygote) as starter:
        for environ, log in zip(environs, logs, strict=True):
            env_delta = EnvDelta(environ, vars_to_unset(environ))
            starter.start(run_rank, (settings["backend"], log), env_delta, log)
        context = MultiprocessContext(starter.processes, starter.result_slots, leases, grace, starter.key)
        starter.is_over = context.is_over
        while join and not context.join():
            pass
    return context


def _prepare_zygote(start_method: str | None, settings: dict[str, Any]) -> tuple[str | None, Zygote | None]:
    """Returns the start method in effect, and the zygote if it needs one."""
    preload = settings.get("preload")
    if start_method != "zygote":
        if preload is not None:
            raise ValueError(f"preload is for start_method='zygote', but start_method is {start_method!r}")
        return start_method, None
    from .._preload.registry import get_zygote, parse_preload
    from ..errors import ZygoteError
    from .plan.ranks import log_warnings

    framework = str(settings.get("frameworks") or "paddle").partition(",")[0].strip().lower()
    modules, is_optional = parse_preload(preload, framework)
    try:
        return "zygote", get_zygote(modules)
    except ZygoteError as error:
        if not is_optional:
            raise
        log_warnings([f"{error}; each rank imports for itself"])
        return "spawn", None
