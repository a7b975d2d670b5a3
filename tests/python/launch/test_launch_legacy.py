"""The legacy launcher, ``--legacy``, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from launching import ATTEMPT, Ended, Host, Place, await_gone, environment, free_ports, supervisor_of, until
from preloaded import head

KILLED, LOST = 128 + signal.SIGKILL, 72


@pytest.fixture
def own(place: Place) -> Path:
    """The folder in which a job's folder is made."""
    own = place.folder / "tmp"
    own.mkdir()
    return own


def lines(ended: Ended) -> list[str]:
    return ended.stdout.decode().splitlines()


# --- Variables of ranks, and files beside their logs. -----------------------------------------------------


def test_two_ranks_without_devices(place: Place, own: Path) -> None:
    env = environment(
        TMPDIR=str(own), http_proxy="http://127.0.0.1:1", HTTPS_PROXY="x", CUDA_VISIBLE_DEVICES=""
    )
    before = dict(env)
    ranks = place.tell("--legacy", "1", "--nproc_per_node", "2", env=env)
    assert len(ranks) == 2
    endpoints = ranks[0]["env"]["PADDLE_TRAINER_ENDPOINTS"]
    assert len(set(endpoints.split(","))) == 2
    folders = {rank["env"]["PADDLE_GLOO_FS_PATH"] for rank in ranks}
    assert {Path(folder).parent for folder in folders} == {own}
    for number, rank in enumerate(ranks):
        new = {n: v for n, v in rank["env"].items() if before.get(n) != v and not n.startswith("RLAUNCH_")}
        assert new == {
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
            "PADDLE_CURRENT_ENDPOINT": endpoints.split(",")[number],
            "PADDLE_DISTRI_BACKEND": "gloo",
            "PADDLE_GLOO_FS_PATH": folders.copy().pop(),
            "PADDLE_GLOO_RENDEZVOUS": "3",
            "PADDLE_LOCAL_DEVICE_IDS": "",
            "PADDLE_RANK_IN_NODE": str(number),
            "PADDLE_TRAINERS_NUM": "2",
            "PADDLE_TRAINER_ENDPOINTS": endpoints,
            "PADDLE_TRAINER_ID": str(number),
            "PADDLE_WITH_GLOO": "0",
            "PADDLE_WORLD_DEVICE_IDS": ",",
        }
        assert set(before) - set(rank["env"]) == {"http_proxy"}
        assert rank["command"][1:] == ["-u", "tell.py"]
        assert rank["session"] == rank["pid"]
    assert place.names("log") == {"endpoints.log", "workerlog.0", "workerlog.1", "rlaunch"}
    expected = "PADDLE_TRAINER_ENDPOINTS: \n" + endpoints.replace(",", "\n")
    assert (place.folder / "log/endpoints.log").read_bytes() == expected.encode()
    assert not list(own.iterdir())


def test_endpoints_are_written_anew(place: Place) -> None:
    (place.folder / "log").mkdir()
    (place.folder / "victim").write_text("mine")
    (place.folder / "log/endpoints.log").symlink_to(place.folder / "victim")
    place.script("")
    first = free_ports(2)
    env = environment(FLAGS_START_PORT=str(first), CUDA_VISIBLE_DEVICES="")
    for _ in range(2):
        assert place.run("--backend=gloo", "--nproc_per_node=2", "train.py", env=env).status == 0
        text = f"PADDLE_TRAINER_ENDPOINTS: \n127.0.0.1:{first}\n127.0.0.1:{first + 1}"
        assert place.text("log/endpoints.log") == text
    assert place.text("victim") == "mine"
    assert place.modes()["endpoints.log"] == 0o600


@pytest.mark.parametrize("options", [["--legacy", "1"], ["--legacy=true"], ["--backend", "gloo"]])
def test_its_script_is_the_script_and_its_arguments_are_its_own(place: Place, options: list[str]) -> None:
    # Not named .py: the legacy launcher has Python run whatever it is given.
    place.script("tell('pid', os.getpid()); print(sys.argv)", "train")
    (place.folder / "train").write_text("import os, sys\n" + place.text("train").replace("import os, ", ""))
    (place.folder / "plain").write_text("import os, sys\nprint(sys.argv, os.getpid())\n")
    ended = place.run(*options, "plain", "--gpus", "7", env=environment(CUDA_VISIBLE_DEVICES=""))
    assert ended.status == 0, ended.stderr
    pid = place.log().split()[-1].decode()
    assert lines(ended)[:2] == ["launch train in CPU mode", f"launch proc_id:{pid} idx:0"]
    assert place.log() == f"['plain', '--gpus', '7'] {pid}\n".encode()
    assert re.search("^LAUNCH WARNING .* launch start with CPUONLY mode$", ended.stderr, re.MULTILINE)
    assert "Local processes completed." in ended.stderr
    assert "Pod completed" not in ended.stderr


def test_a_node_that_is_not_the_first_shows_its_own_first_rank(place: Place) -> None:
    place.script("print('rank', rank, os.environ['FLAGS_selected_gpus'])")
    args = [
        "--legacy=1",
        "--ips=127.0.0.2,127.0.0.3",
        "--host=127.0.0.3",
        "--gpus=5,4,7,6",
        "--nproc_per_node=2",
    ]
    env = environment(CUDA_VISIBLE_DEVICES="4,5,6,7", FLAGS_START_PORT=str(free_ports(2)))
    ended = place.run(*args, "train.py", env=env)
    assert ended.status == 0, ended.stderr
    assert lines(ended)[0] == "launch train in GPU mode!"
    assert lines(ended)[-1] == "rank 2 1,0"
    assert place.log(1) == b"rank 3 3,2\n"


# --- Ends. ------------------------------------------------------------------------------------------------


def test_a_failed_rank_is_named_as_the_legacy_launcher_names_it(place: Place, own: Path) -> None:
    place.script(
        "tell('ready', os.getpid()); await_file('ready.0'); sys.exit(7) if rank == 1 else time.sleep(60)"
    )
    ended = place.run("--legacy=1", "--nproc_per_node=3", "train.py", env=environment(TMPDIR=str(own)))
    # Paddle's status is always 1.
    assert ended.status == 7
    text = "Out of all 3 trainers, the trainer process with rank=[1] was aborted. Please check its log."
    assert re.search(rf"^LAUNCH ERROR .* ABORT!!! {re.escape(text)}$", ended.stderr, re.MULTILINE)
    assert "Pod failed" not in ended.stderr
    assert place.result()["culprit"] == 1
    assert not list(own.iterdir())


def test_a_new_attempt_is_announced_too(place: Place, own: Path) -> None:
    place.script(ATTEMPT + "sys.exit(3 if attempt == 0 else 0)")
    args = ["--legacy=1", "--max_restart=1", "--restart_delay=0", "train.py"]
    ended = place.run(*args, env=environment(TMPDIR=str(own), CUDA_VISIBLE_DEVICES=""))
    assert ended.status == 0, ended.stderr
    pids = [place.text(f"attempt-{n}.0") for n in range(2)]
    assert lines(ended)[1:] == [f"launch proc_id:{pid} idx:0" for pid in pids]


@pytest.mark.parametrize(
    ("who", "sent", "status"),
    [
        ("launcher", signal.SIGTERM, 128 + signal.SIGTERM),
        ("launcher", signal.SIGINT, 128 + signal.SIGINT),
        ("launcher", signal.SIGKILL, -signal.SIGKILL),
        ("supervisor", signal.SIGKILL, LOST),
    ],
)
def test_the_jobs_folder_is_gone_however_the_launcher_ends(
    place: Place, own: Path, who: str, sent: signal.Signals, status: int
) -> None:
    place.script("""
        folder = os.environ["PADDLE_GLOO_FS_PATH"]
        os.makedirs(f"{folder}/deep/{rank}")
        open(f"{folder}/deep/{rank}/file", "w").close()
        tell("ready", os.getpid())
        time.sleep(60)
    """)
    env = environment(TMPDIR=str(own))
    with place.start("--legacy=1", "--nproc_per_node=2", "train.py", env=env) as launcher:
        ranks = place.ready(2)
        (folder,) = own.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        supervisor = supervisor_of(launcher)
        (psutil.Process(launcher.pid) if who == "launcher" else supervisor).send_signal(sent)
        assert Place.wait(launcher).status == status
        await_gone(*ranks)
        until(lambda: not list(own.iterdir()), "the end of the job's folder")


