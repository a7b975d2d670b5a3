"""A launch with arguments, variables and paths that are no text: bytes that are not UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys

from launching import LIMIT, Ended, Place, environment


def in_bytes(env: dict[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in env.items()}


def test_arguments_that_are_no_text_reach_the_ranks_as_they_are(place: Place) -> None:
    place.script("with open('args', 'wb') as file: file.write(os.fsencode(sys.argv[1]))")
    ended = place.run("train.py", b"\xff\xfe")
    assert ended.status == 0, ended.stderr
    assert (place.folder / "args").read_bytes() == b"\xff\xfe"


def test_variables_that_are_no_text_reach_the_ranks_as_they_are(place: Place) -> None:
    place.script("with open('value', 'wb') as file: file.write(os.environb[b'ODD'])")
    ended = place.run("train.py", env={**in_bytes(environment()), b"ODD": b"\xff\xfe"})
    assert ended.status == 0, ended.stderr
    assert (place.folder / "value").read_bytes() == b"\xff\xfe"


def test_a_program_is_found_in_a_folder_whose_name_is_no_text(place: Place) -> None:
    folder = os.fsencode(place.folder) + b"/b\xffn"
    os.mkdir(folder)
    with open(folder + b"/tool", "w") as file:
        file.write("#!/bin/sh\necho found > found\n")
    os.chmod(folder + b"/tool", 0o755)
    env = in_bytes(environment())
    ended = place.run("--no_python", "tool", env={**env, b"PATH": folder + b":" + env[b"PATH"]})
    assert ended.status == 0, ended.stderr
    assert place.text("found") == "found\n"


def test_an_interpreter_whose_path_is_no_text_runs_the_ranks(place: Place) -> None:
    folder = os.fsencode(place.folder) + b"/b\xffn"
    os.mkdir(folder)
    os.symlink(os.path.realpath(sys.executable), folder + b"/python")
    place.script("tell('executable', ascii(sys.executable))")
    done = subprocess.run(
        [folder + b"/python", "-m", "rlaunch", "train.py"],
        cwd=place.folder,
        env=environment(PYTHONPATH=":".join(sys.path[1:])),
        capture_output=True,
        timeout=LIMIT,
    )
    ended = Ended(done.returncode, done.stdout, done.stderr.decode())
    assert ended.status == 0, ended.stderr
    assert place.text("executable.0") == ascii(os.fsdecode(folder) + "/python")


def test_an_overriding_variable_that_is_no_text_is_named(place: Place) -> None:
    place.script("tell('ran')")
    ended = place.run("train.py", env={**in_bytes(environment()), b"PADDLE_LOG_DIR": b"l\xffg"})
    assert ended.status == 2
    assert ended.error_lines() == [
        "rlaunch: error: PADDLE_LOG_DIR: its value is not UTF-8; unset it, or set another"
    ]
    assert not (place.folder / "ran.0").exists()
