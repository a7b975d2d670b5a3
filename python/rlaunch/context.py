"""Old import path of ``rlaunch.MultiprocessContext``.

Deprecated. Import ``MultiprocessContext`` from ``rlaunch``.
"""

import warnings

from ._spawn.context import MultiprocessContext as MultiprocessContext
from ._spawn.context import RanksContext as RanksContext

warnings.warn(
    "the module rlaunch.context is deprecated; import MultiprocessContext from rlaunch",
    DeprecationWarning,
    stacklevel=2,
)
