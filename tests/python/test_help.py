"""The help of the commands: one screen, all options, or those of a topic."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import environment

PADDLES = [sys.executable, "-m", "rlaunch"]
TORCHS = [sys.executable, "-m", "rlaunch.run"]
BIN = Path(sys.executable).parent
COMMAND = [str(BIN / "rlaunch")]
# Each command line with the arguments that ask for its help, and the command lines that are the same.
SAME = {
    "launch": (PADDLES, [[*COMMAND, "launch"]]),
    "run": (TORCHS, [[*COMMAND, "run"], [str(BIN / "rlaunch-run")]]),
}
TOPICS = {
    "launch": ["job", "logs", "hangs", "restarts", "nodes", "security", "servers", "legacy"],
    "run": ["job", "nodes", "logs", "restarts", "hangs", "security"],
}
ENTRY = re.compile(r"^ {2}(?:-(\w), | {4})--([\w-]+)", re.M)


def ask(command: list[str], *args: str) -> subprocess.CompletedProcess[str]:
    env = environment(COLUMNS="200")
    return subprocess.run([*command, *args], capture_output=True, text=True, env=env, check=False)


def show(command: list[str], *args: str) -> str:
    done = ask(command, *args)
    assert (done.returncode, done.stderr) == (0, ""), args
    return done.stdout


def entries(text: str) -> dict[str, str]:
    """The options of a help, each with its text in one line."""
    parts = ENTRY.split(re.split(r"\n\n(?=Exit status|Examples)", text)[0])
    pairs = zip(parts[2::3], parts[3::3], strict=True)
    return {name: " ".join(body.split("\n\n")[0].split()) for name, body in pairs}


@pytest.mark.parametrize("command", [PADDLES, TORCHS, COMMAND])
def test_the_help_is_one_screen(command: list[str]) -> None:
    text = show(command, "--help")
    lines = text.splitlines()
    assert 24 <= len(lines) <= 40
    assert [line for line in lines if len(line) > 80] == []
    assert {"Examples:", "More help:"} < set(lines)
    assert "--help all" in text
    assert show(command, "-h") == text
    for line in show(command, "--help", "all").splitlines():
        assert len(line) <= 80


@pytest.mark.parametrize("kind", SAME)
def test_it_shows_ten_options_as_the_full_list_has_them(kind: str) -> None:
    command, others = SAME[kind]
    short, full = entries(show(command, "--help")), entries(show(command, "--help", "all"))
    assert len(short) == 10
    for name, text in short.items():
        default = re.search(r"\[default: [^]]+\]", text)
        assert default is None or default[0] in full[name], name
    for other in others:
        assert show(other, "--help") == show(command, "--help")
        assert show(other, "--help", "nodes") == show(command, "--help", "nodes")
    for line in re.findall(r"^  (?:python -m rlaunch|rlaunch-run) (.*)$", show(command, "--help"), re.M):
        used = set(re.findall(r"--([\w-]+)", line.split(" train.py")[0]))
        assert used <= {*full, "gpus"}, line


@pytest.mark.parametrize("kind", SAME)
def test_every_option_is_in_one_topic_in_alphabetical_order(kind: str) -> None:
    command, _ = SAME[kind]
    full = show(command, "--help", "all")
    seen: list[str] = []
    for topic in TOPICS[kind]:
        text = show(command, "--help", topic)
        assert show(command, f"--help={topic}", "--nonsense") == text
        for block in text.split("\n\n"):
            names = ENTRY.findall(block)
            assert names
            # One with a letter is sorted by that.
            keys = [letter or name for letter, name in names]
            assert keys == sorted(keys)
            seen += [name for _, name in names]
        assert "Usage:" not in text
    assert sorted([*seen, "help", "version"]) == sorted(entries(full))
    assert show(command, "--help", "exit") in full + "\n"


@pytest.mark.parametrize("kind", SAME)
def test_an_unknown_topic_names_those_that_there_are(kind: str) -> None:
    command, _ = SAME[kind]
    topics = ", ".join(["all", *TOPICS[kind], "exit"])
    for args in (["--help", "noodles"], ["--help=noodles", "train.py"]):
        done = ask(command, *args)
        assert (done.returncode, done.stdout) == (2, "")
        words = f"there is no topic 'noodles'; the topics are {topics}"
        assert done.stderr == f"rlaunch: error: option --help: {words}\n"
    screen = show(command, "--help")
    (line,) = re.findall(r"TOPIC: (.*?)\n(?= {2}\S)", screen, re.S)
    assert re.findall(r"\w+", line.replace(" or ", " ")) == topics.split(", ")[1:]


@pytest.mark.parametrize("kind", SAME)
def test_a_script_after_help_is_no_topic(kind: str) -> None:
    command, _ = SAME[kind]
    screen = show(command, "--help")
    for args in (["train.py"], ["-m", "package"], ["tools/train", "x"], ["train", "x"], ["--nonsense"]):
        assert show(command, "--help", *args) == screen, args
    assert show(command, "-m", "--he", "pkg.train") == screen
    assert show(command, "-mh") == show(command, "-hm") == screen


@pytest.mark.parametrize("kind", SAME)
def test_a_script_gets_its_own_help(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser('mine').parse_args()\n")
    logs = ["--log_dir", str(tmp_path / "log")] if kind == "launch" else []
    for asking in ("--help", "-h"):
        done = ask([*SAME[kind][0], *logs], str(tmp_path / "train.py"), asking)
        assert (done.returncode, done.stdout.partition(" [-h]")[0]) == (0, "usage: mine")


def test_help_of_the_commands_for_running_jobs() -> None:
    everything = show(COMMAND, "--help", "all")
    names = re.findall(r"^ {2}(\w+) {2,}", show(COMMAND, "--help").split("Options:")[0], re.M)
    assert len(names) == 14
    for name in names:
        text = show(COMMAND, name, "--help")
        assert show(COMMAND, "--help", name) == show(COMMAND, f"--help={name}") == text
        assert show(COMMAND, "help", name) == text
        whole = show(COMMAND, name, "--help", "all") if name in SAME else text
        assert whole.strip() in everything
    assert show(COMMAND, "help") == show(COMMAND, "--help")
    done = ask(COMMAND, "--help", "nodes")
    assert done.returncode == 2
    assert "there is no topic 'nodes'; the topics are all, launch, run, ps, " in done.stderr
