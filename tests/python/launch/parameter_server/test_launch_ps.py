"""Parameter-server jobs, with processes that need no framework, and with Paddle's own reader."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from launching import Place, await_line, environment, free_ports, insist, supervisor_of, until
from serving import TALK, lines, script
from test_launch_report import checked

COUNTS = ["--server_num=2", "--trainer_num=2"]
LEGACY = ["--server_num=1", "--worker_num=2"]


def addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    first = free_ports(count)
    return [f"{host}:{port}" for port in range(first, first + count)]


# --- Processes that talk. --------------------------------------------------------------------------------


def test_servers_and_workers_talk_at_their_endpoints(place: Place) -> None:
    script(place, TALK)
    ended = place.run(*COUNTS, "train.py")
    assert ended.status == 0, ended.stderr
    logs = {name for name in place.names("log") if "log." in name}
    assert logs == {"serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1"}
    for server in range(2):
        heard = [f"TRAINER.{worker} heard PSERVER.{server}" for worker in range(2)]
        assert lines(place, f"serverlog.{server}") == sorted(["TRAINER.0", "TRAINER.1", *heard])
    for worker in range(2):
        heard = [f"PSERVER.{server} heard TRAINER.{worker}" for server in range(2)]
        assert lines(place, f"workerlog.{worker}") == ["PSERVER.0", *heard[:1], "PSERVER.1", *heard[1:]]
    # The console shows the first worker: a user who watches wants to see it train.
    assert ended.stdout == place.log(0)


def test_each_process_is_called_by_its_role(place: Place) -> None:
    script(place, TALK)
    ended = place.run(*COUNTS, "--job_id=j", "train.py")
    assert "mode ps, replicas 1[1:1]" in ended.stderr
    assert "replicas 4, status ready; devices cpu; 2 server(s), 2 rank(s)\n" in ended.stderr
    events, result = checked(place)
    expected = [("server", 0), ("server", 1), ("rank", 0), ("rank", 1)]
    assert [(rank["role"], rank["rank"]) for rank in result["ranks"]] == expected
    started = [event for event in events if event["event"] == "rank_started"]
    assert [(event["role"], event["rank"]) for event in started] == expected
    (listed,) = (place.folder / "log").glob("j.*.log")
    assert [line.split(" local_rank")[0] for line in listed.read_text().splitlines()] == [
        f"{role} {number}" for role, number in expected
    ]


def test_the_legacy_options_have_coordinators_and_later_stages(place: Place) -> None:
    script(place, TALK)
    args = [*LEGACY, "--coordinator_num=1", "--heter_devices=gpu;cpu", "--heter_worker_num=1;2"]
    ended = place.run(*args, "train.py")
    assert ended.status == 0, ended.stderr
    assert lines(place, "coordinator.0") == ["COORDINATOR.0"]
    assert [lines(place, f"heterlog.{i}") for i in range(3)] == [[f"HETER_TRAINER.{i}"] for i in range(3)]
    assert lines(place, "serverlog.0")[:2] == ["TRAINER.0", "TRAINER.0 heard PSERVER.0"]
    _, result = checked(place)
    assert [rank["role"] for rank in result["ranks"]] == [
        "server", "rank", "rank", "coordinator", *["heter worker"] * 3
    ]  # fmt: skip


def test_two_nodes_talk(tmp_path: Path) -> None:
    first, second = (addresses(3, host) for host in ("127.0.0.1", "127.0.0.2"))
    # In the order of no node.
    servers, workers = [second[0], first[0]], [first[1], second[1], first[2], second[2]]
    args = [
        f"--servers={','.join(servers)}",
        f"--trainers={','.join(workers)}",
        "--gloo_port",
        str(free_ports(1)),
    ]
    nodes = [Place(tmp_path / name) for name in ("first", "second")]
    with contextlib.ExitStack() as stack:
        launchers = []
        for node, host in zip(nodes, ("127.0.0.1", "127.0.0.2"), strict=True):
            node.folder.mkdir()
            script(node, TALK)
            meet = environment(MEET=str(tmp_path))
            launchers.append(stack.enter_context(node.start(*args, f"--host={host}", "train.py", env=meet)))
        ends = [node.wait(launcher) for node, launcher in zip(nodes, launchers, strict=True)]
    assert [end.status for end in ends] == [0, 0], ends
    for node, server in zip(nodes, (1, 0), strict=True):
        said = [f"TRAINER.{i}{heard}" for i in range(4) for heard in ("", f" heard PSERVER.{server}")]
        assert lines(node, "serverlog.0") == sorted(said)
    roles = [[(r["role"], r["rank"]) for r in node.result()["ranks"]] for node in nodes]
    assert roles == [[("server", 1), ("rank", 0), ("rank", 2)], [("server", 0), ("rank", 1), ("rank", 3)]]


def test_the_rendezvous_port_and_folder_are_there_for_the_processes_alone(place: Place) -> None:
    script(
        place,
        """
        folder = os.environ["PADDLE_GLOO_FS_PATH"]
        host, port = os.environ["PADDLE_GLOO_HTTP_ENDPOINT"].split(":")
        if role == "PSERVER":
            listener = socket.create_server((host, int(port)))
            answer(listener)
        else:
            print(oct(os.stat(folder).st_mode), os.listdir(folder), call((host, int(port)), who))
            open(f"{folder}/left", "w").close()
            tell("folder", folder)
    """,
    )
    for args in (["--server_num=1"], ["--server_num=1", "--worker_num=1"]):
        ended = place.run(*args, "--log_overwrite=1", "train.py")
        assert (ended.status, ended.stdout) == (0, b"0o40700 [] PSERVER.0 heard TRAINER.0\n"), ended.stderr
        assert not Path(place.text("folder.TRAINER.0")).exists()


@pytest.mark.parametrize("who", ["supervisor", "front"])
def test_the_folder_goes_with_a_launcher_that_is_killed(place: Place, who: str) -> None:
    script(place, 'tell("ready", os.environ["PADDLE_GLOO_FS_PATH"]); sleep()')
    with place.start("--server_num=1", "train.py") as launcher:
        ready = place.folder / "ready.PSERVER.0"
        until(ready.exists, "the server")
        folder = Path(ready.read_text())
        assert folder.is_dir()
        supervisor = supervisor_of(launcher)
        os.kill(supervisor.pid if who == "supervisor" else launcher.pid, signal.SIGKILL)
        launcher.wait()
        until(lambda: not folder.exists(), "the end of the folder")


# --- Impossible jobs, and unusual possible ones. ---------------------------------------------------------


def test_a_port_in_use_is_refused_by_its_endpoint(place: Place) -> None:
    script(place, "")
    server, worker = addresses(2)
    with socket.create_server(("127.0.0.1", int(worker.split(":")[1]))):
        ended = place.run(f"--servers={server}", f"--trainers={worker}", "train.py")
    assert ended.status == 66
    (line,) = ended.error_lines()
    assert line.startswith(
        f"rlaunch: error: the endpoint {worker}: port {worker.split(':')[1]} is in use by pid"
    )


def test_the_usual_rendezvous_port_may_be_another_program_s(place: Place) -> None:
    script(place, TALK)
    server, worker = addresses(2)
    args = [f"--servers={server}", f"--trainers={worker}"]
    with contextlib.ExitStack() as stack:
        # If another process has it already, all the better.
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("", 6767)))
        ended = place.run(*args, "train.py")
        assert ended.status == 0, ended.stderr
        assert "the endpoint 127.0.0.1:6767: port 6767 is in use" in ended.stderr
        refused = place.run(*args, "--gloo_port=6767", "train.py")
        assert refused.status == 66


def test_the_plan_names_roles(place: Place) -> None:
    script(place, "")
    ended = place.run("--server_num=1", "--worker_num=1", "--dry_run", "train.py")
    table = ended.stdout.decode()
    assert "1 server(s), 1 rank(s) on 1 node" in table
    assert re.search(r"^server 0 +cpu +127.0.0.1:\d+ +serverlog.0$", table, re.MULTILINE)
    assert "variables of server 0\n" in table
    assert not (place.folder / "log").exists()


def test_options_without_effect_here_are_named(place: Place) -> None:
    script(place, TALK)
    ended = place.run("--server_num=1", "--nproc_per_node=4", "--gpus=0", "train.py")
    assert ended.status == 0
    for name in ("nproc_per_node", "devices"):
        assert f"--{name} has no effect on parameter servers" in ended.stderr


def test_workers_get_the_visible_devices_in_turn(place: Place) -> None:
    tells = 'tell("device", os.environ.get("CUDA_VISIBLE_DEVICES"))\n'
    # The server is ended once the workers have ended.
    script(place, tells + 'await_file("device.PSERVER.0")')
    env = environment(CUDA_VISIBLE_DEVICES="4,5")
    assert place.run("--server_num=1", "--worker_num=3", "train.py", env=env).status == 0
    devices = [place.text(f"device.{who}") for who in ("TRAINER.0", "TRAINER.1", "TRAINER.2", "PSERVER.0")]
    assert devices == ["4", "5", "4", "4,5"]
    ended = place.run("--server_num=1", "--worker_num=3", "--gpus=6", "train.py", env=env)
    assert ended.status == 2
    assert "--gpus 6: device 6 is not in CUDA_VISIBLE_DEVICES (4,5)" in ended.stderr


def test_devices_are_named_as_in_jobs_without_servers(place: Place) -> None:
    script(place, 'tell("device", os.environ.get("CUDA_VISIBLE_DEVICES"))')
    args = ["--server_num=1", "--worker_num=2", "--log_overwrite=1"]
    env = environment(CUDA_VISIBLE_DEVICES="GPU-5c1fa6b0,GPU-77d0e1f2,GPU-77aa0000")
    assert place.run(*args, "--gpus=GPU-77d,GPU-5c", "train.py", env=env).status == 0
    assert [place.text(f"device.TRAINER.{i}") for i in range(2)] == ["GPU-77d0e1f2", "GPU-5c1fa6b0"]
    for given, why in [("GPU-77", "matches several devices in"), (";rm", "is not in CUDA_VISIBLE_DEVICES")]:
        ended = place.run(*args, f"--gpus={given}", "train.py", env=env)
        assert ended.status == 2
        (line,) = ended.error_lines()
        assert f"--gpus {given}: " in line
        assert why in line
    env.pop("CUDA_VISIBLE_DEVICES")
    refused = place.run(*args, "--gpus=;rm", "train.py", env=env)
    assert refused.status == 2
    assert "--gpus ;rm: ;rm is not a device" in refused.stderr


# --- Failures and signals. -------------------------------------------------------------------------------

FAILS = """
    tell("ready", os.getpid())
    if who == "{who}":
        for other in {others}:
            await_file(f"ready.{{other}}")
        sys.exit({status})
    sleep()
