"""How a rank that was forked off a zygote ends."""

from __future__ import annotations

import weakref

from rlaunch._preload import child


class Thing:
    pass


def of_module(module: str) -> weakref.finalize:
    def end() -> None:
        pass

    end.__module__ = module
    thing = Thing()
    _kept.append(thing)
    return weakref.finalize(thing, end)


_kept: list[Thing] = []


def test_torch_takes_no_operators_out_at_the_end_and_all_else_is_run() -> None:
    torchs, other = of_module("torch.library"), of_module("tempfile")
    child._skip_torch_deregistration()
    assert (torchs.atexit, other.atexit) == (False, True)
    assert torchs.alive
    torchs.detach()
    other.detach()
