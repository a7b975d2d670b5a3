"""rlaunch.env beside frameworks: which of them it hands over to, and that it imports none itself.

Each test states the modules that are imported: stubs, or in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rlaunch.env as ours
from framework_stubs import environment, stub_paddle, stub_torch, torch_rank
from preloaded import python

ENV_FILE = Path(ours.__file__).resolve()
PACKAGE_PARENT = str(ENV_FILE.parents[1])


@pytest.fixture
def no_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("paddle", "paddle.distributed", "torch", "torch.distributed"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("no_framework")
class TestInitParallelEnv:
    @pytest.mark.parametrize("blocked", [False, True])
    def test_neither(self, monkeypatch: pytest.MonkeyPatch, blocked: bool) -> None:
        if blocked:
            monkeypatch.setitem(sys.modules, "paddle", None)
            monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(RuntimeError, match="`import paddle` or `import torch`"):
            ours.init_parallel_env()

    @pytest.mark.parametrize("world_size", ["1", "2"])
    def test_paddle(self, monkeypatch: pytest.MonkeyPatch, world_size: str) -> None:
        paddle = stub_paddle(monkeypatch)
        with environment(PADDLE_TRAINERS_NUM=world_size):
            assert ours.init_parallel_env() is paddle.init_parallel_env.return_value
        paddle.init_parallel_env.assert_called_once_with()

    def test_paddles_argument(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paddle, config = stub_paddle(monkeypatch), object()
        with environment(PADDLE_TRAINERS_NUM="2"):
            ours.init_parallel_env(config)
        paddle.init_parallel_env.assert_called_once_with(config)

    @pytest.mark.parametrize(
        ("devices", "nccl", "local_rank", "backend"),
        [
            (0, True, "1", "gloo"),
            (2, True, None, "gloo"),
            (2, False, "1", "gloo"),
            (2, True, "0", "nccl"),
            (2, True, "1", "nccl"),
        ],
    )
    def test_torchs_backend(
        self, monkeypatch: pytest.MonkeyPatch, devices: int, nccl: bool, local_rank: str | None, backend: str
    ) -> None:
        torch = stub_torch(monkeypatch, devices, nccl)
        env = torch_rank() | {"LOCAL_RANK": local_rank or ""}
        if local_rank is None:
            del env["LOCAL_RANK"]
        with environment(**env):
            assert ours.init_parallel_env() is torch.init_process_group.return_value
        torch.init_process_group.assert_called_once_with(backend=backend)
        if backend == "nccl":
            torch.cuda.set_device.assert_called_once_with(int(local_rank or ""))
        else:
            torch.cuda.set_device.assert_not_called()

    @pytest.mark.parametrize("local_rank", ["2", "-1"])
    def test_torch_without_a_device_for_this_rank(
        self, monkeypatch: pytest.MonkeyPatch, local_rank: str
    ) -> None:
        torch = stub_torch(monkeypatch, devices=2)
        with (
            environment(**torch_rank(LOCAL_RANK=local_rank)),
            pytest.raises(
                RuntimeError, match=f"LOCAL_RANK={local_rank} has no CUDA device: 2 .*CUDA_VISIBLE_DEVICES"
            ),
        ):
            ours.init_parallel_env()
        torch.init_process_group.assert_not_called()

    def test_torch_has_no_nccl_config(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = stub_torch(monkeypatch)
        with environment(**torch_rank()), pytest.raises(TypeError, match="nccl_config"):
            ours.init_parallel_env(object())
        torch.init_process_group.assert_not_called()

    @pytest.mark.parametrize("with_torch", [{}, {"RANK": "1"}, {"WORLD_SIZE": "2"}, torch_rank()])
    @pytest.mark.parametrize("with_paddle", [{}, {"PADDLE_TRAINER_ID": "0"}, {"PADDLE_TRAINERS_NUM": "2"}])
    def test_both_are_imported(
        self, monkeypatch: pytest.MonkeyPatch, with_paddle: dict[str, str], with_torch: dict[str, str]
    ) -> None:
        paddle, torch = stub_paddle(monkeypatch), stub_torch(monkeypatch)
        with environment(**with_paddle, **with_torch):
            ours.init_parallel_env()
        called = (paddle.init_parallel_env.call_count, torch.init_process_group.call_count)
        assert called == ((0, 1) if with_torch and not with_paddle else (1, 0))

    def test_paddle_is_not_left_to_train_alone_under_torchs_variables(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paddle = stub_paddle(monkeypatch)
        with environment(**torch_rank()), pytest.raises(RuntimeError, match="`python -m rlaunch`"):
            ours.init_parallel_env()
        paddle.init_parallel_env.assert_not_called()
        with environment(**torch_rank(0, WORLD_SIZE="1")):
            ours.init_parallel_env()
        paddle.init_parallel_env.assert_called_once_with()

    @pytest.mark.parametrize(
        ("with_torch", "lacks"),
        [({}, "RANK and WORLD_SIZE"), ({"RANK": "0"}, "WORLD_SIZE"), ({"WORLD_SIZE": "2"}, "RANK")],
    )
    def test_torch_under_paddles_variables(
        self, monkeypatch: pytest.MonkeyPatch, with_torch: dict[str, str], lacks: str
    ) -> None:
        torch = stub_torch(monkeypatch)
        with (
            environment(PADDLE_TRAINER_ID="0", PADDLE_TRAINERS_NUM="2", **with_torch),
            pytest.raises(RuntimeError, match=f"lacks {lacks}, .*`python -m rlaunch.run`"),
        ):
            ours.init_parallel_env()
        torch.init_process_group.assert_not_called()
        with environment(PADDLE_TRAINER_ID="0", **torch_rank()):
            ours.init_parallel_env()
        torch.init_process_group.assert_called_once_with(backend="gloo")

    def test_torch_speaks_for_itself_when_nothing_is_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = stub_torch(monkeypatch)
        torch.init_process_group.side_effect = ValueError("environment variable RANK expected, but not set")
        with environment(), pytest.raises(ValueError, match="RANK expected"):
            ours.init_parallel_env()


def run(script: str, framework: str | None = None, **variables: str) -> Any:
    """The last line of JSON that the script prints, in a process with no launcher's variables.

    `framework`: one that is imported there already.
    """
    launchers = ("PADDLE_", "FLAGS_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE_PARENT, env.get("PYTHONPATH")]))
    done = subprocess.run(
        [*(python(framework) if framework else [sys.executable]), "-c", script],
        env=env | variables,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class TestRealPaddle:
    def test_one_process_is_a_no_op_with_paddles_warning(self) -> None:
        got = run(
            """
