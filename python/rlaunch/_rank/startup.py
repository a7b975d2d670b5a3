"""Imported by ``rlaunch_rank.pth`` (python/data/purelib) in a rank that imports torch or Paddle."""

from __future__ import annotations

from .store_wait import wait_for_stores

wait_for_stores()
