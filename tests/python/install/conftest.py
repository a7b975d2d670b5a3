"""Fixtures: virtual environments of a test's own."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest
from environments import Environment


@pytest.fixture
def bare(tmp_path: Path) -> Environment:
    """An environment without packages."""
    made = Environment(tmp_path, tmp_path / "venv")
    venv.create(made.home, symlinks=True)
    return made


@pytest.fixture
def place(bare: Environment) -> Environment:
    """An environment with rlaunch, torch, Paddle and accelerate."""
    bare.add_packages()
    return bare


@pytest.fixture
def enabled(place: Environment) -> Environment:
    """The same, with the .pth file."""
    from rlaunch._install import pth_file

    pth_file.PthFile(str(place.site)).enable()
    return place
