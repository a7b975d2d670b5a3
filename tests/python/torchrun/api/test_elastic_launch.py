"""``rlaunch.torch.elastic_launch``: functions and programs on ranks. Imports no torch."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from elastic_launch_ranks import (
    ends_without_a_result,
    fails_and_is_slow_to_end,
    fails_on_rank_1,
    fails_with_its_own_code,
    identity,
    succeeds_at_last,
)
from launching import environment, free_ports
from rlaunch._elastic.elastic_launch import build_options
from rlaunch._elastic.launcher_job import get_entrypoint_name
from rlaunch.errors import ChildFailedError, LaunchError, NoResultError
from rlaunch.torch import LaunchConfig, elastic_launch


def config(ranks: int = 2, **more: object) -> LaunchConfig:
    said: dict[str, object] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "max_restarts": 0}
    return LaunchConfig(1, 1, ranks, **{**said, **more})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of logs, and the remaining ones."""
    for name in [name for name in os.environ if name not in environment()]:
        monkeypatch.delenv(name)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_function_returns_what_each_rank_returns(temporary: Path) -> None:
    seen = elastic_launch(config(role="trainer", run_id="job"), identity)("a")
    assert seen == {rank: ("a", str(rank), "2", str(rank), "trainer", "job") for rank in (0, 1)}
    assert list(temporary.iterdir()) == []


def test_a_program_returns_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert elastic_launch(config(), "echo")("hello", 3) == {0: None, 1: None}
    assert capfd.readouterr().out == "hello 3\n" * 2


def test_a_closure_needs_cloudpickle_and_has_it_here() -> None:
    number = 20
    assert elastic_launch(config(), lambda more: number + more)(1) == {0: 21, 1: 21}


def test_an_exception_of_a_rank_is_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(), fails_on_rank_1)("no such luck")
    rank, failure = caught.value.get_first_failure()
    assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
    assert list(caught.value.failures) == [1], "a rank that was stopped is no failure"
    assert failure.message["message"] == "ValueError: no such luck"
    assert "ValueError: no such luck" in str(caught.value)
    assert "fails_on_rank_1 FAILED" in str(caught.value)
    assert "rank 0 was stopped because of it" in str(caught.value)
    assert "fails_on_rank_1 FAILED" not in capfd.readouterr().err, "the exception has the report"


def test_a_failure_without_an_error_file_has_its_reason() -> None:
    began = int(time.time())
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(1), "sh")("-c", "echo no disk >&2; exit 3")
    error = pickle.loads(pickle.dumps(caught.value))
    _, failure = error.get_first_failure()
    assert failure.message["message"] == "exit code 3"
    assert failure.message["extraInfo"]["py_callstack"] == "no disk"
    assert began <= failure.timestamp <= time.time()
    assert "  traceback : no disk\n" in error.format_msg()
    assert (error.report.reason, error.report.last_lines) == ("exit code 3", "no disk")
    assert str(error) == str(caught.value)
    assert error.report.log_dir in str(error), "the launcher's own report"
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(1), "sh")("-c", "echo no disk >&2; kill -9 $$$$")
    _, failure = caught.value.get_first_failure()
    text = f"Signal 9 (SIGKILL) received by PID {failure.pid}"
    assert failure.message["message"] == text
    assert failure.message["extraInfo"]["py_callstack"] == f"{text}\nno disk"


def test_a_silent_end_of_a_rank_is_in_the_report() -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(), fails_on_rank_1)(7)
    assert caught.value.failures[1].exitcode == 7


def test_the_first_failure_is_the_root_cause_though_its_rank_was_stopped() -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(), fails_and_is_slow_to_end)()
    rank, failure = caught.value.get_first_failure()
    assert (rank, failure.exitcode) == (0, 1), "the exit status that its exception makes"
    assert failure.message["message"] == "ValueError: the cause"
    assert caught.value.failures[1].exitcode == 4


def test_ranks_that_fail_at_one_moment_have_their_own_exit_codes(tmp_path: Path) -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(), fails_with_its_own_code)(str(tmp_path))
    codes = {rank: failure.exitcode for rank, failure in caught.value.failures.items()}
    assert codes.items() <= {0: 3, 1: 4}.items()
    rank, failure = caught.value.get_first_failure()
    assert failure.exitcode == codes[rank]


def test_a_rank_that_ends_without_returning_has_no_result() -> None:
    with pytest.raises(NoResultError, match="rank 0"):
        elastic_launch(config(1), ends_without_a_result)()


def test_each_job_without_a_name_gets_its_own() -> None:
    names = {elastic_launch(config(1), identity)("a")[0][-1] for _ in range(2)}
    assert len(names) == 2
    assert all(name.isdecimal() and int(name) < 1 << 128 for name in names)


