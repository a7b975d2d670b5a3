"""``rlaunch.torch.elastic_launch``: functions and programs on ranks. Imports no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from launching import environment
from rlaunch.errors import ChildFailedError, LaunchError
from rlaunch.torch import LaunchConfig, elastic_launch


def config(ranks: int = 2, **more: object) -> LaunchConfig:
    said: dict[str, object] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "max_restarts": 0}
    return LaunchConfig(1, 1, ranks, **{**said, **more})  # type: ignore[arg-type]


def who(word: str) -> tuple[str, ...]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID")
    return (word, *(os.environ[name] for name in names))


def fails_on_rank_1(code: object) -> None:
    if os.environ["RANK"] == "1":
        if isinstance(code, int):
            os._exit(code)
        raise ValueError(code)
    signal.pause()


def succeeds_at_last() -> str:
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if os.environ["RANK"] == "1" and attempt != "2":
        sys.exit(4)
    return attempt


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where logs go, and what is left of them."""
    for name in [name for name in os.environ if name not in environment()]:
        monkeypatch.delenv(name)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_function_returns_what_each_rank_returns(temporary: Path) -> None:
    seen = elastic_launch(config(role="trainer", run_id="job"), who)("a")
    assert seen == {rank: ("a", str(rank), "2", str(rank), "trainer", "job") for rank in (0, 1)}
    assert list(temporary.iterdir()) == []


def test_a_program_returns_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert elastic_launch(config(), "echo")("hello", 3) == {0: None, 1: None}
    assert capfd.readouterr().out == "hello 3\n" * 2


def test_a_closure_needs_cloudpickle_and_has_it_here() -> None:
    number = 20
    assert elastic_launch(config(), lambda more: number + more)(1) == {0: 21, 1: 21}


def test_what_a_rank_raises_is_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(), fails_on_rank_1)("no such luck")
    rank, failure = caught.value.get_first_failure()
    assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
    assert list(caught.value.failures) == [1], "a rank that was stopped is no failure"
    assert failure.message["message"] == "ValueError: no such luck"
    assert "ValueError: no such luck" in str(caught.value)
    assert "fails_on_rank_1 FAILED" in str(caught.value)
    assert "fails_on_rank_1 FAILED" in capfd.readouterr().err


def test_what_ends_a_rank_without_a_word_is_in_the_report() -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(), fails_on_rank_1)(7)
    assert caught.value.failures[1].exitcode == 7


def test_ranks_are_restarted_together() -> None:
    assert elastic_launch(config(max_restarts=2), succeeds_at_last)() == {0: "2", 1: "2"}


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(LaunchError, match="--nproc-per-node"):
        elastic_launch(config(0), who)("a")
    with pytest.raises(LaunchError, match="--rdzv-conf"):
        elastic_launch(config(rdzv_configs={"": 1}), who)("a")


def test_torchs_objects_for_logs_are_read(tmp_path: Path) -> None:
    specs = SimpleNamespace(
        root_log_dir=str(tmp_path / "logs"), _redirects=3, _tee={0: 1}, _local_ranks_filter={0}
    )
    elastic_launch(config(run_id="r", logs_specs=specs), "echo")("hi")
    (run,) = (tmp_path / "logs").iterdir()
    assert run.name.startswith("r_")
    found = {str(path.relative_to(run)) for path in run.rglob("*.log")}
    assert found == {f"attempt_0/{rank}/{name}.log" for rank in (0, 1) for name in ("stdout", "stderr")}


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
