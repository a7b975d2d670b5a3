"""Old import path of ``rlaunch.launch``: ``from rlaunch.launch import launch`` still works.

Deprecated. Import ``launch`` from ``rlaunch``.
"""

import sys
import warnings

from ._launch.launch import launch as launch

warnings.warn(
    "the module rlaunch.launch is deprecated; import launch from rlaunch", DeprecationWarning, stacklevel=2
)
# As in spawn.py: the attribute `rlaunch.launch` has to stay the function.
vars(launch).update(launch=launch)
sys.modules[__name__] = launch  # type: ignore[assignment]
