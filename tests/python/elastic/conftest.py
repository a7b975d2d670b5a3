"""Hosts, and an etcd on another one, for the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from etcd import Etcd
from multi_host import MultiHost, multi_host


@pytest.fixture(scope="module")
def made() -> Iterator[MultiHost]:
    with multi_host(2) as made:
        yield made


@pytest.fixture(scope="module")
def etcd(made: MultiHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with made.etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd
