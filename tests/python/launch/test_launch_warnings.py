"""Values that Paddle's launcher accepts and that cannot be meant so are accepted too, with one warning."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from launching import Ended, Place, environment, free_ports

MISPLACED = "the script receives {}, as it follows the script; options of the launcher go before the script"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.script("tell('started')")
    return place


def logged(ended: Ended, level: str) -> list[str]:
    lines = (line.split(" ", 4) for line in ended.stderr.splitlines() if line.startswith(f"LAUNCH {level} "))
    return [line[4] for line in lines]


@pytest.mark.parametrize(
    ("args", "ranks", "warnings"),
    [
        (["train.py"], 1, []),
        (["--nproc_per_node=2", "--console_ranks=0,1", "train.py"], 2, []),
        (
            ["--nproc_per_node=0", "train.py"],
            1,
            ["--nproc_per_node 0: is not a number of ranks; one rank per"],
        ),
        (
            ["--nproc_per_node=-2", "train.py"],
            1,
            ["--nproc_per_node -2: is not a number of ranks; one rank is"],
        ),
        (["--console_ranks=0,9", "train.py"], 1, ["--console_ranks 9: the job has no such rank"]),
        (["--start_port=99999", "train.py"], 1, ["--start_port 99999: has no effect without --ips"]),
        (["--host=1.2.3", "train.py"], 1, ["Host ip reset to 1.2.3", "--host 1.2.3: has fewer numbers"]),
        (["--host=127.0.0.1", "train.py"], 1, ["Host ip reset to 127.0.0.1"]),
        (["train.py", "--nproc_per_node", "2"], 1, [MISPLACED.format("--nproc_per_node")]),
        (["train.py", "x", "--rdzv-backend=c10d"], 1, [MISPLACED.format("--rdzv-backend")]),
        (["--nproc_per_node=1", "train.py", "--nproc_per_node=2"], 1, []),
        (["train.py", "--gpus", "2", "--", "nnodes"], 1, []),
        (["--log_dir=~/x", "train.py"], 1, ["--log_dir ~/x: a folder named ~ is meant here"]),
        (["--xpus=0", "train.py"], 1, ["no driver shows any device; --xpus 0 is used as given"]),
    ],
)
def test_the_job_runs_with_a_warning(place: Place, args: list[str], ranks: int, warnings: list[str]) -> None:
    ended = place.run(*args)
    assert ended.status == 0, ended.stderr
    assert len([name for name in place.names() if name.startswith("started.")]) == ranks
    said = logged(ended, "WARNING")
    assert len(said) == len(warnings), said
    assert all(line.startswith(start) for line, start in zip(said, warnings, strict=True)), said


def test_an_openmp_setting_that_is_no_number_is_replaced_with_a_warning(place: Place) -> None:
    (seen,) = place.tell(env=environment(OMP_NUM_THREADS="4,2"))
    assert seen["env"]["OMP_NUM_THREADS"] == "1"
    (said,) = logged(place.run("train.py", env=environment(OMP_NUM_THREADS="4,2")), "WARNING")
    assert said.startswith("OMP_NUM_THREADS 4,2: is not a whole number, so ranks receive 1")


def test_the_kind_of_unseen_devices_is_that_of_the_option(place: Place) -> None:
    ended = place.run("--xpus=0,1", "train.py")
    assert any(line.endswith("devices xpu 0 1") for line in logged(ended, "INFO")), ended.stderr


def test_the_cgroup_is_a_path_in_the_log(place: Place) -> None:
    said = logged(place.run("--log_level=DEBUG", "train.py"), "DEBUG")
    (path,) = (line.partition(": ")[2] for line in said if line.startswith("cgroup of the ranks"))
    assert path == "none" or path.startswith("/")


@pytest.mark.parametrize("is_ignored", [True, False])
def test_an_ignored_interrupt_is_logged_once_and_without_a_warning(place: Place, is_ignored: bool) -> None:
    action = signal.SIG_IGN if is_ignored else signal.SIG_DFL
    # Without a terminal, in whose foreground it would be handled.
    ignore = lambda: signal.signal(signal.SIGINT, action)  # noqa: E731
    ended = place.run("train.py", preexec_fn=ignore, start_new_session=True)
    line = "SIGINT is ignored, as it was when this launcher started; SIGTERM stops the job"
    assert [text for text in logged(ended, "INFO") if "SIGINT" in text] == [line] * is_ignored
    assert logged(ended, "WARNING") == []


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.0 404 No\r\nContent-Length: 0\r\n\r\n"])
def test_the_holder_of_the_masters_port_is_named(place: Place, reply: bytes) -> None:
    """A program that does not answer, and one that is no master."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while reply:
                try:
                    with server.accept()[0] as link:
                        link.recv(1 << 16)
                        link.sendall(reply)
                except OSError:
                    return

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        ended = place.run(f"--master=127.0.0.1:{port}", "--nnodes=2", "--join_timeout=1", "train.py")
        server.shutdown(socket.SHUT_RDWR)  # Wakes the thread.
    thread.join()
    assert ended.status == 73
    (line,) = ended.error_lines()
    assert line.startswith(f"rlaunch: error: --master 127.0.0.1:{port}: ")
    assert f"port {port} is in use by pid {os.getpid()} (" in line


def test_a_number_of_servers_that_starts_one_nevertheless_has_a_warning(place: Place) -> None:
    (place.folder / "empty.py").touch()
    ended = place.run("--server_num=0", "--trainer_num=2", "empty.py")
    assert ended.status == 0, ended.stderr
    (line,) = logged(ended, "WARNING")
    assert (
        line
        == "--server_num 0 starts 1 server, as in Paddle; for ranks without servers give --nproc_per_node"
    )


def test_nodes_of_one_machine_say_once_that_their_master_is_for_this_machine_alone(place: Place) -> None:
    args = [f"--master=127.0.0.1:{free_ports(1)}", "--nnodes=2", "--join_timeout=60", "train.py"]
    with place.start("--log_dir=other", *args) as other:
        ends = [place.run(*args), place.wait(other)]
    assert [end.status for end in ends] == [0, 0], [end.stderr for end in ends]
    said = [line for end in ends for line in logged(end, "WARNING")]
    assert [line.partition(" is ")[2] for line in said] == [
        "a loopback address: nodes on other machines cannot reach it"
    ]