def test_a_static_rendezvous_has_its_nodes_number_among_its_settings() -> None:
    words = build_options(
        config(rdzv_backend="static", rdzv_configs={"rank": 1, "timeout": 60, "a": "b"}), "job"
    )
    assert "--node-rank=1" in words
    assert "--rdzv-conf=timeout=60,a=b" in words
    words = build_options(config(rdzv_configs={"rank": 1, "timeout": 60}), "job")
    assert "--rdzv-conf=rank=1,timeout=60" in words
    assert not [word for word in words if word.startswith("--node-rank")]


def test_nodes_join_a_static_rendezvous() -> None:
    endpoint = f"127.0.0.1:{free_ports(1)}"

    def node(number: int) -> dict[int, object]:
        said = {"rdzv_configs": {"rank": number, "timeout": 60}, "rdzv_endpoint": endpoint, "run_id": "job"}
        settings = LaunchConfig(2, 2, 1, rdzv_backend="static", max_restarts=0, **said)  # type: ignore[arg-type]
        return elastic_launch(settings, identity)("a")

    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(node, (0, 1)))
    assert seen == [{rank: ("a", str(rank), "2", "0", "default_role", "job")} for rank in (0, 1)]


def test_names_match_torchs() -> None:
    assert get_entrypoint_name(identity, ["x"]) == "identity"
    assert get_entrypoint_name(Holder.method, []) == "method"
    assert get_entrypoint_name("echo", ["x"]) == "echo"
    assert get_entrypoint_name(sys.executable, ["-u", "-m", "package.train", "--lr"]) == "package.train"
    assert get_entrypoint_name(sys.executable, ["-V"]) == ""
    with pytest.raises(ChildFailedError, match=r"^\n=+\ntrain\.py FAILED\n"):
        elastic_launch(config(1), sys.executable)("-u", "train.py")


class Holder:
    def method(self) -> None: ...


@pytest.mark.parametrize("name", ["$$", "$local_rank", "${local_rank}"])
def test_a_dollar_in_the_temporary_folders_name_is_one(
    temporary: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = temporary / name
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert elastic_launch(config(run_id="job"), identity)("a")[1][:2] == ("a", "1")
    assert list(folder.iterdir()) == []


def test_ranks_are_restarted_together() -> None:
    assert elastic_launch(config(max_restarts=2), succeeds_at_last)() == {0: "2", 1: "2"}


def test_invalid_settings_are_errors() -> None:
    with pytest.raises(LaunchError, match="--nproc-per-node"):
        elastic_launch(config(0), identity)("a")
    with pytest.raises(LaunchError, match="--rdzv-conf"):
        elastic_launch(config(rdzv_configs={"": 1}), identity)("a")


def test_torchs_objects_for_logs_are_read(tmp_path: Path) -> None:
    specs = SimpleNamespace(
        root_log_dir=str(tmp_path / "logs"), _redirects=3, _tee={0: 1}, _local_ranks_filter={0}
    )
    elastic_launch(config(run_id="r", logs_specs=specs), "echo")("hi")
    (run,) = (tmp_path / "logs").iterdir()
    assert run.name.startswith("r_")
    found = {str(path.relative_to(run)) for path in run.rglob("*.log")}
    assert found == {f"attempt_0/{rank}/{name}.log" for rank in (0, 1) for name in ("stdout", "stderr")}


class OwnLayout:
    """As one that derives from torch's LogsSpecs."""

    root_log_dir = "logs"
    _redirects = _tee = 0
    _local_ranks_filter = None

    def reify(self, envs: object) -> None: ...


def test_objects_for_logs_that_are_not_torchs_own_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"SimpleNamespace has no _tee, _local_ranks_filter; .* DefaultLogsSpecs"
    ):
        elastic_launch(config(logs_specs=SimpleNamespace(root_log_dir="logs", _redirects=0)), "echo")()
    with pytest.raises(TypeError, match="OwnLayout lays files out in its own way"):
        elastic_launch(config(logs_specs=OwnLayout()), "echo")()


def test_a_health_check_server_is_refused() -> None:
    assert elastic_launch(config(1), "true", None)() == {0: None}
    with pytest.raises(TypeError, match="health_check_server"):
        elastic_launch(config(1), "true", object())  # type: ignore[arg-type]


INTERRUPTED = """
import os, signal, sys
from rlaunch.torch import LaunchConfig, elastic_launch

def wait():
    print("up", flush=True)
    signal.pause()

if __name__ == "__main__":
    try:
        elastic_launch(LaunchConfig(1, 1, 1, rdzv_backend="static", max_restarts=0), wait)()
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interrupt_stops_the_ranks_and_is_raised(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, "main.py"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(signal.SIGINT)
        assert program.communicate(timeout=60)[0] == "interrupted\n"
        assert program.returncode == 0
