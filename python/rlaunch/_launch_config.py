"""``rlaunch.torch.LaunchConfig``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LaunchConfig:
    """How ``elastic_launch`` runs its ranks. Contract: ``LaunchConfig`` of torch 2.15.

    Names, order and defaults are torch's, and differ from the command line's. Durations are in seconds.

    Attributes:
        rdzv_timeout: an older way to say ``rdzv_configs["timeout"]``, which it then sets; -1: not said, and
            that is 900 unless it is there.
        shutdown_timeout: None: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30 where that is not set.
        logs_specs, numa_options: None: nothing is redirected, no rank is bound. Torch makes objects of its
            own classes here, for which it has to be imported.

    Raises:
        ValueError: ``shutdown_timeout`` is negative, or no whole number where it comes from the variable.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None

    def __post_init__(self) -> None:
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        else:
            self.rdzv_configs.setdefault("timeout", 900)
        if self.shutdown_timeout is None:
            self.shutdown_timeout = int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
        elif self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout must be non-negative, got {self.shutdown_timeout}")
