"""The .pth file by which RLAUNCH_INSTALL takes effect in every Python program of an environment.

Python executes the lines of ``site-packages/*.pth`` that begin with ``import`` when it starts. The line costs
one look-up if the variable is not set. Otherwise it adds a finder to ``sys.meta_path`` that imports rlaunch
when torch or Paddle is imported. The line is executed in environments whose rlaunch was removed or is of
another version: it imports nothing but ``make_finder``, and catches what that raises.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from dataclasses import dataclass

from .import_hook import VARIABLE, read_variable

# The name sorts after rlaunch.pth of an editable installation, and Python reads the files by name.
NAME = "rlaunch_install.pth"

# Python may read the file twice: /lib64 is a link to /lib in some environments.
_CODE = """\
class Finder:
    installs_rlaunch = True
    finder = None
    def find_spec(self, name, path=None, target=None):
        if self.finder is None and name in ("torch", "paddle"):
            self.finder = False
            try:
                from rlaunch._install.import_hook import make_finder
                self.finder = make_finder() or False
            except ModuleNotFoundError:
                pass
            except Exception as error:
                print("rlaunch: warning: RLAUNCH_INSTALL has no effect:", repr(error), file=sys.stderr)
        return self.finder.find_spec(name, path, target) if self.finder else None
if not any(hasattr(one, "installs_rlaunch") for one in sys.meta_path):
    sys.meta_path.insert(0, Finder())
"""
LINE = f"import os, sys; exec({_CODE!r}) if os.environ.get({VARIABLE!r}) else None\n"


class InstallError(Exception):
    """The file cannot be written or removed, or would have no effect."""


@dataclass(frozen=True)
class PthFile:
    """The file of the environment, or of the user."""

    folder: str

    @property
    def path(self) -> str:
        """Where it is."""
        return os.path.join(self.folder, NAME)

    @property
    def is_enabled(self) -> bool:
        """Whether there is one."""
        return os.path.exists(self.path)

    @property
    def is_current(self) -> bool:
        """Whether its content is that of this version."""
        try:
            with open(self.path, encoding="utf-8") as file:
                return file.read() == LINE
        except (OSError, ValueError):
            return False

    def enable(self) -> None:
        """Writes it.

        Raises:
            InstallError: it cannot be written.
        """
        from .._errors.atomic_file import write_atomically

        try:
            os.makedirs(self.folder, exist_ok=True)
            write_atomically(self.path, LINE.encode())
            os.chmod(self.path, 0o644)
        except OSError as error:
            raise InstallError(f"{self.path}: cannot be written: {error.strerror}") from None

    def disable(self) -> bool:
        """Removes it; returns whether there was one.

        Raises:
            InstallError: it cannot be removed.
        """
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise InstallError(f"{self.path}: cannot be removed: {error.strerror}") from None
        return True


def find_environment_file() -> PthFile:
    """Returns the file of the environment of this interpreter."""
    return PthFile(sysconfig.get_path("purelib"))


def find_user_file() -> PthFile:
    """Returns the file in the user's site-packages."""
    return PthFile(site.getusersitepackages())


def is_user_site_read() -> bool:
    """Whether this interpreter reads the user's site-packages; in a virtual environment, most often not."""
    return bool(site.ENABLE_USER_SITE)


def is_enabled() -> bool:
    """Whether RLAUNCH_INSTALL takes effect in programs that this interpreter runs."""
    user = is_user_site_read() and find_user_file().is_enabled
    return user or find_environment_file().is_enabled


def describe_variable() -> str:
    """Returns what RLAUNCH_INSTALL says now, and whether that takes effect."""
    if VARIABLE not in os.environ:
        return f"{VARIABLE} is not set: programs run without rlaunch"
    try:
        names = read_variable()
    except ValueError as error:
        return str(error)
    said = f"{VARIABLE}={os.environ[VARIABLE]}: {' and '.join(names) or 'nothing'} on rlaunch"
    return said if is_enabled() else f"{said} once it is enabled: python -m rlaunch.install enable"


def describe_rlaunch() -> str:
    """Returns version and folder of this rlaunch."""
    from .. import _lib

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return f"{_lib.__version__}, {folder}, for {sys.executable}"