def test_a_dry_run_makes_nothing(place: Place, own: Path) -> None:
    place.script("")
    env = environment(TMPDIR=str(own), CUDA_VISIBLE_DEVICES="")
    ended = place.run("--legacy=1", "--dry_run=json", "train.py", env=env)
    assert json.loads(ended.stdout)["ranks"][0]["env"]["PADDLE_GLOO_FS_PATH"].startswith(f"{own}/rlaunch-")
    assert place.names() == {"train.py", "tmp"}
    assert not list(own.iterdir())


def test_a_folder_that_cannot_be_made_is_said_before_anything_starts(place: Place) -> None:
    place.script("tell('started')")
    ended = place.run("--legacy=1", "train.py", env=environment(TMPDIR=str(place.folder / "nowhere")))
    assert ended.status == 66
    (line,) = ended.error_lines()
    assert re.search("TMPDIR .*nowhere: no folder can be created", line)
    assert not (place.folder / "started.0").exists()


# --- Rank mappings. ---------------------------------------------------------------------------------------

MAPPER = """
names = ["NEED_RANK_MAPPING", "ENABLE_ELASTIC", "RANK_MAPPING_PATH", "CLUSTER_TOPO_PATH", "ORIGINAL_CMD_ARGS"]
names = ["PADDLE_" + name for name in [*names, "ENABLE_AUTO_MAPPING", "WORLD_DEVICE_IDS"]]
variables = {name: os.environ.get(name) for name in [*names, "FLAGS_selected_gpus"]}
if os.environ["PADDLE_NEED_RANK_MAPPING"] == "True":
    print("mapping")
    tell("mapper", repr(variables))
    if os.path.exists("wanted.json"):
        os.rename("wanted.json", os.environ["PADDLE_RANK_MAPPING_PATH"])
    sys.exit(int(sys.argv[1]))
print("training")
tell("trainer", repr(variables))
"""
MAPPED = ["--enable_auto_mapping=1", "--cluster_topo_path=topology.json", "--gpus=4", "train.py"]


@pytest.fixture
def mapped(place: Place) -> Place:
    place.script(MAPPER)
    (place.folder / "topology.json").write_text('{"machines": [{"addr": "127.0.0.1"}]}')
    mapping = [{"hostname": "here", "addr": "127.0.0.1", "ranks": {"1": [4], "0": [5]}}]
    (place.folder / "wanted.json").write_text(json.dumps(mapping))
    return place


GPUS = {"CUDA_VISIBLE_DEVICES": "4,5"}


def test_a_mapping_is_made_and_the_job_goes_on_by_it(mapped: Place, own: Path) -> None:
    env = environment(TMPDIR=str(own), FLAGS_START_PORT=str(free_ports(2)), **GPUS)
    # No mapper is started again: 102 is its good end.
    ended = mapped.run("--max_restart=1", *MAPPED, "102", env=env)
    assert ended.status == 0, ended.stderr
    path = str(mapped.folder / "auto_parallel_rank_mapping.json")
    common = {"PADDLE_CLUSTER_TOPO_PATH": "topology.json", "PADDLE_ENABLE_AUTO_MAPPING": "True"}
    assert eval(mapped.text("mapper.0")) == {
        **common,
        "PADDLE_NEED_RANK_MAPPING": "True",
        "PADDLE_ENABLE_ELASTIC": "True",
        "PADDLE_RANK_MAPPING_PATH": path,
        "PADDLE_ORIGINAL_CMD_ARGS": " ".join(["--max_restart=1", *MAPPED, "102"]),
        "FLAGS_selected_gpus": None,
        "PADDLE_WORLD_DEVICE_IDS": "",
    }
    for rank, device in enumerate("10"):
        assert eval(mapped.text(f"trainer.{rank}")) == {
            **common,
            "PADDLE_NEED_RANK_MAPPING": "False",
            "PADDLE_ENABLE_ELASTIC": "False",
            "PADDLE_RANK_MAPPING_PATH": "",
            "PADDLE_ORIGINAL_CMD_ARGS": None,
            "FLAGS_selected_gpus": device,
            "PADDLE_WORLD_DEVICE_IDS": "1,0",
        }
    assert mapped.text("log/prelaunchlog.0") == "mapping\n"
    assert mapped.log(0) == mapped.log(1) == b"training\n"
    assert not re.search("ABORT|failed|restart 1", ended.stderr)
    assert "the rank mapping is there; starting the job with it" in ended.stderr
    assert mapped.result()["outcome"] == "completed"
    assert not list(own.iterdir())


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_mapping_that_is_there_is_used(mapped: Place, by: str) -> None:
    args, env = (
        (["--rank_mapping_path=wanted.json"], GPUS)
        if by == "option"
        else ([], GPUS | {"PADDLE_RANK_MAPPING_PATH": "wanted.json"})
    )
    ended = mapped.run(*args, *MAPPED, "102", env=environment(**env))
    assert ended.status == 0, ended.stderr
    assert mapped.log(0) == mapped.log(1) == b"training\n"
    assert not (mapped.folder / "mapper.0").exists()


