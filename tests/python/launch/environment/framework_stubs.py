"""Input of the tests of rlaunch.env: environments, and stubs of the frameworks."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator
from unittest import mock

import pytest


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Exactly these variables, nothing inherited."""
    with mock.patch.dict(os.environ, variables, clear=True):
        yield


def torch_rank(rank: int = 3, **more: str) -> dict[str, str]:
    """The variables that torchrun gives to one rank of 2 nodes with 2 each."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "LOCAL_RANK": str(rank % 2),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "40819",
        **more,
    }


def stub_paddle(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """A ``paddle.distributed`` in sys.modules."""
    package, distributed = types.ModuleType("paddle"), mock.Mock(spec=["init_parallel_env"])
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "paddle", package)
    monkeypatch.setitem(sys.modules, "paddle.distributed", distributed)
    return distributed


def stub_torch(monkeypatch: pytest.MonkeyPatch, devices: int = 0, nccl: bool = True) -> mock.Mock:
    """A ``torch.distributed`` in sys.modules, whose ``cuda`` is torch's."""
    package, distributed = types.ModuleType("torch"), mock.Mock()
    package.__path__ = []
    distributed.cuda = mock.Mock(spec=["is_available", "device_count", "set_device"])
    distributed.cuda.is_available.return_value = devices > 0
    distributed.cuda.device_count.return_value = devices
    distributed.is_nccl_available.return_value = nccl
    distributed.GroupMember.NON_GROUP_MEMBER = -100
    vars(package)["cuda"] = distributed.cuda
    monkeypatch.setitem(sys.modules, "torch", package)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    return distributed
