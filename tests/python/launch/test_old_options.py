"""The former names of options and variables still work, with one line on stderr."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rlaunch
from launching import Place, environment

# Two nodes at etcd: the options about the rendezvous are read only there.
AT_ETCD = ["--nnodes=2", "--master=etcd://127.0.0.1:1", "--join_timeout=1"]

# Old name, new name, a value that is refused, and the text of the error.
OLD = [
    ("dialect", "frameworks", "mpi", "give paddle, torch or jax"),
    ("zygote", "preload", "a-b", "'a-b'"),
    ("prefix", "log_prefix", "x", "give auto, none, rank"),
    ("grace", "grace_period", "soon", "seconds"),
    ("notify_signals", "forward_signals", "KILL", "'KILL' cannot be"),
    ("lease", "heartbeat_timeout", "1", "give 2 or more"),
    ("lost_timeout", "etcd_loss_timeout", "x", "seconds"),
    ("job_key", "job_secret", "0123456789abcdef", "--etcd_user or certificates"),
]
TORCHS = [
    ("dialect", "frameworks", "mpi"),
    ("zygote", "preload", "a-b"),
    ("job-key", "job-secret", "0123456789abcdef"),
]


def variable(name: str) -> str:
    return f"RLAUNCH_{name.upper().replace('-', '_')}"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.script("")
    return place


@pytest.mark.parametrize(
    ("typo", "name"), [("prefi", "log_prefix"), ("zygot", "preload"), ("job_idd", "job_id")]
)
def test_a_mistyped_keyword_of_launch_never_suggests_an_old_name(typo: str, name: str) -> None:
    with pytest.raises(TypeError, match=f"has no option '{typo}'; did you mean '{name}'?"):
        rlaunch.launch("train.py", **{typo: "x"})


@pytest.mark.parametrize(("old", "new", "value", "words"), OLD)
def test_an_old_option_and_its_variable_set_the_new_one(
    place: Place, old: str, new: str, value: str, words: str
) -> None:
    shown = "***" if new == "job_secret" else value
    for spelling in {old, old.replace("_", "-")}:
        ended = place.run(*AT_ETCD, f"--{spelling}", value, "train.py")
        notice, error = ended.stderr.splitlines()
        assert notice == f"rlaunch: --{old} is deprecated; use --{new}"
        assert error.startswith(f"rlaunch: error: --{new} {shown}: ")
        assert words in error
        assert ended.status == 2
    ended = place.run(*AT_ETCD, "train.py", env=environment(**{variable(old): value}))
    notice, error = ended.stderr.splitlines()
    assert notice == f"rlaunch: {variable(old)} is deprecated; use {variable(new)}"
    assert error.startswith(f"rlaunch: error: {variable(old)} {shown}: ")
    assert words in error


def test_every_old_name_is_tested_and_hidden(place: Place) -> None:
    from rlaunch import _lib

    known = re.findall(r"--(\w+)", place.run("--help", "all").stdout.decode())
    assert set(_lib.launch_options()) - set(known) == {old for old, *_ in OLD}
    assert {row["old_name"] for row in _lib.run_options({})} - {None} == {old for old, *_ in TORCHS}
    for text in (place.run("--help", "all").stdout.decode(), run("--help", "all").stdout):
        for old, *_ in [*OLD, *TORCHS]:
            assert not re.search(rf"--{old}\b(?!_)|{variable(old)}\b", text), old
    for shell in ("bash", "zsh", "fish"):
        assert not re.search(r"dialect|zygote|job.key", run(f"--print-completion={shell}").stdout)


@pytest.mark.parametrize(("old", "new", "value"), TORCHS)
def test_torchruns_front_end_accepts_them_too(tmp_path: Path, old: str, new: str, value: str) -> None:
    at_etcd = ["--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:1"]
    for spelling in {old, old.replace("-", "_")}:
        ended = run(*at_etcd, f"--{spelling}={value}", "train.py")
        notice, error = ended.stderr.splitlines()
        assert notice == f"rlaunch: --{old} is deprecated; use --{new}"
        assert error.startswith(f"rlaunch: error: --{new} ")
        assert ended.returncode == 2
    (tmp_path / "train.py").touch()
    value = {"dialect": "torch", "zygote": "json"}.get(old, value)
    ended = run("--dry-run", str(tmp_path / "train.py"), **{variable(old): value})
    assert ended.stderr == f"rlaunch: {variable(old)} is deprecated; use {variable(new)}\n"
    assert ended.returncode == 0


def test_the_key_of_rdzv_conf_that_was_renamed(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    at_etcd = ["--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:1", "--local-addr=127.0.0.1"]
    ended = run(*at_etcd, "--rdzv-conf=lost_timeout=5", "--dry-run", str(tmp_path / "train.py"))
    (line,) = (line for line in ended.stderr.splitlines() if "deprecated" in line)
    assert line.endswith("--rdzv-conf lost_timeout is deprecated; use etcd_loss_timeout")
    assert ended.returncode == 0


def test_of_old_and_new_the_last_option_counts_and_the_new_variable(place: Place) -> None:
    both = place.run("--grace=x", "--grace_period=y", "train.py").stderr.splitlines()
    assert both[1].startswith("rlaunch: error: --grace_period y: ")
    both = place.run("--grace_period=y", "--grace=x", "train.py").stderr.splitlines()
    assert both[1].startswith("rlaunch: error: --grace_period x: ")
    env = environment(RLAUNCH_GRACE="x", RLAUNCH_GRACE_PERIOD="y")
    (line,) = place.run("train.py", env=env).stderr.splitlines()
    assert line.startswith("rlaunch: error: RLAUNCH_GRACE_PERIOD y: ")


def test_keyword_options_of_launch_by_their_old_names(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    report = rlaunch.launch("train.py", nproc_per_node=1, grace=3, dialect="paddle", console_ranks="none")
    assert [rank.exitcode for rank in report.ranks] == [0]
    notices = [line for line in capfd.readouterr().err.splitlines() if "deprecated" in line]
    assert notices == [
        "rlaunch: --dialect is deprecated; use --frameworks",
        "rlaunch: --grace is deprecated; use --grace_period",
    ]


def test_the_parser_of_run_by_its_old_names() -> None:
    import rlaunch.run

    args = rlaunch.run.parse_args(["--job-key=k", "--dialect", "torch", "train.py"])
    assert (args.job_secret, args.frameworks) == ("k", "torch")
    assert "--job-key" not in rlaunch.run.get_args_parser().format_help()


def run(*args: str, **changes: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in environment().items() if not name.startswith(("PET_", "LOGLEVEL"))}
    command = [sys.executable, "-m", "rlaunch.run", *args]
    env = {**kept, **changes}
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=60, check=False, cwd=os.getcwd()
    )
