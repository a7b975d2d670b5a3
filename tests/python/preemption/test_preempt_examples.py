"""The examples of preemption: real training with torch and Paddle that is preempted and continues."""

from __future__ import annotations

import re
from pathlib import Path

import preloaded
import pytest
from launching import Place, until
from paths import ROOT
from steps import PREEMPTED, ask, variables

EXAMPLES = ROOT / "examples/preemption"


@pytest.mark.parametrize(
    ("framework", "suffix", "options"),
    [
        ("torch", "pt", ["--frameworks=torch"]),
        ("paddle", "pdparams", []),
    ],
)
def test_the_example_saves_and_continues(
    framework: str, suffix: str, options: list[str], tmp_path: Path
) -> None:
    place, saved = Place(tmp_path), tmp_path / "saved"
    saved.mkdir()
    example = EXAMPLES / f"{framework}_train.py"
    # The head comes first, where `from __future__` would have to.
    body = example.read_text().replace("from __future__ import annotations\n", "")
    (tmp_path / "train.py").write_text(preloaded.head(framework) + body)
    steps = [0]
    for run in range(2):
        words = [*options, f"--log_dir=log.{run}", "--nproc_per_node=2", "train.py", str(saved)]
        with place.start(*words, env=variables(tmp_path / "run")) as launcher:
            # Then both have asked whether to stop: they average their gradients.
            folder = f"log.{run}"
            until(lambda folder=folder: b": loss" in read(place, folder), "the first losses")
            assert ask(tmp_path / "run", "preempt", "--no-wait").status == 0
            ended = place.wait(launcher)
        assert ended.status == PREEMPTED, (run, ended.stderr, place.log(0, folder))
        said = [
            re.findall(r"saved step (\d+), \d+ s left", place.log(rank, folder).decode()) for rank in range(2)
        ]
        ((step,), other) = said
        assert [step] == other
        assert f"begins at step {steps[-1]}\n" in place.log(1, folder).decode()
        assert {path.name for path in (saved / step).iterdir()} == {f"rank-{n}.{suffix}" for n in range(2)}
        assert int(step) > steps[-1]
        steps.append(int(step))


def read(place: Place, folder: str) -> bytes:
    path = place.folder / folder / "workerlog.0"
    return path.read_bytes() if path.exists() else b""
