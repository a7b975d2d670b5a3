"""Old import path of ``rlaunch.spawn``: ``from rlaunch.spawn import MultiprocessContext`` still works.

Deprecated. Import ``spawn`` and ``MultiprocessContext`` from ``rlaunch``.
"""

import sys
import warnings

from ._spawn.context import MultiprocessContext as MultiprocessContext
from ._spawn.plan.options import check_option_names as _options_valid_check
from ._spawn.plan.paddle_devices import default_nprocs as _get_default_nprocs
from ._spawn.plan.ranks import get_environs as _get_subprocess_env_list
from ._spawn.spawn import spawn as spawn

warnings.warn(
    "the module rlaunch.spawn is deprecated; import spawn and MultiprocessContext from rlaunch",
    DeprecationWarning,
    stacklevel=2,
)
# The import system binds sys.modules["rlaunch.spawn"] to the attribute `rlaunch.spawn`, which has to stay the
# function. The function therefore carries the module's names.
vars(spawn).update(
    spawn=spawn,
    MultiprocessContext=MultiprocessContext,
    # Names of the module paddle.distributed.spawn.
    _get_default_nprocs=_get_default_nprocs,
    _get_subprocess_env_list=_get_subprocess_env_list,
    _options_valid_check=_options_valid_check,
)
sys.modules[__name__] = spawn  # type: ignore[assignment]
