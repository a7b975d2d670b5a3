"""Kinds of Python interpreters that rlaunch does not support say so."""

from __future__ import annotations

import subprocess
import sys

# From 3.13 on, `run_string` returns the exception instead of raising it.
IN_A_SUBINTERPRETER = """
import rlaunch._lib
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
try:
    print(interpreters.run_string(interpreters.create(), "import rlaunch._lib"))
except Exception as error:
    print(error)
"""


def test_a_subinterpreter_is_refused_with_words() -> None:
    """From 3.12 on, where extensions can say that they do not support them."""
    done = subprocess.run([sys.executable, "-c", IN_A_SUBINTERPRETER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if sys.version_info >= (3, 12):
        assert "ImportError" in done.stdout
        assert "subinterpreters" in done.stdout
    else:
        assert done.stdout == "None\n"


def import_with_gil(is_enabled: bool) -> subprocess.CompletedProcess[str]:
    """Imports rlaunch's extension where Python says this of the GIL, as a free-threaded one does."""
    program = f"import sys; sys._is_gil_enabled = lambda: {is_enabled}; import rlaunch._lib; print('in')"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_a_python_whose_gil_is_forced_off_is_refused_with_words() -> None:
    refused = import_with_gil(is_enabled=False)
    assert refused.returncode == 1
    assert "ImportError: rlaunch needs the GIL, and PYTHON_GIL=0 or -X gil=0 keeps it off" in refused.stderr
    allowed = import_with_gil(is_enabled=True)
    assert (allowed.returncode, allowed.stdout) == (0, "in\n"), allowed.stderr
