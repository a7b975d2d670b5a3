"""Virtual environments of a test's own, with the packages of the environment that runs the tests."""

from __future__ import annotations

import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from launching import environment

PTH = "rlaunch_install.pth"
# What a rank sees of its launcher, in a file of its own; its script does not run.
IN_RANKS = """
import os
if "RANK" in os.environ:
    with open(f"rank.{os.environ['RANK']}", "w") as file:
        file.write("rlaunch" if "RLAUNCH_RANK_KEY" in os.environ else "another launcher")
    os._exit(0)
"""


@dataclass
class Environment:
    """A virtual environment, and a folder to run programs in."""

    folder: Path
    home: Path

    @property
    def bin(self) -> Path:
        """Its commands."""
        return self.home / "bin"

    @property
    def site(self) -> Path:
        """Its site-packages."""
        (site,) = self.home.glob("lib/python*/site-packages")
        return site

    @property
    def pth(self) -> Path:
        """The file that makes Python read RLAUNCH_INSTALL."""
        return self.site / PTH

    def add_packages(self) -> None:
        """Makes the packages of the environment that runs the tests importable, rlaunch too."""
        folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
        (self.site / "packages.pth").write_text("".join(lines))

    def add_command(self, name: str, text: str) -> None:
        """A Python script that runs in it."""
        script = self.bin / name
        script.write_text(f"#!{self.bin / 'python'}\n{text}")
        script.chmod(0o755)

    def environ(self, **changes: str | None) -> dict[str, str]:
        """The variables of its programs."""
        env = environment(OMP_NUM_THREADS="1", HF_HOME=str(self.folder / "hf"), **changes)
        return {**env, "PATH": f"{self.bin}:{env['PATH']}"}

    def start(
        self, *command: str, start_new_session: bool = False, **changes: str | None
    ) -> subprocess.Popen[str]:
        """Starts one of its commands."""
        return subprocess.Popen(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environ(**changes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=start_new_session,
        )

    def run(
        self, *command: str, status: int | None = 0, **changes: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of its commands; None: to any exit status."""
        with self.start(*command, **changes) as process:
            stdout, stderr = process.communicate(timeout=240)
        if status is not None:
            assert process.returncode == status, stdout + stderr
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