"""


@pytest.mark.parametrize("args", [["--server_num=1", "--trainer_num=2"], LEGACY])
def test_a_failing_worker_s_status_is_the_job_s(place: Place, args: list[str]) -> None:
    """In Paddle servers are waited for for ever, or the status is 0."""
    script(place, FAILS.format(who="TRAINER.1", others=["PSERVER.0", "TRAINER.0"], status=3))
    ended = place.run(*args, "train.py")
    assert ended.status == 3
    # There it is the place on the node, behind one server, as in Paddle.
    assert "Container failed !!!\nContainer rank 2 status failed cmd [" in ended.stderr
    assert "\nrank 1 failed: exit code 3\n" in ended.stderr
    assert re.search(r"\nrank 0 and server 0 were stopped because of it \(lived", ended.stderr)
    assert re.search(r"\n  on \S+, pid \d+, lived ", ended.stderr)
    _, result = checked(place)
    assert (result["culprit"], result["culprit_role"], result["exit_status"]) == (1, "rank", 3)


def test_a_failing_server_is_named_as_one(place: Place) -> None:
    script(place, FAILS.format(who="PSERVER.1", others=["PSERVER.0", "TRAINER.0", "TRAINER.1"], status=5))
    ended = place.run(*COUNTS, "train.py", env=environment(GITHUB_ACTIONS="true"))
    assert ended.status == 5
    assert "Container failed !!!\nContainer rank 1 status failed cmd [" in ended.stderr
    assert "\nserver 1 failed: exit code 5\n" in ended.stderr
    assert f"  log: {place.folder}/log/serverlog.1\n" in ended.stderr
    annotation = next(line for line in ended.stdout.splitlines() if line.startswith(b"::error "))
    assert annotation.startswith(b"::error title=server 1 failed%3A exit code 5::")
    assert b"server 1 on " in annotation
    _, result = checked(place)
    assert (result["culprit"], result["culprit_role"]) == (1, "server")


def test_a_process_that_cannot_be_started_is_named_by_its_role(place: Place) -> None:
    program = place.folder / "train"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    ended = place.run("--server_num=1", "--no_python", "./train")
    assert ended.status == 71
    assert "rlaunch: error: cannot start server 0 (./train)" in ended.stderr
    assert checked(place)[1]["culprit_role"] == "server"


def test_processes_that_are_waited_for_are_named_by_role(place: Place) -> None:
    script(
        place,
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tell("ready", os.getpid())
        sleep()
    """,
    )
    with place.start(*COUNTS, "--grace_period=600", "train.py") as launcher:
        for who in ("PSERVER.0", "PSERVER.1", "TRAINER.0", "TRAINER.1"):
            until((place.folder / f"ready.{who}").exists, who)
        launcher.terminate()
        await_line(
            launcher.stderr, b"SIGTERM: waiting up to 600 s for rank(s) 0, 1 and server(s) 0, 1 to stop"
        )
        insist(launcher)
        ended = place.wait(launcher)
    assert ended.status == 143
    assert "second signal: killing rank(s) 0, 1 and server(s) 0, 1" in ended.stderr
    assert "ranks 0, 1 and servers 0, 1 did not end when asked and were killed" in ended.stderr.replace(
        "\n  ", " "
    )
    events, _ = checked(place)
    (forced,) = (event for event in events if event["event"] == "forced")
    assert (forced["living"], forced["living_roles"]) == ([0, 1, 0, 1], ["server", "server", "rank", "rank"])


