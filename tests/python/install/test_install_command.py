"""``python -m rlaunch.install``, and the file that it writes. Imports no framework."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from environments import Environment
from rlaunch import install
from rlaunch._install import pth_file
from rlaunch._install.import_hook import read_variable

FAKE = "print('fake torch')\n"
# Whether rlaunch has been imported, and how many finders of the file there are.
SEEN = """
import sys
finders = [one for one in sys.meta_path if type(one).__name__ == "Finder"]
print("rlaunch" in sys.modules, len(finders))
"""


def run_install(place: Environment, *args: str, status: int = 0, **changes: str | None) -> str:
    done = place.run("python", "-m", "rlaunch.install", *args, status=status, **changes)
    return done.stderr if status else done.stdout


def test_enable_status_and_disable(place: Environment) -> None:
    assert f"for this environment: disabled ({place.pth} does not exist)\n" in run_install(place, "status")
    assert run_install(place, "enable").startswith(f"wrote {place.pth}\n")
    assert place.pth.stat().st_mode & 0o777 == 0o644
    said = run_install(place, "status", RLAUNCH_INSTALL="torch")
    assert f"for this environment: enabled ({place.pth})\n" in said
    assert "RLAUNCH_INSTALL=torch: torch on rlaunch\n" in said
    assert "RLAUNCH_INSTALL is not set" in run_install(place, "status")
    assert "RLAUNCH_INSTALL=2: unknown value" in run_install(place, "status", RLAUNCH_INSTALL="2")
    run_install(place, "enable")
    place.pth.write_text("import os\n")
    assert "enabled by another version of rlaunch" in run_install(place, "status")
    assert run_install(place, "disable") == f"removed {place.pth}\n"
    assert not place.pth.exists()
    said = run_install(place, "status", RLAUNCH_INSTALL="torch")
    assert "torch on rlaunch once it is enabled: python -m rlaunch.install enable\n" in said
    assert run_install(place, "disable") == f"{place.pth} does not exist: it is not enabled\n"


def test_nothing_is_imported_before_a_framework_is(enabled: Environment) -> None:
    """Without the variable there is no finder either."""
    assert enabled.run("python", "-c", SEEN).stdout == "False 0\n"
    assert enabled.run("python", "-c", SEEN, RLAUNCH_INSTALL="").stdout == "False 0\n"
    assert enabled.run("python", "-c", SEEN, RLAUNCH_INSTALL="1").stdout == "False 1\n"


def fake_package(place: Environment, name: str, text: str) -> None:
    path = place.site / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_file_of_a_removed_rlaunch_is_silent(bare: Environment) -> None:
    bare.pth.write_text(pth_file.LINE)
    fake_package(bare, "torch/__init__.py", FAKE)
    done = bare.run("python", "-c", "import torch", RLAUNCH_INSTALL="1")
    assert (done.stdout, done.stderr) == ("fake torch\n", "")


def test_a_broken_rlaunch_breaks_no_program(bare: Environment) -> None:
    bare.pth.write_text(pth_file.LINE)
    fake_package(bare, "torch/__init__.py", FAKE)
    fake_package(bare, "rlaunch/_install/import_hook.py", "raise OSError('bad build')\n")
    done = bare.run("python", "-c", "import torch", RLAUNCH_INSTALL="1")
    assert done.stdout == "fake torch\n"
    assert done.stderr == "rlaunch: warning: RLAUNCH_INSTALL has no effect: OSError('bad build')\n"


def test_an_unknown_torch_is_imported_with_a_warning(enabled: Environment) -> None:
    """One whose modules lack the functions that rlaunch replaces."""
    fake_package(enabled, "torch/__init__.py", "")
    fake_package(enabled, "torch/distributed/__init__.py", "")
    fake_package(enabled, "torch/distributed/run.py", FAKE)
    done = enabled.run("python", "-c", "import torch.distributed.run", RLAUNCH_INSTALL="torch")
    assert done.stdout == "fake torch\n"
    start = "rlaunch: warning: cannot replace functions of torch.distributed.run: AttributeError: "
    assert done.stderr.startswith(start)
    assert "get_args_parser" in done.stderr


def test_a_wrong_value_is_a_warning_that_names_it(enabled: Environment) -> None:
    fake_package(enabled, "torch/__init__.py", FAKE)
    code = "import torch\ntry:\n    import torch.no\nexcept ImportError:\n    pass"
    done = enabled.run("python", "-c", code, RLAUNCH_INSTALL="torch,jax")
    why = "'jax' is no framework; set it to 1 (all), or to a list of paddle, torch"
    assert done.stderr == f"rlaunch: warning: RLAUNCH_INSTALL=torch,jax: {why}\n"
    assert done.stdout == "fake torch\n"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        *((value, ["paddle", "torch"]) for value in ("1", "true", "YES", "on", "torch, Paddle")),
        *((value, []) for value in ("", "0", "no", "false", "off")),
        ("torch", ["torch"]),
    ],
)
def test_values_of_the_variable(value: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLAUNCH_INSTALL", value)
    assert sorted(read_variable()) == names


@pytest.mark.parametrize("value", ["2", "torch,", "1,torch", "all"])
def test_wrong_values_of_the_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLAUNCH_INSTALL", value)
    with pytest.raises(ValueError, match=f"^RLAUNCH_INSTALL={value}: "):
        read_variable()


@pytest.mark.parametrize(
    ("value", "hint"),
    [("padle", "; did you mean paddle?"), ("paddle,Torhc", "; did you mean torch?"), ("jax", "")],
)
def test_a_misspelt_framework_of_the_variable(value: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLAUNCH_INSTALL", value)
    with pytest.raises(ValueError, match=re.escape(f"a list of paddle, torch{hint}") + "$"):
        read_variable()


def test_an_environment_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in the place of the folder: permissions do not stop root."""
    blocked = tmp_path / "site-packages"
    blocked.write_text("")
    monkeypatch.setattr(pth_file, "find_environment_file", lambda: pth_file.PthFile(str(blocked)))
    assert install.main(["enable"]) == 1
    path = blocked / pth_file.NAME
    hint = "use --user, or a virtual environment"
    assert capsys.readouterr().err == f"rlaunch: error: {path}: cannot be written: File exists; {hint}\n"
    assert install.main(["disable"]) == 1
    assert capsys.readouterr().err == f"rlaunch: error: {path}: cannot be removed: Not a directory\n"


def test_the_users_folder(place: Environment) -> None:
    """A virtual environment does not read it."""
    said = run_install(place, "enable", "--user", status=1)
    assert said.startswith("rlaunch: error: ")
    assert "this interpreter does not read it" in said
    config = place.home / "pyvenv.cfg"
    text = config.read_text().replace(
        "include-system-site-packages = false", "include-system-site-packages = true"
    )
    config.write_text(text)
    base = str(place.folder / "user")
    (user,) = {run_install(place, "enable", "--user", PYTHONUSERBASE=base).split("\n")[0]}
    assert user.startswith(f"wrote {base}{os.sep}")
    assert "for the user: enabled" in run_install(place, "status", PYTHONUSERBASE=base)
    code = "import sys; import rlaunch._install.pth_file as f; sys.exit(not f.is_enabled())"
    place.run("python", "-c", code, PYTHONUSERBASE=base)
