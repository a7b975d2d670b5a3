"""The etcd servers that other tests use do what those rely on."""

from __future__ import annotations

from pathlib import Path

import pytest
from etcd import Certificates, Etcd, EtcdCluster


def test_written_keys_outlive_a_restart_and_a_pause(tmp_path: Path) -> None:
    with Etcd(tmp_path) as etcd:
        etcd.control("put", "/a/b", "c")
        etcd.restart()
        with etcd.paused(), pytest.raises(AssertionError, match="endpoint health"):
            etcd.control("--command-timeout=1s", "endpoint", "health")
        etcd.until_healthy()
        assert etcd.keys() == ["/a/b"]


def test_certificates_and_users_are_asked_for(tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path / "certificates")
    with Etcd(tmp_path / "etcd", certificates=certificates, client_auth=True) as etcd:
        etcd.ask_for_users("some", "word")
        etcd.user = "some:word"
        etcd.control("put", "/rlaunch/x", "y")
        with pytest.raises(AssertionError, match="permission denied"):
            etcd.control("put", "/other", "y")
        etcd.user = "some:wrong"
        with pytest.raises(AssertionError, match="invalid user ID or password"):
            etcd.keys()
        etcd.certificates = Certificates.make(tmp_path / "others")
        with pytest.raises(AssertionError):
            etcd.keys()


def test_a_cluster_changes_its_leader(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        before = cluster.leader()
        assert cluster.move_leader() is cluster.leader() is not before
