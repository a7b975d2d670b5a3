"""Several nodes that rendezvous at node 0's store: their numbers, and messages about lost nodes."""

from __future__ import annotations

import json
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, hosts
from launching import Ended, await_line, until
from preloaded import python
from torch_launching import TELL, TorchPlace

UNMET, NOT_MET, STORE_LOST, FAILED_ELSEWHERE, STOPPED_ELSEWHERE = 66, 73, 74, 76, 77
PORT = 29611
OURS, TORCHS = "rlaunch.run", "torch.distributed.run"

# Asks the store at MASTER_ADDR:MASTER_PORT for an answer, as torch's clients do.
ASK = f"""
import socket, struct
def ask():
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 20) as store:
        store.sendall({struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 77)!r})
        return struct.unpack("<I", store.recv(4, socket.MSG_WAITALL))[0]
"""

REDUCE = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
number = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(number)
tell("reduced", f"{dist.get_world_size()} {number.item()}")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def three() -> Iterator[list[Host]]:
    with hosts(3) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


class Job:
    """The launchers of one job, none of which outlives it."""

    def __init__(
        self, place: TorchPlace, on: list[Host], master: str | None = None, nnodes: int | None = None
    ) -> None:
        self.place, self.on, self.are_numbered = place, on, True
        self.master, self.nnodes = master or on[0].ip, nnodes or len(on)
        self.launchers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for launcher in self.launchers:
            with self.place.cleaned(launcher):
                pass

    def node(
        self, number: int, *args: str, host: Host | None = None, module: str = OURS, **variables: str
    ) -> subprocess.Popen[bytes]:
        where = [f"--nnodes={self.nnodes}", f"--master-addr={self.master}", f"--master-port={PORT}"]
        command = [
            *(python("torch") if module == TORCHS else [sys.executable]),
            "-m",
            module,
            *where,
            *([f"--node-rank={number}"] if self.are_numbered else []),
            f"--log-dir=log.{number}",
            *args,
        ]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        env = self.place.environment(**variables)
        launcher = (host or self.on[number]).run(command, cwd=self.place.folder, env=env, **pipes)
        self.launchers.append(launcher)
        return launcher

    def ends(self) -> list[Ended]:
        return [self.place.wait(launcher) for launcher in self.launchers]

    def end_successfully(self) -> list[Ended]:
        ends = self.ends()
        assert [end.status for end in ends] == [0] * len(ends), [end.stderr for end in ends]
        return ends


def variables(place: TorchPlace, names: set[str] | None = None) -> list[dict[str, str]]:
    """The ranks' variables, as TELL has written them."""
    of_launcher = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCH", "GLOO_", "NCCL_")
    found = [
        {name: value for name, value in seen["env"].items() if name.startswith(of_launcher)}
        for seen in place.seen()
    ]
    return [{name: one.get(name, "") for name in names} for one in found] if names else found


def listening(host: Host) -> set[str]:
    """The addresses at which any process on a host listens at the job's port."""
    command = [sys.executable, "-c", "print(open('/proc/net/tcp').read() + open('/proc/net/tcp6').read())"]
    with host.run(command, stdout=subprocess.PIPE) as reader:
        text = reader.communicate()[0].decode()
    rows = [line.split() for line in text.splitlines()]
    return {
        row[1].split(":")[0]
        for row in rows
        if len(row) > 9 and row[3] == "0A" and row[1].endswith(f":{PORT:04X}")
    }


def result_of(place: TorchPlace, node: int) -> dict[str, Any]:
    found = next((place.folder / f"log.{node}").glob("*/rlaunch/result.json"))
    result: dict[str, Any] = json.loads(found.read_text())
    return result


