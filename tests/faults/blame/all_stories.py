"""Imports every story, in the order of the table."""

# ruff: noqa: F401, I001

from __future__ import annotations

import python_stories
import reason_stories
import signal_stories
import torch_stories
import paddle_stories