def test_a_restart_names_the_role(place: Place) -> None:
    script(place, 'sys.exit(7) if who == "PSERVER.0" else sleep()')
    ended = place.run("--server_num=1", "--max_restart=1", "--restart_delay=0", "train.py")
    assert ended.status == 7
    assert "server 0 failed first, with exit code 7; restart 1 (at most 1)" in ended.stderr
    events, result = checked(place)
    assert result["attempts"][0]["culprit_role"] == "server"
    assert [event["culprit_role"] for event in events if event["event"] == "restarting"] == ["server"]
    assert (place.folder / "log/rlaunch/attempt-0/serverlog.0").exists()


def test_the_console_shows_all_behind_their_names(place: Place) -> None:
    # Servers are stopped when the trainers have ended, so these wait for what the servers print.
    body = """
import os
print(who, flush=True)
open(who, "w").close()
while who.startswith("TRAINER") and not all(os.path.exists(f"PSERVER.{i}") for i in range(2)):
    time.sleep(0.01)
"""
    script(place, body)
    ended = place.run(*COUNTS, "--console_ranks=all", "train.py")
    assert sorted(ended.stdout.splitlines()) == [
        b"[rank 0] TRAINER.0", b"[rank 1] TRAINER.1", b"[server 0] PSERVER.0", b"[server 1] PSERVER.1"
    ]  # fmt: skip
    # Numbers are those of ranks.
    assert place.run(*COUNTS, "--console_ranks=1", "--log_overwrite=1", "train.py").stdout == b"TRAINER.1\n"


