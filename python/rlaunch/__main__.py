"""``python -m rlaunch``: the launcher's command line."""

from ._launch.single_thread import run_launcher_function
from ._launch.status_pipe import take_descriptor

if __name__ == "__main__":
    run_launcher_function("main", take_descriptor())
