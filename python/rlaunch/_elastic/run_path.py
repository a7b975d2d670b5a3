"""``--run-path``: runs a script by ``runpy.run_path``; its exception is recorded as ``record`` does."""

import runpy
import sys

from ..errors import record


def main() -> None:
    """Runs the script of ``sys.argv[1]``, which sees its path and its arguments in ``sys.argv``."""
    del sys.argv[0]
    record(runpy.run_path)(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
