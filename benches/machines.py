"""The hosts and servers of the tests, for sections that need them."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
SUPPORT = TESTS / "python" / "support"
# First: a client of etcd has the name of a module of the tests.
FOLDERS = [SUPPORT, SUPPORT / "machines", TESTS / "python" / "elastic", TESTS / "chaos"]
sys.path[:0] = map(str, FOLDERS)

from chaos_world import Node, cgroup, missing  # noqa: E402
from elastic_jobs import STAR  # noqa: E402
from etcd import Etcd, EtcdCluster  # noqa: E402
from hosts import Host, hosts  # noqa: E402
from multi_host import onto  # noqa: E402

__all__ = ["STAR", "Etcd", "EtcdCluster", "Host", "Node", "cgroup", "hosts", "missing", "onto"]
