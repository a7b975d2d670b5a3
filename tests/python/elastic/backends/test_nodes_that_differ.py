"""Nodes whose scripts are of different commits are named, or refused by ``--require_same``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from effort import each
from elastic_jobs import (
    IMPORT_LIMIT,
    NOT_MET,
    PADDLE,
    PADDLES,
    TORCH,
    USAGE,
    AtMaster,
    Backend,
    Job,
    joining,
)
from launching import environment
from multi_host import MultiHost

NO_INPUT = 66
RUN = 'tell(f"began.{node}")'
FAILS_ONCE = 'sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)'


def repository(folder: Path, message: str) -> str:
    """Makes a repository with a commit, and returns the beginning of its name."""
    folder.mkdir()
    variables = dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"), os.devnull)
    for kind in ("AUTHOR", "COMMITTER"):
        variables |= {f"GIT_{kind}_NAME": "a test", f"GIT_{kind}_EMAIL": "test@localhost"}

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(
            command, env=os.environ | variables, check=True, capture_output=True, text=True
        ).stdout

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", f"--message={message}")
    return git("rev-parse", "HEAD")[:12]


def scripts(job: Job) -> tuple[list[str], list[str]]:
    """The same script in two repositories, and their commits."""
    commits = [repository(job.folder / name, name) for name in ("one", "two")]
    return [job.script(RUN, f"{name}/train.py") for name in ("one", "two")], commits


@each("module", [PADDLE, TORCH])
def test_nodes_of_different_commits_are_named(
    tmp_path: Path, made: MultiHost, backend: Backend, module: str
) -> None:
    with Job(tmp_path, made.on, backend) as job:
        (one, two), (first, second) = scripts(job)
        nodes = [job.node(on, script, module=module) for on, script in enumerate((one, two))]
        job.end_successfully()
        for node in nodes:
            (line,) = re.findall("git commit: .*", node.stderr())
            found = re.fullmatch(r"git commit: (\w+) on \S+ \(node 0\), (\w+) on \S+ \(node 1\)", line)
            assert found, line
            assert set(found.groups()) == {first, second}, line
            # Both run this interpreter with its packages.
            assert not re.search("(Python|torch|Paddle|jax|NVIDIA driver): ", node.stderr())


@each("module", [PADDLE, TORCH])
def test_a_node_that_differs_in_what_has_to_be_the_same_is_refused(
    tmp_path: Path, made: MultiHost, backend: Backend, module: str
) -> None:
    option = "--require-same=git,python" if module == TORCH else "--require_same=git,python"
    with Job(tmp_path, made.on, backend) as job:
        (one, two), (first, second) = scripts(job)
        zero = job.node(0, option, one, module=module)
        zero.await_message("1 of 2 nodes are here|waiting for other nodes")
        for args, words in (
            (
                [option, two],
                [f"git commit is {second} on ", f"and {first} on ", "the first node; check out one commit"],
            ),
            (
                [one],
                ["--require_same: it was started with nothing, the job with python,git; start all nodes"],
            ),
        ):
            end = job.node(1, *args, module=module).end()
            assert end.status == NOT_MET, end.stderr
            (line,) = end.error_lines()
            assert all(word in line for word in words), line
        assert not list(tmp_path.glob("began.*"))
        job.end_successfully(zero, job.node(1, option, one, module=module))
        assert "git commit: " not in zero.stderr(), "they are the same"


def test_nodes_that_differ_are_named_once_though_their_ranks_start_again(
    tmp_path: Path, made: MultiHost
) -> None:
    with Job(tmp_path, made.on, AtMaster) as job:
        commits = [repository(tmp_path / name, name) for name in ("one", "two")]
        script = [job.script(FAILS_ONCE, f"{name}/train.py") for name in ("one", "two")]
        nodes = [job.node(on, "--max-restarts=1", one, module=TORCH) for on, one in enumerate(script)]
        job.end_successfully()
        for node in nodes:
            assert "all ranks start again" in node.stderr()
            (line,) = re.findall("git commit: .*", node.stderr())
            assert all(commit in line for commit in commits)


def test_a_folder_without_a_repository_cannot_have_the_same_commit(tmp_path: Path, made: MultiHost) -> None:
    with Job(tmp_path, made.on, AtMaster) as job:
        for module in (PADDLE, TORCH):
            end = job.node(0, "--require-same=git", job.script(RUN), module=module).end()
            assert end.status == NO_INPUT, end.stderr
            (line,) = end.error_lines()
            assert (
                f"--require_same git: {tmp_path} is in no git repository with a commit; leave git out" in line
            )


def test_nodes_that_do_not_compare_refuse_the_option(tmp_path: Path, made: MultiHost) -> None:
    with Job(tmp_path, made.on, AtMaster) as job:
        script = job.script(RUN)
        listed = [sys.executable, "-m", PADDLE, "--ips=10.77.0.1,10.77.0.2", "--require_same=git", script]
        static = ["--nnodes=2", "--node-rank=0", "--master-addr=10.77.0.1", "--require-same=git", script]
        for command in (listed, [sys.executable, "-m", TORCH, *static]):
            end = job.run(0, command).end()
            assert end.status == USAGE, end.stderr
            assert (
                "git: compares nothing here: the nodes of this job do not rendezvous with rlaunch; give --"
                in end.stderr
            )
        for module in (PADDLE, TORCH):
            end = job.node(0, "--require-same=git,commit", script, module=module).end()
            assert end.status == USAGE, end.stderr
            assert (
                "git,commit: is not what nodes compare; give python, framework, git or driver" in end.stderr
            )


@pytest.mark.timeout(300)
def test_nodes_of_paddles_launcher_compare_nothing(tmp_path: Path, made: MultiHost) -> None:
    with Job(tmp_path, made.on, AtMaster) as job:
        (one, _), _ = scripts(job)
        job.node(0, one, module=PADDLES, POD_IP=made.on[0].ip)
        end = job.node(1, *joining(PADDLE, IMPORT_LIMIT), "--require_same=git", one).end(IMPORT_LIMIT)
        assert end.status == NOT_MET, end.stderr
        (line,) = end.error_lines()
        assert "is Paddle's, which compares nothing; start that node with rlaunch" in line


def doctors(
    made: MultiHost, backend: Backend, folders: list[Path]
) -> list[tuple[int, dict[str, list[dict[str, str]]]]]:
    """Runs the command on each host, and returns the exit statuses and the findings by check."""
    (master,) = (
        word.partition("=")[2] for word in backend(made.on[0]).paddle() if word.startswith("--master")
    )
    command = [sys.executable, "-m", "rlaunch.control", "doctor", "--nodes=2", f"--master={master}", "--json"]
    processes = [
        host.run(command, cwd=folder, env=environment(), stdout=subprocess.PIPE)
        for host, folder in zip(made.on, folders, strict=True)
    ]
    results = []
    for process in processes:
        out, _ = process.communicate()
        checks: dict[str, list[dict[str, str]]] = {}
        for finding in json.loads(out)["findings"]:
            checks.setdefault(finding["check"], []).append(finding)
        results.append((process.returncode, checks))
    return results


def test_doctors_on_all_nodes_compare_them(tmp_path: Path, made: MultiHost, backend: Backend) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    commits = {repository(folder, folder.name) for folder in folders}
    for _, checks in doctors(made, backend, folders):
        (nodes,), (difference,), (connections,) = (
            checks[name] for name in ("nodes", "differences", "connections")
        )
        assert nodes["level"] == "ok"
        assert nodes["text"].startswith("2 are here, and this is node "), nodes
        assert difference["level"] == "warning"
        assert set(re.findall(r"(\w{12}) on \S+ \(node \d\)", difference["text"])) == commits, difference
        assert connections["text"] == "1 other node(s) can be reached from here"
    for _, checks in doctors(made, backend, folders[:1] * 2):
        assert [finding["level"] for finding in checks["differences"]] == ["ok"], checks


def test_a_doctor_whose_master_is_a_jobs_is_refused(tmp_path: Path, made: MultiHost) -> None:
    with Job(tmp_path, made.on, AtMaster) as job:
        zero = job.node(0, job.script(RUN))
        zero.await_message("1 of 2 nodes are here|waiting for other nodes")
        assert isinstance(job.backend, AtMaster)
        master = f"--master={job.backend.host}:{job.backend.port}"
        end = job.run(1, [sys.executable, "-m", "rlaunch.control", "doctor", "--nodes=2", master]).end()
        assert end.status == 1, end.stderr
        for words in (b"error    rendezvous: ", b"rlaunch-doctor"):
            assert words in end.stdout, end.stdout
        job.end_successfully(zero, job.node(1, "train.py"))
