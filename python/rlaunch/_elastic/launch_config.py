"""``rlaunch.torch.LaunchConfig``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LaunchConfig:
    """Configures ``elastic_launch``. Contract: ``LaunchConfig`` of torch 2.15.

    Names, order and defaults are torch's; the defaults differ from those of the command line. Durations are
    in seconds.

    Attributes:
        rdzv_timeout: older name of ``rdzv_configs["timeout"]``, which it sets. -1: that is 900 unless set.
        shutdown_timeout: None: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30.
        logs_specs, numa_options: torch's objects, or None: no output is redirected, no rank is bound.
            Unlike torch's class, this one does not create such objects, for which torch has to be imported.

    Raises:
        ValueError: ``shutdown_timeout`` is negative, or the variable is no whole number.
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