def test_a_mapper_that_fails_is_a_job_that_fails(mapped: Place) -> None:
    ended = mapped.run(*MAPPED, "5", env=environment(**GPUS))
    assert ended.status == 5
    assert "ABORT!!! Out of all 1 trainers, the trainer process with rank=[0] was aborted." in ended.stderr
    assert not (mapped.folder / "trainer.0").exists()


def test_a_mapping_that_was_not_written_is_named(mapped: Place) -> None:
    path = mapped.folder / "auto_parallel_rank_mapping.json"
    # An earlier job's is not this one's.
    text = (mapped.folder / "wanted.json").read_text()
    (mapped.folder / "wanted.json").rename(path)
    ended = mapped.run(*MAPPED, "102", env=environment(**GPUS))
    assert ended.status == 102
    line = f"PADDLE_RANK_MAPPING_PATH {path}: no mapper has written it, though one exited with 102"
    assert re.search(f"^LAUNCH ERROR .* {re.escape(line)}$", ended.stderr, re.MULTILINE)
    assert "the rank mapping is there" not in ended.stderr
    assert mapped.result()["outcome"] == "failed"
    assert not (mapped.folder / "trainer.0").exists()
    assert not path.exists()
    assert path.with_name(path.name + ".old").read_text() == text


def test_an_earlier_mapping_makes_room_for_this_jobs(mapped: Place) -> None:
    path = mapped.folder / "auto_parallel_rank_mapping.json"
    path.write_text("an earlier job's")
    assert mapped.run("--dry_run", *MAPPED, "102", env=environment(**GPUS)).status == 0
    assert path.read_text() == "an earlier job's"
    ended = mapped.run(*MAPPED, "102", env=environment(**GPUS))
    assert ended.status == 0, ended.stderr
    assert mapped.log(0) == mapped.log(1) == b"training\n"
    assert path.with_name(path.name + ".old").read_text() == "an earlier job's"


def test_an_earlier_mapping_that_stays_in_the_way_is_named(mapped: Place) -> None:
    path = mapped.folder / "auto_parallel_rank_mapping.json"
    path.write_text("an earlier job's")
    path.with_name(path.name + ".old").mkdir()
    ended = mapped.run(*MAPPED, "102", env=environment(**GPUS))
    assert ended.status == 66
    (line,) = ended.error_lines()
    assert f"PADDLE_RANK_MAPPING_PATH: {path} belongs to an earlier job and cannot be renamed: " in line
    assert not (mapped.folder / "mapper.0").exists()


def test_a_stop_of_the_mapper_is_the_end(mapped: Place) -> None:
    mapped.script("tell('ready', os.getpid()); await_file('never')")
    with mapped.start(*MAPPED, "102", env=environment(**GPUS)) as launcher:
        mapped.ready(1)
        launcher.send_signal(signal.SIGTERM)
        assert Place.wait(launcher).status == 128 + signal.SIGTERM
    assert not (mapped.folder / "trainer.0").exists()