import json, warnings
import paddle
import rlaunch.env
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    returned = rlaunch.env.init_parallel_env()
print(json.dumps([returned, paddle.distributed.is_initialized(), [str(w.message) for w in caught]]))
""",
            "paddle",
        )
        assert got[:2] == [None, False]
        assert any("Currently not a parallel execution environment" in text for text in got[2])

    def test_errors_of_paddle_pass_through(self) -> None:
        got = run(
            """
import json, paddle, rlaunch.env
try:
    rlaunch.env.init_parallel_env()
except ValueError as error:
    print(json.dumps(str(error)))
""",
            "paddle",
            PADDLE_TRAINERS_NUM="2",
            PADDLE_DISTRI_BACKEND="gloo",
        )
        assert got == (
            "paddle.distributed initialize error, "
            "environment variable PADDLE_TRAINER_ID is needed, but not set."
        )

    def test_paddle_groups_are_understood(self) -> None:
        got = run(
            """
import json, paddle, rlaunch.env
groups = [paddle.distributed.collective.Group(*a) for a in ((1, 9, [3, 5]), (-1, 9, [3, 5]))]
print(json.dumps([[f(g) for g in groups] for m in (paddle.distributed, rlaunch.env)
                  for f in (m.get_rank, m.get_world_size)]))
""",
            "paddle",
        )
        assert got == [[1, -1], [2, -1], [1, -1], [2, -1]]


class TestImport:
    FRAMEWORKS = frozenset({"paddle", "torch", "numpy", "jax", "tensorflow"})

    def test_pulls_in_no_framework(self) -> None:
        modules = run("import json, sys, rlaunch.env; print(json.dumps(sorted(sys.modules)))")
        assert "rlaunch.env" in modules
        assert self.FRAMEWORKS.isdisjoint(name.partition(".")[0] for name in modules)

    def test_the_file_alone_loads_json_only_for_the_backup_file(self, tmp_path: Path) -> None:
        backup = tmp_path / "backup.json"
        backup.write_text("{}")
        got = run(
            f"""
import os, sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("env_alone", {str(ENV_FILE)!r})
env = module_from_spec(spec)
before = set(sys.modules)
spec.loader.exec_module(env)
env.ParallelEnv()
loaded = sorted(set(sys.modules) - before)
os.environ["PADDLE_BACKUP_ENV_PATH"] = {str(backup)!r}
env.ParallelEnv()
loaded_later = sorted(set(sys.modules) - before)
import json
print(json.dumps([loaded, loaded_later]))
"""
        )
        assert got[0] == ["__future__"]
        assert "json" in got[1]