def test_numbers_go_by_nodes_and_by_roles(place: TorchPlace, three: list[Host]) -> None:
    (place.folder / "tell.py").write_text(TELL)
    with Job(place, three) as job:
        # The last comes first.
        for number, role in ((2, "actor"), (1, "critic"), (0, "actor")):
            job.node(number, f"--nproc-per-node={number + 1}", f"--role={role}", "--rdzv-id=N", "tell.py")
        job.end_successfully()
    got = variables(
        place, {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    )
    expected = [(0, 0, 0, 0, 4, 1), (1, 0, 1, 0, 2, 2), (2, 1, 1, 1, 2, 2)]
    expected += [(3 + local, local, 2, 1 + local, 4, 3) for local in range(3)]
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert [tuple(int(one[name]) for name in names) for one in got] == expected
    alike = variables(
        place, {"WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
    )
    ip = three[0].ip
    one = {"WORLD_SIZE": "6", "GROUP_WORLD_SIZE": "3", "MASTER_ADDR": ip, "MASTER_PORT": str(PORT)}
    assert alike == [{**one, "TORCHELASTIC_RUN_ID": "N"}] * 6


def test_interface_variables_name_the_interface_to_the_master(place: TorchPlace, three: list[Host]) -> None:
    (place.folder / "tell.py").write_text(TELL)
    with Job(place, three[:2]) as job:
        job.node(0, "tell.py")
        job.node(1, "tell.py", GLOO_SOCKET_IFNAME="other")
        job.end_successfully()
    names = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
    wire = {"GLOO_SOCKET_IFNAME": "wire", "NCCL_SOCKET_IFNAME": "=wire"}
    assert variables(place, names) == [wire, {**wire, "GLOO_SOCKET_IFNAME": "other"}]


def test_the_store_listens_at_the_masters_address_alone_and_ipv6_will_do(
    place: TorchPlace, three: list[Host]
) -> None:
    body = f'{ASK}\ntell("asked", ask())\nif rank == 0: await_file("looked.9")'
    script = place.script(body)
    with Job(place, three[:2], master=three[0].ipv6) as job:
        job.node(0, script)
        job.node(1, script)
        until(lambda: (place.folder / "asked.1").exists(), "an answer")
        assert [len(listening(host)) for host in three[:2]] == [1, 0]
        assert listening(three[0]) != {"0" * 32}
        (place.folder / "looked.9").touch()
        job.end_successfully()
    assert [place.text(f"asked.{rank}") for rank in range(2)] == ["77", "77"]


def test_the_store_is_there_until_the_last_has_ended(place: TorchPlace, three: list[Host]) -> None:
    body = f'{ASK}\ntell("ready")\nif rank == 1:\n    await_file("go.9")\n    tell("asked", ask())'
    script = place.script(body)
    with Job(place, three[:2]) as job:
        first = job.node(0, script)
        second = job.node(1, script)
        until(lambda: (place.folder / "ready.1").exists(), "rank 1")
        line = await_line(first.stderr, b"serves the store")
        assert b"until node 1 has ended" in line
        assert first.poll() is None
        (place.folder / "go.9").touch()
        assert [place.wait(second).status, place.wait(first).status] == [0, 0]
    assert place.text("asked.1") == "77"


def test_a_waiting_node_names_the_missing_nodes_and_gives_up(place: TorchPlace, three: list[Host]) -> None:
    script = place.script("tell('ran')")
    with Job(place, three[:2], nnodes=4) as job:
        # Ready before node 0's time begins.
        await_line(job.node(1, "--rdzv-conf=timeout=30", script).stderr, b"waiting for node 0's store")
        job.node(0, "--rdzv-conf=timeout=8", script)
        one, zero = job.ends()
    assert (zero.status, one.status) == (NOT_MET, NOT_MET)
    assert "rlaunch: waiting for nodes 2 and 3; here: nodes 0 and 1; " in zero.stderr
    assert "rlaunch: waiting for nodes 2 and 3; " in one.stderr
    (line,) = zero.error_lines()
    assert "nodes 2 and 3 did not come within 8 s" in line
    (line,) = one.error_lines()
    assert "node 0 has given up: nodes 2 and 3 did not come" in line
    assert not {name for name in place.names() if name.startswith(("log", "ran"))}


def test_a_missing_master_is_an_error_after_the_timeout(place: TorchPlace, three: list[Host]) -> None:
    with Job(place, three[:2]) as job:
        job.node(1, "--rdzv-conf=timeout=1", place.script(""))
        (end,) = job.ends()
    assert end.status == NOT_MET
    assert f"node 0's store at {three[0].ip}:{PORT}: not reached within 1 s" in end.error_lines()[0]


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_wait_ends_at_once_and_quietly(
    place: TorchPlace, three: list[Host], node: int, number: int
) -> None:
    script = place.script("")
    with Job(place, three[:2], nnodes=3) as job:
        waiting = job.node(0, script) if node == 0 else job.node(1, script)
        if node == 0:
            until(lambda: listening(three[0]), "node 0's store")
        else:
            await_line(waiting.stderr, b"waiting for node 0's store")
        began = time.monotonic()
        waiting.send_signal(number)
        end = place.wait(waiting)
    assert time.monotonic() - began < 3
    assert (end.status, end.stderr) == (128 + number, "")


def test_duplicate_node_rank_is_an_error(place: TorchPlace, three: list[Host]) -> None:
    script = place.script("")
    with Job(place, three, nnodes=3) as job:
        job.node(0, script)
        job.node(1, script)
        # The one of the two that comes second.
        job.node(1, script, host=three[2])
        first, twin = job.launchers[1:]
        until(lambda: first.poll() is not None or twin.poll() is not None, "the end of one")
        out = first if first.poll() is not None else twin
        end = place.wait(out)
        assert end.status == NOT_MET
        # The launcher itself may notice it first, or node 0.
        assert re.search("--node-rank 1.*give each its own --node-rank", end.error_lines()[0])


def test_a_node_that_goes_while_others_are_waited_for_may_come_again(
    place: TorchPlace, three: list[Host]
) -> None:
    script = place.script("tell('ran')")
    with Job(place, three) as job:
        zero = job.node(0, script)
        gone = job.node(1, script)
        await_line(zero.stderr, b"here: nodes 0 and 1")
        gone.kill()
        gone.wait()
        again = job.node(1, script)
        two = job.node(2, script)
        assert [place.wait(launcher).status for launcher in (zero, again, two)] == [0, 0, 0]


def test_a_failed_node_is_named_and_waited_for_no_longer(place: TorchPlace, three: list[Host]) -> None:
    body = "if rank == 1: sys.exit(7)\nif rank == 0: await_file('ended.9')"
    script = place.script(body)
    with Job(place, three[:2]) as job:
        zero, one = job.node(0, script), job.node(1, script)
        assert place.wait(one).status == 7
        (place.folder / "ended.9").touch()
        end = place.wait(zero)
    assert end.status == 0
    assert "node 1 failed: rank 1: exit code 7" in end.stderr


def test_a_lost_node_is_named_and_waited_for_no_longer(place: TorchPlace, three: list[Host]) -> None:
    script = place.script("tell('ready')\nif rank == 1: sleep()")
    with Job(place, three[:2]) as job:
        zero, one = job.node(0, script), job.node(1, script)
        await_line(zero.stderr, b"serves the store until node 1")
        one.kill()
        end = place.wait(zero)
    assert end.status == 0
    assert "node 1 is lost: its launcher ended" in end.stderr


@pytest.mark.parametrize("how", ["killed", "failed", "stopped"])
def test_without_node_0_the_others_stop_at_once(place: TorchPlace, three: list[Host], how: str) -> None:
    fail = "if rank == 0 and sys.argv[1] == 'failed': await_file('ready.1'); sys.exit(9)"
    body = f"tell('ready')\n{fail}\nsleep()"
    script = place.script(body)
    with Job(place, three[:2]) as job:
        zero, one = job.node(0, script, how), job.node(1, script, how)
        until(lambda: (place.folder / "ready.1").exists(), "rank 1")
        if how == "killed":
            zero.kill()
        elif how == "stopped":
            zero.terminate()
        zero.wait()
        began = time.monotonic()
        end = place.wait(one)
    assert time.monotonic() - began < 2
    expected = {
        "killed": (STORE_LOST, "store_lost", "node 0's store has gone"),
        "failed": (FAILED_ELSEWHERE, "failed", "the job has failed: rank 0 on node 0 .* exit code 9"),
        "stopped": (STOPPED_ELSEWHERE, "stopped", "the job was stopped: the launcher on .* received SIGTERM"),
    }
    status, outcome, words = expected[how]
    assert end.status == status, end.stderr
    (line,) = end.error_lines()
    assert re.search(words, line)
    result = result_of(place, 1)
    assert (result["outcome"], result["exit_status"]) == (outcome, status)
    culprit = result["job_culprit"]
    if how == "failed":
        assert (culprit["node"], culprit["rank"], culprit["exit"]) == (0, 0, {"code": 9})
        assert result_of(place, 0)["job_culprit"] == culprit
    elif how == "stopped":
        assert culprit["text"] == "its launcher received SIGTERM"
    else:
        assert culprit is None


# Rank 1 fails, and the others lose their connection to it.
FOLLOW = """
if rank == 1:
    await_file("ready.0"), await_file("ready.2")
    raise ValueError("loss is nan")
tell("ready")
await_file("failed.9")
raise RuntimeError("[gloo/transport/tcp/pair.cc:545] Connection closed by peer [127.0.0.1]:1")
"""


def test_victims_of_another_nodes_failure_name_it(place: TorchPlace, three: list[Host]) -> None:
    script = place.script(FOLLOW)
    with Job(place, three) as job:
        zero, one, two = (job.node(number, script) for number in range(3))
        end = place.wait(one)
        assert end.status == 1, end.stderr
        (place.folder / "failed.9").touch()
        for number, launcher in ((2, two), (0, zero)):
            end = place.wait(launcher)
            assert end.status == FAILED_ELSEWHERE, end.stderr
            assert re.search("the job has failed: rank 1 on node 1 .*ValueError: loss is nan", end.stderr)
            result = result_of(place, number)
            assert (result["outcome"], result["culprit"]) == ("failed", None)
            culprit = result["job_culprit"]
            assert (culprit["node"], culprit["rank"], culprit["exit"]) == (1, 1, {"code": 1})
            assert (culprit["exception"], culprit["text"]) == ("ValueError", "loss is nan")


# Rank 1 fails, and rank 2, of the same node, needs a long time to end. Meanwhile node 0 ends, or is killed.
RESTART = """
signal.signal(signal.SIGTERM, lambda *_: (tell(f"asked{attempt}"), await_file("go.9"), os._exit(0)))
tell(f"began{attempt}")
if rank == 1: await_file("began0.2"), sys.exit(3)
if rank == 0: await_file("fail.9"), sys.exit(9)
sleep()
"""


@pytest.mark.parametrize("how", ["failed", "killed"])
def test_a_node_that_stops_for_its_own_restart_does_not_start_again_without_node_0(
    place: TorchPlace, three: list[Host], how: str
) -> None:
    script = place.script(RESTART)
    with Job(place, three[:2]) as job:
        zero = job.node(0, "--shutdown-timeout=60", script)
        one = job.node(1, "--max-restarts=3", "--nproc-per-node=2", "--shutdown-timeout=60", script)
        until(lambda: (place.folder / "asked0.2").exists(), "the stop of rank 2")
        if how == "killed":
            zero.kill()
        else:
            (place.folder / "fail.9").touch()
        zero.wait()
        words = b"node 0 failed: rank 0: exit code 9" if how == "failed" else b"node 0's store is lost"
        await_line(one.stderr, words)
        (place.folder / "go.9").touch()
        end = place.wait(one)
    assert not {name for name in place.names() if name.startswith("began1")}
    result = result_of(place, 1)
    if how == "failed":
        assert (end.status, result["outcome"], result["culprit"]) == (FAILED_ELSEWHERE, "failed", None)
        assert (result["job_culprit"]["node"], result["job_culprit"]["rank"]) == (0, 0)
    else:
        assert (end.status, result["outcome"], result["culprit"]) == (3, "failed", 1)


def test_a_failure_has_torchruns_status_on_all_nodes_if_asked_for(
    place: TorchPlace, three: list[Host]
) -> None:
    script = place.script("tell('ready')\nif rank == 0: await_file('ready.1'); sys.exit(9)\nsleep()")
    with Job(place, three[:2]) as job:
        launchers = [job.node(number, "--exit-code-compat", script) for number in range(2)]
        assert [place.wait(launcher).status for launcher in launchers] == [1, 1]


def test_a_link_that_breaks_is_a_lost_node_for_both(place: TorchPlace) -> None:
    script = place.script("tell('ready')\nif rank == 1: sleep()")
    cut = "import pyroute2\nnet = pyroute2.IPRoute()\n(wire,) = net.link_lookup(ifname='wire')\n"
    cut += "net.link('set', index=wire, state='down')"
    with hosts(2) as two, Job(place, two) as job:
        zero, one = job.node(0, script), job.node(1, script)
        await_line(zero.stderr, b"serves the store until node 1")
        with two[1].run([sys.executable, "-c", cut]) as cutter:
            assert cutter.wait() == 0
        assert (place.wait(zero).status, place.wait(one).status) == (0, STORE_LOST)


def test_a_signal_ends_the_wait_for_the_others(place: TorchPlace, three: list[Host]) -> None:
    script = place.script("tell('ready')\nif rank == 1: sleep()")
    with Job(place, three[:2]) as job:
        zero, one = job.node(0, script), job.node(1, script)
        await_line(zero.stderr, b"serves the store until node 1")
        zero.terminate()
        assert place.wait(zero).status == 128 + signal.SIGTERM
        assert place.wait(one).status == STOPPED_ELSEWHERE


def test_a_node_restarts_its_own_workers_and_no_others(place: TorchPlace, three: list[Host]) -> None:
    body = """
tell(f"began{attempt}", ask())
if rank == 1 and attempt == 0: sys.exit(3)
if rank == 0: await_file("began1.1")
"""
    script = place.script(ASK + body)
    with Job(place, three[:2]) as job:
        job.node(0, "--max-restarts=1", script)
        job.node(1, "--max-restarts=1", script)
        zero, _ = job.end_successfully()
    assert {"began0.0", "began0.1", "began1.1"} == {
        name for name in place.names() if name.startswith("began")
    }
    assert "--max-restarts: workers of this node are started again alone" in zero.stderr


def test_a_master_that_is_elsewhere_is_refused_on_node_0(place: TorchPlace, three: list[Host]) -> None:
    with Job(place, three[:2], master=three[1].ip) as job:
        job.are_numbered = False  # Node 0 by default: the number may have been forgotten.
        job.node(0, place.script(""))
        (end,) = job.ends()
    assert end.status == UNMET
    assert (
        "this machine does not have that address, and node 0 serves the store there" in end.error_lines()[0]
    )


def test_a_master_on_loopback_is_warned_of(place: TorchPlace, three: list[Host]) -> None:
    script = place.script("")
    with Job(place, [three[0], three[0]], master="127.0.0.1") as job:
        job.node(0, script)
        job.node(1, script)
        ends = job.end_successfully()
    assert ["127.0.0.1 is a loopback address" in end.stderr for end in ends] == [True, True]


def test_a_dry_run_waits_for_no_node(place: TorchPlace, three: list[Host]) -> None:
    with Job(place, three) as job:
        job.node(1, "--nproc-per-node=2", "--dry-run=json", place.script(""))
        (end,) = job.ends()
    plan: dict[str, Any] = json.loads(end.stdout)
    assert end.status == 0
    assert [rank["rank"] for rank in plan["ranks"]] == [2, 3]


@pytest.mark.parametrize("modules", [(OURS, OURS), (OURS, TORCHS), (TORCHS, OURS)])
def test_nodes_of_different_launchers_train_together(
    place: TorchPlace, three: list[Host], modules: tuple[str, str]
) -> None:
    script = place.script(f"{TELL}\n{REDUCE}", framework="torch")
    with Job(place, three[:2]) as job:
        for number, module in enumerate(modules):
            tune = {"GLOO_SOCKET_IFNAME": "wire"} if module == TORCHS else {}
            job.node(number, f"--nproc-per-node={number + 1}", script, module=module, **tune)
        ends = job.end_successfully()
    # The text of torchrun when a store goes too early.
    assert not [end.stderr for end in ends if "exit barrier" in end.stderr]
    assert [place.text(f"reduced.{rank}") for rank in range(3)] == ["3 6.0"] * 3
    # Real torchrun's variables are ours, but for one of ours that helps.
    zero, one, _ = variables(place)
    assert set(zero) | {"NCCL_SOCKET_IFNAME"} == set(one) | {"NCCL_SOCKET_IFNAME"}
    own = {
        "RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "LOCAL_WORLD_SIZE",
        "TORCHELASTIC_ERROR_FILE",
        "NCCL_SOCKET_IFNAME",
    }
    assert {name: value for name, value in zero.items() if name not in own} == {
        name: value for name, value in one.items() if name not in own
    }
