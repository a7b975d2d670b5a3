"""``--run-path``: runs a script as ``runpy.run_path`` does; what it raises is recorded as ``record`` does."""

import runpy
import sys

from .errors import record


def main() -> None:
    """Runs the script that ``sys.argv`` names, which sees itself and its arguments there."""
    del sys.argv[0]
    record(runpy.run_path)(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
