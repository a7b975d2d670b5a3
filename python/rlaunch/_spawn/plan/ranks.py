"""Plans the ranks of one ``rlaunch.spawn``: the variables of each, and leases of their ports."""

from __future__ import annotations

import operator
import os
import reprlib
import sys
import warnings
from typing import Any

from ... import _lib
from .options import check_texts, unused_options
from .paddle_devices import ask_paddle, check_compiled, default_backend


def get_environs(nprocs: int, options: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the variables of each of ``nprocs`` ranks. Paddle: ``_get_subprocess_env_list``.

    Sets ``options["backend"]`` to the backend in effect.

    Raises:
        ValueError, RuntimeError, AssertionError, IndexError, TypeError: see ``spawn``.
    """
    return plan_ranks(nprocs, options)[0]


def plan_ranks(nprocs: int, options: dict[str, Any]) -> tuple[list[dict[str, str]], _lib.PortLeases]:
    """Like ``get_environs``; returns the leases of the ranks' ports too."""
    backend = options.get("backend", "auto")
    if backend == "auto":
        backend = options["backend"] = default_backend()
    _lib.check_backend(str(backend))
    check_compiled(backend)
    if backend == "gloo" and _uses_paddle(options.get("frameworks")):
        warnings.warn(
            "Your model will be trained under CPUONLY mode by using GLOO,"
            "because CPUPlace is specified manually or your installed PaddlePaddle only support CPU Device.",
            stacklevel=3,
        )
    effective = {key: value for key, value in options.items() if key not in unused_options(backend)}
    check_texts(effective)
    devices, custom = ask_paddle(backend)
    own = _list_own_addresses() if backend != "gloo" and _needs_own_address(effective) else []
    rows, leases, node_ip, messages = _lib.plan_spawn(
        nprocs, effective, dict(os.environ), devices, custom, own
    )
    log_warnings(messages)
    environs = [dict(row) for row in rows]
    if options.get("print_config"):
        _print_config(options, backend, environs, node_ip)
    return environs, leases


def check_call(func: Any, args: Any, nprocs: Any) -> None:
    """Checks what the ranks will call, before any starts. Warns if none will.

    Raises:
        TypeError: ``func`` cannot be called, ``args`` cannot be iterated, or ``nprocs`` is no integer.
    """
    if not callable(func):
        kind = type(func).__name__
        raise TypeError(
            f"func must be a function, but got {reprlib.repr(func)} of type {kind}; "
            "give its name without quotes and ()"
        )
    try:
        iter(args)
    except TypeError:
        kind, shown = type(args).__name__, reprlib.repr(args)
        example = "()" if args is None else f"({shown},)"
        raise TypeError(f"args must be a tuple, but got {shown} of type {kind}; give {example}") from None
    try:
        operator.index(nprocs)
    except TypeError as error:
        raise TypeError(f"nprocs={nprocs!r}: {error}; give a number, such as nprocs=2") from None
    if nprocs < 1:
        log_warnings([f"nprocs={nprocs} starts no rank; give 1 or more, or -1 for one on each device"])


def _uses_paddle(frameworks: str | None) -> bool:
    """Returns whether the ranks are Paddle's: by the option, or because this program has imported Paddle."""
    if frameworks is None:
        return "paddle" in sys.modules
    return "paddle" in str(frameworks).lower()


def _needs_own_address(options: dict[str, Any]) -> bool:
    """Returns whether there are several nodes and no option says which of them is this one."""
    ips = options.get("ips") or options.get("cluster_node_ips") or ""
    return "," in ips and options.get("node_ip") is None


def _list_own_addresses() -> list[str]:
    """Lists the address of the host name (the name itself if it has none) and those of the interfaces."""
    import socket

    name = socket.gethostname()
    try:
        by_name = socket.gethostbyname(name)
    except (OSError, UnicodeError):
        by_name = name
    return [by_name, *_lib.addresses()]


def log_warnings(messages: list[str]) -> None:
    """Logs warnings to the logger ``rlaunch``: to stderr, unless the program has configured logging."""
    if messages:
        import logging

        for text in messages:
            logging.getLogger("rlaunch").warning("%s", text)


def _print_config(
    options: dict[str, Any], backend: str, environs: list[dict[str, str]], address: str
) -> None:
    """Prints the options in effect, in Paddle's format."""

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
        # With a custom device the first variable of a rank is FLAGS_selected_npus, or another kind's.
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