# --- Paddle's job platform, Paddle's reader, RPC. --------------------------------------------------------

CLOUD = {
    "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2", "POD_IP": "10.0.0.1", "PADDLE_PORT": "7000",
    "PADDLE_TRAINER_ID": "0", "TRAINER_PORTS_NUM": "1", "TRAINING_ROLE": "PSERVER",
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:7000",
}  # fmt: skip


@pytest.mark.parametrize("status", [0, 9])
def test_on_the_platform_the_script_runs_once_and_its_status_counts(place: Place, status: int) -> None:
    script(place, f"tell('env', __import__('json').dumps(dict(os.environ))); sys.exit({status})")
    ended = place.run("--worker_num=2", "train.py", env=environment(**CLOUD))
    assert ended.status == status
    env = json.loads(place.text("env.PSERVER.0"))
    assert {name: env[name] for name in CLOUD} == CLOUD
    assert "PADDLE_GLOO_FS_PATH" not in env
    assert (place.folder / "log/serverlog.0").exists()
    if status:
        assert "\nserver 0 failed: exit code 9\n" in ended.stderr


def test_a_launcher_inside_a_process_of_the_platform_has_its_own_logs(place: Place) -> None:
    inner = '[sys.executable, "-m", "rlaunch", "--nproc_per_node=1", "inner.py"]'
    script(place, f"import subprocess; sys.exit(subprocess.run({inner}).returncode)")
    place.script('print("inner")', "inner.py")
    ended = place.run("--worker_num=2", "train.py", env=environment(**CLOUD))
    assert ended.status == 0, ended.stderr
    assert not (place.folder / "log/workerlog.0").exists()
    assert (place.folder / "log/nested.0/workerlog.0").read_text() == "inner\n"


