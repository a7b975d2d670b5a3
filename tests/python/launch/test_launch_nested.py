"""A launch inside a rank: a job of its own."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from launching import TELL, Ended, Place, environment, free_ports
from preloaded import python
from test_launch import GLOO, GPUS, XPUS, devices

NESTED = """
import subprocess
env = dict(os.environ, **{new!r})
sys.exit(subprocess.call([sys.executable, "-m", "rlaunch", *{args!r}, "tell.py"], env=env))
"""


def nest(place: Place, outer: list[str], inner: list[str], env: dict[str, str], **new: str) -> Ended:
    """Launches a rank that launches TELL, with `new` added to its environment."""
    (place.folder / "tell.py").write_text(TELL)
    place.script(NESTED.format(new=new, args=inner), "outer.py")
    ended = place.run(*outer, "outer.py", env=env)
    assert ended.status == 0, ended.stderr + ended.stdout.decode()
    return ended


def test_a_nested_launch_is_not_redirected_by_inherited_variables(place: Place) -> None:
    ended = nest(place, ["--log_dir=outer", "--job_id=out"], ["--nproc_per_node=2"], environment())
    assert b"overridden" not in ended.stdout
    (beside,) = place.folder.glob("outer/out.*.log")
    outer_endpoint = beside.read_text().split()[-1]
    first, second = place.seen()
    # Said, and apart from the logs of the outer job.
    inner = place.folder / "outer/nested.0"
    assert "running inside a rank of another job" in place.log(0, "outer").decode()
    assert place.names("outer/nested.0") >= {"workerlog.0", "workerlog.1"}
    assert first["env"]["PADDLE_LOG_DIR"] == str(inner)
    assert second["env"]["PADDLE_TRAINERS_NUM"] == "2"
    assert first["env"]["PADDLE_MASTER"] == second["env"]["PADDLE_MASTER"]
    assert outer_endpoint not in second["env"]["PADDLE_TRAINER_ENDPOINTS"]


def test_variables_set_inside_a_rank_count(place: Place) -> None:
    new = {"PADDLE_LOG_DIR": str(place.folder / "anew"), "PADDLE_JOB_ID": "j", "PADDLE_NPROC_PER_NODE": "2"}
    ended = nest(place, ["--log_dir=outer"], ["--log_dir=inner"], environment(), **new)
    for attribute, name in (("log_dir", "PADDLE_LOG_DIR"), ("job_id", "PADDLE_JOB_ID")):
        line = f"args {attribute} will be overridden by env: {name} value: {new[name]}\n"
        assert line.encode() in ended.stdout
    assert len(place.seen()) == 2
    assert place.names("anew") >= {"workerlog.0", "workerlog.1"}
    assert "inner" not in place.names()


def test_a_nested_launch_with_the_same_log_folder_does_not_feed_on_its_own_output(place: Place) -> None:
    place.script("print('a line')", "inner.py")
    place.script("""
        import subprocess
        sys.exit(subprocess.call([sys.executable, "-m", "rlaunch", "inner.py"]))
    """)
    most = 1 << 22
    ended = place.run("train.py", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
    assert (ended.status, ended.stdout.count(b"a line")) == (0, 1)
    assert place.log().count(b"a line") == 1
    assert (place.folder / "log/nested.0/workerlog.0").read_text() == "a line\n"


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "5"}, {GPUS: "0"}),
        ({"CUDA_VISIBLE_DEVICES": "5"}, {"CUDA_VISIBLE_DEVICES": ""}, GLOO),
        ({"CUDA_VISIBLE_DEVICES": "5"}, {"XPU_VISIBLE_DEVICES": "5"}, {XPUS: "0"}),
    ],
)
def test_a_nested_launch_passes_on_no_device_of_the_outer_one(
    place: Place, outer: dict[str, str], inner: dict[str, str], expected: dict[str, str]
) -> None:
    nest(place, ["--log_dir=outer"], [], environment(**outer), **inner)
    assert devices(place.seen()[0]) == expected


def test_a_nested_launch_passes_on_no_backup_file_of_the_outer_one(place: Place) -> None:
    limit = {"PADDLE_ENV_LIMIT_LEN": "20"}
    nest(place, ["--log_dir=outer", "--nproc_per_node=1", "--host=127.100.100.100"], [], environment(**limit))
    env = place.seen()[0]["env"]
    assert "PADDLE_BACKUP_ENV_PATH" not in env
    assert env["PADDLE_TRAINER_ENDPOINTS"] == env["PADDLE_CURRENT_ENDPOINT"]


@pytest.mark.parametrize(
    "variables",
    [
        {"PADDLE_IPS": "127.0.0.1", "PADDLE_START_PORT": "{port}"},
        {"FLAGS_FIXED_PORT": "{port}"},
        {"PADDLE_NPROC_PER_NODE": "2"},
        {"PADDLE_JOB_ID": "outer"},
    ],
)
def test_variables_of_the_outer_launcher_do_not_reach_the_inner_one(
    place: Place, variables: dict[str, str]
) -> None:
    environ = {name: value.format(port=free_ports(2)) for name, value in variables.items()}
    nest(place, [], ["--log_dir=inner"], environment(**environ))
    (inner,) = place.seen()
    assert inner["env"]["PADDLE_TRAINERS_NUM"] == "1"
    assert not list(place.folder.glob("inner/outer.*"))


def test_another_spelling_of_the_outer_folder_is_that_folder(place: Place) -> None:
    (place.folder / "link").symlink_to("log")
    for spelling in ("log/", "x/../log", "./log", "link"):
        (place.folder / "x").mkdir(exist_ok=True)
        place.script("print('inside')", "inner.py")
        place.script(f"""
            import subprocess
            sys.exit(subprocess.call([sys.executable, "-m", "rlaunch", "--log_dir={spelling}", "inner.py"]))
        """)
        ended = place.run("--log_overwrite=1", "train.py")
        assert ended.status == 0, ended.stderr
        assert place.text("log/nested.0/workerlog.0").endswith("inside\n"), spelling
        assert place.result()["ranks"][0]["log"].endswith("log/workerlog.0")


def test_a_launch_inside_a_rank_of_paddles_launcher_is_nested_too(place: Place) -> None:
    (place.folder / "tell.py").write_text(TELL)
    place.script(NESTED.format(new={}, args=[]), "outer.py")
    real = [
        *python("paddle"),
        "-m",
        "paddle.distributed.launch",
        "--nproc_per_node=1",
        "--log_dir=real",
        "outer.py",
    ]
    subprocess.run(real, cwd=place.folder, env=environment(), capture_output=True, check=True)
    (inner,) = place.seen()
    assert inner["env"]["PADDLE_LOG_DIR"] == str(place.folder / "real/nested.0")
    assert place.names("real/nested.0") >= {"workerlog.0"}
    assert "PADDLE_BACKUP_ENV_PATH" not in inner["env"]
    assert "running inside a rank of another job" in place.log(0, "real").decode()


@pytest.mark.parametrize("module", ["rlaunch", "rlaunch.run"])
def test_ranks_do_not_have_variables_of_the_launcher_alone(place: Place, module: str) -> None:
    secrets = {"RLAUNCH_JOB_SECRET": "secret", "RLAUNCH_ETCD_USER": "me:secret"}
    script = place.folder / "tell.py"
    script.write_text(f"import os; print([name for name in {list(secrets)} if name in os.environ])")
    command = [sys.executable, "-m", module, str(script)]
    env = environment(**secrets)
    done = subprocess.run(command, cwd=place.folder, env=env, capture_output=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == b"[]"
