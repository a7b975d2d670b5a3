"""``python -m rlaunch``: the launcher's command line."""

import os
import sys

from ._lib import main

if __name__ == "__main__":
    # Set by `rlaunch.launch` alone, and not for the ranks.
    descriptor = os.environ.pop("RLAUNCH_RECORD_FD", "")
    record = int(descriptor) if descriptor.isascii() and descriptor.isdigit() and len(descriptor) < 10 else -1
    status = main(sys.argv[1:], sys.executable, record)
    # Nothing is left to flush or finalize, and finalizing the interpreter takes longer than all the rest.
    os._exit(status)
