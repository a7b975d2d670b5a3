"""``python -m rlaunch``: the launcher's command line."""

import os
import sys

from ._launch.status_pipe import take_descriptor
from ._lib import main

if __name__ == "__main__":
    status = main(sys.argv[1:], sys.executable, take_descriptor())
    # Nothing is left to flush, and finalizing the interpreter takes longer than everything before.
    os._exit(status)
