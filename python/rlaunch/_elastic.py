"""What ``rlaunch.run.run`` and ``rlaunch.torch.elastic_launch`` share: the launcher, torch's exceptions."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import TORCH_ERRORS, WorkerError, peer_class
from .launch import _report, _run

if TYPE_CHECKING:
    from ._failures import ChildFailedError
    from ._launch_config import LaunchConfig
    from .report import Report


def launched(words: Iterable[str], name: str) -> Report:
    """Runs ``python -m rlaunch.run`` with these words, which say all: PET_ variables do not count.

    ``name`` is what the ranks run, for people.

    Raises:
        ChildFailedError: a rank failed.
        WorkerError: a signal stopped the job, or the loss of node 0's store did.
        LaunchError: the launcher could not do what was asked.
    """
    argv = [os.fsencode(word) for word in [sys.executable, "-m", "rlaunch.run", *words]]
    try:
        return _report(*_run(argv, {**os.environ, "RLAUNCH_RUN_SPELT_OUT": "1", "RLAUNCH_TITLE": name}, None))
    except WorkerError as error:
        failed = _failed(error.report, name)
        if failed is None:
            raise
        raise failed from None


def _failed(report: Report, name: str) -> ChildFailedError | None:
    """The exception for ranks that failed of themselves; None if none did.

    The culprit is among them though it was stopped: one that has recorded its error may take long to end.
    """
    from ._failures import ChildFailedError, ProcessFailure

    failures = {}
    for rank in report.ranks:
        if rank.exitcode is not None and (rank.status == "failed" or rank.rank == report.culprit):
            folder = os.path.join(report.log_dir, f"attempt_{rank.attempt}", str(rank.local_rank))
            error_file = os.path.join(folder, "error.json")
            failures[rank.rank] = ProcessFailure(rank.local_rank, rank.pid or 0, rank.exitcode, error_file)
    if report.culprit not in failures:
        return None
    return peer_class(ChildFailedError, TORCH_ERRORS)(name, failures, report.culprit)


def elastic(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: Sequence[Any]
) -> dict[int, Any]:
    """Runs a function or a program on ranks; what each of this machine has returned, by its global number."""
    words = _words(config, config.run_id or str(uuid.uuid4().int))
    name = name_of(entrypoint, args)
    if isinstance(entrypoint, str):
        report = launched([*words, "--no-python", "--", entrypoint, *map(str, args)], name)
        return {rank.rank: None for rank in report.ranks}
    from . import _entry

    with tempfile.TemporaryDirectory(prefix="rlaunch-") as folder:
        payload, results = os.path.join(folder, "payload"), os.path.join(folder, "results")
        os.mkdir(results)
        _entry.dump(entrypoint, args, payload)
        # The launcher puts ${local_rank} into arguments, and $ for $$.
        told = [path.replace("$", "$$") for path in (payload, results)]
        report = launched([*words, "--module", "--", "rlaunch._entry", *told], name)
        return _entry.results(results, [rank.rank for rank in report.ranks])


def name_of(entrypoint: Callable[..., Any] | str, args: Sequence[Any]) -> str:
    """What the ranks run, for people. Contract: ``_get_entrypoint_name`` of torch 2.15's launcher."""
    if not isinstance(entrypoint, str):
        return getattr(entrypoint, "__name__", type(entrypoint).__name__)
    if entrypoint != sys.executable:
        return entrypoint
    return next((arg for arg in map(str, args) if not arg.startswith("-")), "")


def _words(config: LaunchConfig, run_id: str) -> list[str]:
    """The command line that asks for the same."""
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
        "duplicate-stdout-filters": _list(config.duplicate_stdout_filters),
        "duplicate-stderr-filters": _list(config.duplicate_stderr_filters),
        **_of_logs(config.logs_specs),
        **_of_numa(config.numa_options),
    }
    words = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return [*words, "--virtual-local-rank"] if config.virtual_local_rank else words


def _list(texts: Iterable[str] | None) -> str | None:
    return None if texts is None else ",".join(text.replace(",", ",,") for text in texts)


_OF_LOGS = ("root_log_dir", "_redirects", "_tee", "_local_ranks_filter")
_LAYOUT = "DefaultLogsSpecs.reify"


def _of_logs(specs: Any) -> dict[str, Any]:
    """What torch's ``DefaultLogsSpecs`` says; any object with its attributes will do.

    Raises:
        TypeError: it lacks one, or lays files out in its own way.
    """
    if specs is None:
        return {}
    reify = getattr(specs, "reify", None)
    own_layout = getattr(reify, "__qualname__", _LAYOUT) != _LAYOUT
    lacking = [name for name in _OF_LOGS if not hasattr(specs, name)]
    if own_layout or lacking:
        why = f"has no {', '.join(lacking)}" if lacking else "lays files out in its own way"
        raise TypeError(
            f"logs_specs: {type(specs).__qualname__} {why}; rlaunch accepts None, torch's DefaultLogsSpecs, "
            f"and objects with its attributes {', '.join(_OF_LOGS)}"
        )
    shown = specs._local_ranks_filter
    return {
        "log-dir": specs.root_log_dir,
        "redirects": _streams(specs._redirects),
        "tee": _streams(specs._tee),
        "local-ranks-filter": ",".join(map(str, sorted(shown))) if shown else None,
    }


def _streams(value: Any) -> str | None:
    if isinstance(value, dict):
        return ",".join(f"{rank}:{int(bits)}" for rank, bits in value.items()) or None
    return None if value is None else str(int(value))


def _of_numa(options: Any) -> dict[str, Any]:
    """What torch's ``NumaOptions`` says."""
    mode = getattr(options, "affinity_mode", None)
    return {} if mode is None else {"numa-binding": getattr(mode, "value", mode)}
