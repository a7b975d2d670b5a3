"""What ``python -m rlaunch.run`` makes of its machine: quotas, names, stdin, terminal, interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launching import Ended
from torch_launching import TorchPlace


@pytest.fixture
def place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


def run_on(place: TorchPlace, mounts: str, *args: str, **env: str) -> Ended:
    """Runs a job on a machine with these mounts."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', "sh"]
    launcher = subprocess.Popen(
        [*command, sys.executable, "-m", "rlaunch.run", *args],
        cwd=place.folder,
        env=place.environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with place.cleaned(launcher):
        return place.wait(launcher)


def test_master_addr_resolves_where_localhost_does_not(place: TorchPlace) -> None:
    place.script("import socket; tell('found', socket.getaddrinfo(os.environ['MASTER_ADDR'], 0)[0][4][0])")
    (place.folder / "hosts").write_text("127.0.1.1 other\n")
    ended = run_on(place, "mount --bind hosts /etc/hosts", "--nproc-per-node=2", "train.py")
    assert ended.status == 0, ended
    assert place.text("found.0") in ("127.0.0.1", "::1")
