"""Jobs at each kind of rendezvous."""

from __future__ import annotations

import pytest
from elastic_jobs import BACKENDS, Backend
from multi_host import MultiHost


@pytest.fixture(params=[*BACKENDS, "etcd"])
def backend(request: pytest.FixtureRequest, made: MultiHost) -> Backend:
    if request.param == "etcd":
        return made.at(request.getfixturevalue("etcd"))
    return BACKENDS[request.param]
