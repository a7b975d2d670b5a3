"""The native module `_test_hooks`: servers, parsers and probes of rlaunch without a job around them.

It is in the file of `rlaunch._lib` if Cargo's feature `test-hooks` was on (`make`); never in a wheel.
"""

from __future__ import annotations

from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import rlaunch._lib


def _load() -> Any:
    name = "_test_hooks"
    loader = ExtensionFileLoader(name, rlaunch._lib.__file__)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


# For scripts in other processes: the folder that they put into sys.path to import this.
FOLDER = str(Path(__file__).parent)
_hooks = _load()
Master = _hooks.Master
MasterClient = _hooks.MasterClient
TorchStore = _hooks.TorchStore
bound_cpus = _hooks.bound_cpus
encode_fork_request = _hooks.encode_fork_request
parse_run = _hooks.parse_run
sync_with_paddle_master = _hooks.sync_with_paddle_master
torch_devices = _hooks.torch_devices
