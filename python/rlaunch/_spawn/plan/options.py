"""The options of ``rlaunch.spawn``. Contract: ``paddle.distributed.spawn`` of 3.3.1."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from ... import _lib


class SpawnOptions(TypedDict, total=False):
    """The keyword options of ``rlaunch.spawn``. None means the default.

    Attributes:
        start_method: How ranks start; "zygote": forked off a process with the modules of ``preload``.
            Default "spawn".
        backend: How ranks communicate. Default "auto": nccl on GPUs, bkcl on XPUs, xccl on others, else
            gloo.
        gpus: Comma-separated indices of the GPUs, one for each rank. Default: the first ``nprocs`` visible
            ones.
        xpus: Comma-separated indices of the XPUs, one for each rank. Default: the first ``nprocs`` visible
            ones.
        ips: Comma-separated addresses of the nodes, IPv6 bare or in brackets. Default "127.0.0.1".
        print_config: Whether to print the options that are in effect. Default False.
        grace_period: Seconds between SIGTERM and SIGKILL when ranks have to end (minimum 0). Default 10.
        log_dir: Folder in which rank i writes its stdout and stderr to ``workerlog.i``. Default: not
            redirected.
        frameworks: Comma-separated frameworks ("paddle", "torch", "jax") whose variables are set. Default
            "paddle".
        preload: Modules that the zygote imports, comma-separated; with "auto" ranks start without one if
            need be.
        selected_devices: Deprecated: older name of ``gpus`` and ``xpus``.
        cluster_node_ips: Deprecated: older name of ``ips``.
        node_ip: Deprecated: which of ``ips`` is this node. Default: the address that this machine has.
        started_port: Deprecated: port of each node's first rank, 1 to 65535. Default: 6070 on several
            nodes, else free.
        use_paddlecloud: Deprecated: whether PaddleCloud's variables set nodes and ports. Default: whether
            they are set.
    """

    start_method: Literal["spawn", "fork", "forkserver", "zygote"] | None
    backend: Literal["auto", "gloo", "nccl", "bkcl", "xccl"]
    gpus: str | None
    xpus: str | None
    ips: str | None
    print_config: bool
    grace_period: float | str | None
    log_dir: str | os.PathLike[str] | None
    frameworks: str | None
    preload: str | Sequence[str] | None
    selected_devices: str | None
    cluster_node_ips: str | None
    node_ip: str | None
    started_port: int | None
    use_paddlecloud: bool | None


def check_option_names(options: dict[str, Any]) -> None:
    """Checks the names of options, and warns of deprecated ones. Paddle: ``_options_valid_check``.

    Raises:
        ValueError: an option does not exist.
    """
    for key in options:
        if _check_name(key):
            warnings.warn(
                f"The config option ({key}) of `paddle.distributed.spawn` is deprecated. "
                "Please use the latest config options stated in the `spawn` API documentation.",
                DeprecationWarning,
                stacklevel=3,
            )


def _check_name(name: str) -> bool:
    """Returns whether Paddle has deprecated this option.

    Raises:
        ValueError: it does not exist.
    """
    try:
        return _lib.check_option_name(name)
    except ValueError as error:
        import difflib

        near = difflib.get_close_matches(name, [*SpawnOptions.__annotations__, "nprocs"], 1, 0.8)
        if not near:
            raise
        raise ValueError(f"{error} Did you mean {near[0]}?") from None


def read_grace_period(options: dict[str, Any]) -> float:
    """Returns the option ``grace_period`` in seconds.

    Raises:
        ValueError: it is no number of seconds.
    """
    grace_period = options.get("grace_period")
    if grace_period is None:
        return 10.0
    try:
        seconds = float(grace_period)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ValueError(f"grace_period must be a number of seconds, 0 or more, but got {grace_period!r}")
    return seconds


def list_log_files(options: dict[str, Any], ranks: int) -> list[str | None]:
    """Returns the log file of each rank, and creates ``log_dir``; None for each rank without ``log_dir``.

    Raises:
        OSError: the folder cannot be created.
    """
    folder = options.get("log_dir")
    if folder is None:
        return [None] * ranks
    folder = os.path.abspath(os.fspath(folder))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return [os.path.join(folder, f"workerlog.{i}") for i in range(ranks)]


def check_texts(options: dict[str, Any]) -> None:
    """Fails as Paddle does for a list in place of a text; sets options without effect to None.

    Raises:
        AttributeError: the option in effect is no text.
    """
    if options.get("backend") == "gloo" and options.get("use_paddlecloud") is not None:
        # The plan refuses this combination first, whatever the other options are.
        options.update(ips=None, cluster_node_ips=None)
    for keys in (("gpus", "xpus", "selected_devices"), ("ips", "cluster_node_ips")):
        used = next((options[key] for key in keys if options.get(key) is not None), None)
        if used is not None:
            used.split  # noqa: B018
        for key in keys:
            if options.get(key) is not used:
                options[key] = None


def unused_options(backend: str) -> tuple[str, ...]:
    """Returns the options that have no effect with a backend."""
    return {
        "gloo": ("gpus", "xpus", "selected_devices", "started_port", "node_ip"),
        "nccl": ("xpus",),
        "bkcl": ("gpus",),
        "xccl": ("gpus", "xpus", "selected_devices"),
    }.get(backend, ())