def test_a_fifo_as_topology_is_refused_without_a_wait(mapped: Place) -> None:
    (mapped.folder / "topology.json").unlink()
    os.mkfifo(mapped.folder / "topology.json")
    ended = mapped.run(*MAPPED, "0", env=environment(**GPUS))
    assert ended.status == 66
    assert (
        "--cluster_topo_path topology.json: cannot be read: it is not a regular file"
        in ended.error_lines()[0]
    )


def test_both_passes_are_one_call_from_python(tmp_path: Path, mapped: Place) -> None:
    host = Host(tmp_path)
    options = "enable_auto_mapping=True, cluster_topo_path='topology.json', gpus='4'"
    host.host(f"""
        report = rlaunch.launch('train.py', '102', {options})
        print(report.exit_status, len(report.ranks))
    """)
    ended = host.run(env=environment(**GPUS))
    assert lines(ended)[-1] == "0 2", ended.stderr


# --- One grammar. -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--legacy=1", "--rank_maping_path=x"], "did you mean --rank_mapping_path?"),
        (["--legacy=1", "--nproc_pre_node=2"], "did you mean --nproc_per_node?"),
        (["--legacy=1", "--backned=gloo"], "did you mean --backend?"),
        (["--legacy=1", "--np=2"], "an elastic job needs --elastic_server, --job_id and --np"),
        (
            ["--legacy=1", "--start_port=7000"],
            "the legacy launcher does not have this option; set FLAGS_START_PORT",
        ),
        (
            ["--legacy=1", "--nnodes=2"],
            "the legacy launcher does not have this option; list the nodes with --ips",
        ),
        (["--backend=gloo", "--master=127.0.0.1:7000"], "the legacy launcher does not have this option"),
        (["--legacy=1", "--gloo_port=7000"], "the legacy launcher does not have this option"),
        (["--legacy=1", "--run_mode=rpc"], "--run_mode rpc: is not a run mode of the legacy launcher"),
        (["--gpus=0", "--selected_gpus=1"], "--selected_gpus 1: --gpus is 0; give one of the two"),
        (["--legacy=1", "--cluster_topo_path=x"], "has no effect without --enable_auto_mapping"),
        (["--legacy=1", "--enable_auto_mapping=maybe"], "neither true nor false"),
    ],
)
def test_unsupported_options_are_refused(place: Place, args: list[str], words: str) -> None:
    place.script("")
    ended = place.run(*args, "train.py")
    assert ended.status == 2
    assert words in ended.error_lines()[0]
    assert place.names() == {"train.py"}


# --- Training. --------------------------------------------------------------------------------------------

TRAIN = """
import paddle, sys
import paddle.distributed as dist

paddle.seed(7)
if sys.argv[1] == "fleet":
    from paddle.distributed import fleet
    fleet.init(is_collective=True)
    wrap = fleet.distributed_model
else:
    dist.init_parallel_env()
    wrap = paddle.DataParallel
model = wrap(paddle.nn.Linear(4, 2))
optimizer = paddle.optimizer.SGD(learning_rate=0.1, parameters=model.parameters())
for step in range(3):
    paddle.seed(100 * dist.get_rank() + step)
    loss = model(paddle.rand([8, 4])).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
total = paddle.to_tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
weights = sum(parameter.abs().sum().item() for parameter in model.parameters())
print("trained", dist.get_rank(), dist.get_world_size(), total.item(), f"{weights:.6f}", flush=True)
"""


@pytest.mark.parametrize(
    ("how", "variables"),
    # The last one has the list of endpoints in a file, where Paddle's store does not look for it.
    [("parallel", {}), ("fleet", {}), ("parallel", {"PADDLE_ENV_LIMIT_LEN": "10"})],
)
def test_two_ranks_train(place: Place, how: str, variables: dict[str, str]) -> None:
    (place.folder / "train.py").write_text(head("paddle") + TRAIN)
    args = ["--legacy=1", "--nproc_per_node=2", "train.py", how]
    ended = place.run(*args, env=environment(CUDA_VISIBLE_DEVICES="", **variables))
    assert ended.status == 0, ended.stderr
    trained = [place.log(rank).decode().split("trained ")[1].split() for rank in range(2)]
    assert [words[:3] for words in trained] == [["0", "2", "3.0"], ["1", "2", "3.0"]]
    assert trained[0][3] == trained[1][3]