ONE_LATER_STAGE = ["--heter_devices=cpu", "--heter_worker_num=1"]
READER = """
from paddle.distributed.fleet.base.role_maker import PaddleCloudRoleMaker
maker = PaddleCloudRoleMaker(is_collective=False)
maker._generate_role()
seen = {
    "PSERVER": lambda: ("server", maker._is_server(), maker._server_index()),
    "TRAINER": lambda: ("worker", maker._is_worker(), maker._worker_index()),
    "HETER_TRAINER": lambda: ("heter", maker._is_heter_worker(), maker._get_stage_id()),
    "COORDINATOR": lambda: ("coordinator", maker._is_coordinator(), number),
}[role]()
tell("seen", (*seen, maker._worker_num(), len(maker._get_pserver_endpoints())))
# Once all workers have ended, the others are asked to stop.
if role == "TRAINER":
    for name, list_ in lists.items():
        for other in range(len(list_)):
            await_file(f"seen.{name}.{other}")
"""


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            [*COUNTS, "--with_gloo=0"],
            {
                "PSERVER.0": ("server", True, 0, 2, 2), "PSERVER.1": ("server", True, 1, 2, 2),
                "TRAINER.0": ("worker", True, 0, 2, 2), "TRAINER.1": ("worker", True, 1, 2, 2),
            },
        ),
        (
            ["--server_num=1", "--worker_num=1", "--coordinator_num=1", *ONE_LATER_STAGE],
            {
                "PSERVER.0": ("server", True, 0, 1, 1), "TRAINER.0": ("worker", True, 0, 1, 1),
                "HETER_TRAINER.0": ("heter", True, 2, 1, 1),
                "COORDINATOR.0": ("coordinator", True, 0, 1, 1),
            },
        ),
    ],
)  # fmt: skip
def test_paddle_s_role_maker_reads_the_variables(
    place: Place, args: list[str], expected: dict[str, tuple[str, bool, int, int, int]]
) -> None:
    script(place, READER, framework="paddle")
    ended = place.run(*args, "train.py")
    assert ended.status == 0, ended.stderr
    assert {who: place.text(f"seen.{who}") for who in expected} == {
        who: str(seen) for who, seen in expected.items()
    }


def test_no_process_of_a_job_with_servers_outlives_the_launcher(place: Place) -> None:
    script(place, 'tell("ready", os.getpid()); sleep()')
    with place.start(*COUNTS, "train.py") as launcher:
        names = [f"ready.{who}" for who in ("PSERVER.0", "PSERVER.1", "TRAINER.0", "TRAINER.1")]
        until(lambda: set(names) <= place.names(), "all of them")
        processes = [psutil.Process(int(place.text(name))) for name in names]
        launcher.kill()
        launcher.wait()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess, subprocess.TimeoutExpired):
                process.wait(20)
        assert not any(process.is_running() for process in processes)


NESTED = """
    import subprocess
    if role == "TRAINER":
        inner = [sys.executable, "-m", "rlaunch", "--nproc_per_node=2", "--log_dir=inner", "inner.py"]
        sys.exit(subprocess.run(inner).returncode)
"""


def test_a_launcher_inside_a_worker_makes_a_job_of_its_own(place: Place) -> None:
    script(place, NESTED)
    place.script(
        'tell("seen", [os.environ["PADDLE_TRAINERS_NUM"], os.environ.get("TRAINING_ROLE")])', "inner.py"
    )
    ended = place.run("--server_num=1", "--trainer_num=1", "train.py")
    assert ended.status == 0, place.log(0)
    assert [place.text(f"seen.{rank}") for rank in range(2)] == ["['2', None]"] * 2
    assert place.names("inner") >= {"workerlog.0", "workerlog.1"}


def test_a_server_may_end_first_and_a_node_of_servers_waits_for_them(tmp_path: Path) -> None:
    place = Place(tmp_path)
    script(place, 'await_file("go.0") if role == "TRAINER" else tell("ended"); open("go.0", "w").close()')
    assert place.run("--server_num=2", "--trainer_num=1", "train.py").status == 0
    (server,), (worker,) = addresses(1, "127.0.0.1"), addresses(1, "127.0.0.2")
    script(place, "await_file('go.1'); tell('server')")
    args = [
        f"--servers={server}",
        f"--workers={worker}",
        "--host=127.0.0.1",
        "--http_port",
        str(free_ports(1)),
    ]
    with place.start(*args, "train.py") as launcher:
        until((place.folder / "log/serverlog.0").exists, "the server")
        assert launcher.poll() is None
        (place.folder / "go.1").touch()
        ended = place.wait(launcher)
    assert ended.status == 0, ended.stderr
    assert (place.folder / "server.PSERVER.0").exists()
