"""``rlaunch.torch.elastic_launch``: a function or a program on ranks that the launcher starts."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import function_worker
from .launcher_job import get_entrypoint_name, run_job

if TYPE_CHECKING:
    from .launch_config import LaunchConfig

# pytest shows the caller's frames alone. IPython reads the name in each frame.
__tracebackhide__ = True


def run_elastic(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: Sequence[Any]
) -> dict[int, Any]:
    """Runs a function or a program on ranks; returns what each rank of this node returned, by global rank."""
    __tracebackhide__ = True
    command = build_options(config, config.run_id or str(uuid.uuid4().int))
    name = get_entrypoint_name(entrypoint, args)
    if isinstance(entrypoint, str):
        report = run_job([*command, "--no-python", "--", entrypoint, *map(str, args)], name)
        return {rank.rank: None for rank in report.ranks}
    with tempfile.TemporaryDirectory(prefix="rlaunch-") as folder:
        payload, results = os.path.join(folder, "payload"), os.path.join(folder, "results")
        os.mkdir(results)
        function_worker.dump_call(entrypoint, args, payload)
        # The launcher expands macros such as ${local_rank} in arguments, and $$ to $.
        paths = [path.replace("$", "$$") for path in (payload, results)]
        report = run_job([*command, "--module", "--", function_worker.__name__, *paths], name)
        return function_worker.load_results(results, [rank.rank for rank in report.ranks])


def refuse_health_checks(server: Any) -> None:
    """Raises a TypeError if there is a health check server."""
    if server is not None:
        raise TypeError("health_check_server: rlaunch has no health checks; leave it out, or give None")


def build_options(config: LaunchConfig, run_id: str) -> list[str]:
    """Returns the options of ``python -m rlaunch.run`` for a config."""
    conf = dict(config.rdzv_configs)
    node_rank = conf.pop("rank", None) if config.rdzv_backend == "static" else None
    values: dict[str, Any] = {
        "nnodes": f"{config.min_nodes}:{config.max_nodes}",
        "nproc-per-node": config.nproc_per_node,
        "rdzv-backend": config.rdzv_backend,
        "rdzv-endpoint": config.rdzv_endpoint,
        "rdzv-id": run_id,
        "rdzv-conf": ",".join(f"{key}={value}" for key, value in conf.items()),
        "node-rank": node_rank,
        "max-restarts": config.max_restarts,
        "monitor-interval": config.monitor_interval,
        "start-method": config.start_method,
        "role": config.role,
        "local-addr": config.local_addr,
        "event-log-handler": config.event_log_handler,
        "signals-to-handle": config.signals_to_handle,
        "shutdown-timeout": config.shutdown_timeout,
        "log-line-prefix-template": config.log_line_prefix_template,
        "duplicate-stdout-filters": _join(config.duplicate_stdout_filters),
        "duplicate-stderr-filters": _join(config.duplicate_stderr_filters),
        **_read_logs_specs(config.logs_specs),
        **_read_numa_options(config.numa_options),
    }
    options = [f"--{name}={value}" for name, value in values.items() if value is not None]
    # torchrun, not its elastic_launch, sets OMP_NUM_THREADS to 1.
    options.append("--share-cpus")
    return [*options, "--virtual-local-rank"] if config.virtual_local_rank else options


def _join(texts: Iterable[str] | None) -> str | None:
    return None if texts is None else ",".join(text.replace(",", ",,") for text in texts)


_LOGS_ATTRIBUTES = ("root_log_dir", "_redirects", "_tee", "_local_ranks_filter")
_TORCHS_LAYOUT = "DefaultLogsSpecs.reify"


def _read_logs_specs(specs: Any) -> dict[str, Any]:
    """Returns the options for torch's ``DefaultLogsSpecs``, or an object with the same attributes.

    Raises:
        TypeError: it lacks an attribute, or has its own layout of files.
    """
    if specs is None:
        return {}
    reify = getattr(specs, "reify", None)
    own_layout = getattr(reify, "__qualname__", _TORCHS_LAYOUT) != _TORCHS_LAYOUT
    lacking = [name for name in _LOGS_ATTRIBUTES if not hasattr(specs, name)]
    if own_layout or lacking:
        why = f"has no {', '.join(lacking)}" if lacking else "lays files out in its own way"
        raise TypeError(
            f"logs_specs: {type(specs).__qualname__} {why}; rlaunch accepts None, torch's DefaultLogsSpecs, "
            f"and objects with its attributes {', '.join(_LOGS_ATTRIBUTES)}"
        )
    shown = specs._local_ranks_filter
    return {
        "log-dir": specs.root_log_dir,
        "redirects": _format_streams(specs._redirects),
        "tee": _format_streams(specs._tee),
        "local-ranks-filter": ",".join(map(str, sorted(shown))) if shown else None,
    }


def _format_streams(value: Any) -> str | None:
    if isinstance(value, dict):
        return ",".join(f"{rank}:{int(bits)}" for rank, bits in value.items()) or None
    return None if value is None else str(int(value))


def _read_numa_options(options: Any) -> dict[str, Any]:
    """Returns the options for torch's ``NumaOptions``."""
    mode = getattr(options, "affinity_mode", None)
    return {} if mode is None else {"numa-binding": getattr(mode, "value", mode)}
