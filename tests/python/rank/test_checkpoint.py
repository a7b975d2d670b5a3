"""``rlaunch.lease_valid``, ``checkpoint_guard``, RLAUNCH_ROUND, and the example of checkpoints.

A rank that outlives its lease is in elastic/test_lease_ends_ranks.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import preloaded
import pytest
import rlaunch
from launching import Place, environment
from paths import ROOT

EXAMPLE = ROOT / "examples/checkpoints.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    import checkpoints

    return checkpoints


def test_without_a_launcher_the_guard_lets_all_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLAUNCH_ROUND_LEASE", raising=False)
    assert rlaunch.lease_valid()
    with rlaunch.checkpoint_guard():
        pass
    with pytest.raises(KeyError), rlaunch.checkpoint_guard():
        raise KeyError("of the block itself")


def test_a_lease_that_cannot_be_seen_is_no_permission(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RLAUNCH_ROUND", "1")
    monkeypatch.setenv("RLAUNCH_ROUND_LEASE", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError), rlaunch.checkpoint_guard():
        pytest.fail("it may not begin")


def test_every_start_of_all_ranks_is_another_round(place: Place) -> None:
    place.script(
        """
        import os, rlaunch
        number = os.environ["RLAUNCH_ROUND"]
        with open("rounds", "a") as file:
            print(number, os.environ.get("RLAUNCH_ROUND_LEASE"), rlaunch.lease_valid(), file=file)
        os._exit(int(number) < 3)
        """
    )
    # Those of an outer job are not inherited.
    outer = environment(RLAUNCH_ROUND="77", RLAUNCH_ROUND_LEASE="x")
    done = place.run("--max_restart=2", "--restart_delay=0", "train.py", env=outer)
    assert done.status == 0, done.stderr
    rounds = (place.folder / "rounds").read_text().splitlines()
    assert rounds == ["1 None True", "2 None True", "3 None True"]


def test_an_older_round_cannot_write_where_a_newer_one_reads(example: ModuleType, tmp_path: Path) -> None:
    def write(step: int) -> Callable[[str], None]:
        return lambda path: example.plain_write(step, path)

    older = example.claim(tmp_path)
    example.save(older, 1_000_000_000, write(5))
    newer = example.claim(tmp_path)
    # It was stopped, and goes on.
    example.save(older, 1_000_000_001, write(6))
    example.save(newer, 3, write(3))
    example.save(older, 1_000_000_002, write(7))
    (newer / "draft").write_text("an end in the middle")
    (newer / "step-4.tmp").write_text("of another program")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "000009.bak").mkdir()
    third = example.claim(tmp_path)
    assert [older.name, newer.name, third.name] == ["000001", "000002", "000003"]
    step, path = example.newest(tmp_path, third)
    assert (step, example.plain_read(str(path))) == (3, 3)


def test_a_round_that_is_over_claims_and_publishes_nothing(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claimed = example.claim(tmp_path)
    is_over = False
    monkeypatch.setattr("rlaunch._rank.checkpoint.lease_valid", lambda: not is_over)

    def write(path: str) -> None:
        nonlocal is_over
        Path(path).write_text("late")
        is_over = True

    with pytest.raises(rlaunch.StaleRoundError, match="it ended while this rank saved"):
        example.save(claimed, 1, write)
    with pytest.raises(rlaunch.StaleRoundError, match="nothing was saved"):
        example.claim(tmp_path)
    assert [path.name for path in claimed.iterdir()] == ["draft"]
    assert [path.name for path in tmp_path.iterdir()] == [claimed.name]


@pytest.mark.parametrize("format_", ["plain", "torch", "paddle"])
def test_the_example_continues_where_it_was(format_: str, tmp_path: Path) -> None:
    python = [sys.executable] if format_ == "plain" else preloaded.python(format_)
    for steps in range(2):
        ran = subprocess.run(
            [*python, str(EXAMPLE), format_, str(tmp_path)],
            capture_output=True,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "RLAUNCH_ROUND_LEASE"},
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout == f"round - begins at step {10 * steps}\n"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["000001", "000002"]
