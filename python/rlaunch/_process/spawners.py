"""Spawners and port leases of this process. A process forked off it gives up its copies."""

from __future__ import annotations

import os
import weakref

from .. import _lib

_spawners: weakref.WeakSet[_lib.Spawner] = weakref.WeakSet()
_leases: weakref.WeakSet[_lib.PortLeases] = weakref.WeakSet()


def new_spawner() -> _lib.Spawner:
    """Returns a new spawner, which processes forked off this one abandon."""
    spawner = _lib.Spawner()
    _spawners.add(spawner)
    return spawner


def release_after_fork(leases: _lib.PortLeases) -> None:
    """Has processes forked off this one release these port leases."""
    _leases.add(leases)


def _abandon_all() -> None:
    for spawner in list(_spawners):
        spawner.abandon()
    for leases in list(_leases):
        leases.release()


os.register_at_fork(after_in_child=_abandon_all)
