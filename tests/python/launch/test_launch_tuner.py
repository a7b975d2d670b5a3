"""--auto_parallel_config: a tuner before the job, by one script."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from launching import Place, environment

SCRIPT = """
import json
import os
from pathlib import Path
stage = os.environ["PADDLE_AUTO_PARALLEL_STAGE"]
name = f"{stage}.{rank}.json" if stage == "run" else "tuner.json"
before = sorted(path.name for path in Path().glob("*.json"))
Path(name).write_text(json.dumps({"env": dict(os.environ), "before": before}))
print("stage", stage)
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.script(SCRIPT)
    return place


def seen(place: Place, name: str) -> dict[str, str]:
    env: dict[str, str] = json.loads(place.text(name))["env"]
    return env


def test_the_tuner_ends_before_the_job_begins(place: Place) -> None:
    (place.folder / "a.json").write_text("{}")
    ended = place.run("--auto_parallel_config=a.json", "--nproc_per_node=2", "train.py")
    assert ended.status == 0, ended.stderr
    tuner = seen(place, "tuner.json")
    # As captured under Paddle's launcher.
    assert {name: tuner.get(name) for name in TUNER} == TUNER
    assert tuner["PADDLE_CURRENT_ENDPOINT"] == tuner["PADDLE_TRAINER_ENDPOINTS"]
    assert "PADDLE_MASTER" not in tuner
    for rank in range(2):
        assert "tuner.json" in json.loads(place.text(f"run.{rank}.json"))["before"]
        env = seen(place, f"run.{rank}.json")
        assert (env["PADDLE_AUTO_PARALLEL_CONFIG"], env["PADDLE_TRAINER_ID"]) == ("a.json", str(rank))
        assert (env["PADDLE_GLOBAL_SIZE"], env["PADDLE_LOCAL_RANK"]) == ("2", str(rank))
    assert place.text("log/tuner.log") == "stage tuner\n"
    assert place.log(1) == b"stage run\n"


TUNER = {
    "PADDLE_AUTO_PARALLEL_CONFIG": "a.json",
    "PADDLE_TRAINERS_NUM": "1",
    "PADDLE_TRAINER_ID": "0",
    "FLAGS_selected_gpus": "0",
    "PADDLE_AUTO_PARALLEL_STAGE": "tuner",
    "PADDLE_GLOBAL_SIZE": "2",
    "PADDLE_LOCAL_SIZE": "2",
}


@pytest.mark.parametrize(
    ("mode", "files"),
    [
        ("tuner_only", {"tuner.json"}),
        ("run_only", {"run.0.json"}),
        ("tuner_and_run", {"tuner.json", "run.0.json"}),
    ],
)
def test_the_file_sets_the_command(place: Place, mode: str, files: set[str]) -> None:
    (place.folder / "a.conf").write_text(json.dumps({"tuner_run_mode": mode, "else": [1, {}]}))
    ended = place.run("train.py", env=environment(PADDLE_AUTO_PARALLEL_CONFIG="a.conf"))
    assert ended.status == 0, ended.stderr
    assert {path.name for path in place.folder.glob("*.json")} == files


def test_a_tuner_that_fails_fails_the_job_before_it_begins(place: Place) -> None:
    (place.folder / "a.json").write_text("{}")
    place.script("sys.exit(7 if os.environ['PADDLE_AUTO_PARALLEL_STAGE'] == 'tuner' else tell('ran'))")
    ended = place.run("--auto_parallel_config=a.json", "train.py")
    assert ended.status == 7
    assert "tuner" in ended.stderr.split("Exit code 7")[1]
    assert not (place.folder / "ran.0").exists()


def test_a_restart_tunes_no_second_time(place: Place) -> None:
    (place.folder / "a.json").write_text("{}")
    place.script("""
        print("a run", flush=True)
        if os.environ["PADDLE_AUTO_PARALLEL_STAGE"] == "run" and not os.path.exists("second"):
            open("second", "w")
            sys.exit(9)
    """)
    ended = place.run("--auto_parallel_config=a.json", "--max_restart=1", "--restart_delay=0", "train.py")
    assert ended.status == 0, ended.stderr
    assert place.text("log/tuner.log") == "a run\n"
    assert (place.log(), place.log(0, "log/rlaunch/attempt-0")) == (b"a run\n", b"a run\n")


def test_a_tuner_that_failed_is_tried_again_in_a_log_of_its_own(place: Place) -> None:
    (place.folder / "a.json").write_text("{}")
    place.script("""
        if not os.path.exists("second"):
            open("second", "w")
            sys.exit("the first time")
        print(os.environ["PADDLE_AUTO_PARALLEL_STAGE"])
    """)
    ended = place.run("--auto_parallel_config=a.json", "--max_restart=1", "--restart_delay=0", "train.py")
    assert ended.status == 0, ended.stderr
    assert place.text("log/rlaunch/attempt-0/tuner.log") == "the first time\n"
    assert (place.text("log/tuner.log"), place.log()) == ("tuner\n", b"run\n")
    assert place.names("log/rlaunch/attempt-0") == {"tuner.log"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["does not exist", "No such file"]),
        ("[", ["JSON", "line 1"]),
        ('{"tuner_run_mode": "often"}', ["often", "tuner_only"]),
    ],
)
def test_a_file_that_says_nothing_is_refused(place: Place, text: str | None, words: list[str]) -> None:
    if text is not None:
        (place.folder / "a.json").write_text(text)
    ended = place.run("--auto_parallel_config=a.json", "train.py")
    assert ended.status in (2, 66)
    (line,) = ended.error_lines()
    assert "--auto_parallel_config a.json" in line
    assert any(word in line for word in words), line


def test_a_fifo_is_no_configuration(place: Place) -> None:
    os.mkfifo(place.folder / "a.json")
    ended = place.run("--auto_parallel_config=a.json", "train.py")
    assert ended.status == 66
    assert "not a regular file" in ended.error_lines()[0]


@pytest.mark.parametrize("args", [["--server_num=1"], ["--run_mode=rpc"]])
def test_only_collective_jobs_have_a_tuner(place: Place, args: list[str]) -> None:
    ended = place.run("--auto_parallel_config=a.json", *args, "train.py")
    assert ended.status == 2
    assert "only for collective jobs" in ended.error_lines()[0]


def test_unsupported_launch_modes_are_refused_by_name(place: Place) -> None:
    for args, words in ((["ipu"], "IPU"), (["--auto_tuner_json=a.json", "train.py"], "search")):
        ended = place.run(*args)
        assert ended.status == 2
        (line,) = ended.error_lines()
        assert words in line
