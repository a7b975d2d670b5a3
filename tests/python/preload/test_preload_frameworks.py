"""The frameworks in ranks of a zygote: the same losses, seeds of their own, and loaders with workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from effort import FULL, each
from launching import environment

# As many as there are CPUs, of which a fork keeps none; and one.
THREADS = [None, "1"] if FULL else [None]

HEAD = """
import json, os, random, sys, warnings
import rlaunch

class Rows:
    def __len__(self):
        return 8

    def __getitem__(self, i):
        import numpy
        return numpy.full(3, i, "float32")

def with_and_without_threads(train, **options):
    seen = {}
    for method in ("spawn", "zygote"):
        chosen = dict(options, start_method=method, backend="gloo")
        if method == "zygote":
            chosen["preload"] = options["frameworks"]
        for threads in THREADS:
            os.environ.pop("OMP_NUM_THREADS", None)
            if threads:
                os.environ["OMP_NUM_THREADS"] = threads
            context = rlaunch.spawn(train, (method == "zygote" and not threads,), 2, **chosen)
            seen[f"{method} {threads}"] = [queue.get() for queue in context.return_queues]
    # A second call has other numbers.
    context = rlaunch.spawn(unseeded, (), 2, **chosen)
    seen["again"] = [queue.get() for queue in context.return_queues]
    print(json.dumps(seen))
"""

TORCH = """
def unseeded():
    import numpy, torch
    return [torch.rand(1).item(), float(numpy.random.random()), random.random()]

def load(kind, workers):
    import torch
    how = {"num_workers": workers, "multiprocessing_context": kind}
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4, **how)
    return [batch.sum().item() for batch in loader]

def train(loads):
    import torch
    import torch.distributed as dist
    drawn = unseeded()
    loaded = [load("fork", 2), load("spawn", 1)] if loads and os.environ["RANK"] == "0" else []
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    net = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    model = torch.nn.parallel.DistributedDataParallel(net)
    torch.manual_seed(dist.get_rank())
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.01), []
    for _ in range(5):
        loss = model(torch.randn(512, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.barrier()
    dist.destroy_process_group()
    return {"losses": losses, "drawn": drawn, "loaded": loaded}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with_and_without_threads(train, frameworks="torch")
"""

PADDLE = """
def unseeded():
    import numpy, paddle
    return [paddle.rand([1]).item(), float(numpy.random.random()), random.random()]

def load():
    import paddle
    loader = paddle.io.DataLoader(Rows(), batch_size=4, num_workers=2)
    return [float(batch.sum()) for batch in loader]

def train(loads):
    import paddle
    drawn = unseeded()
    loaded = [load()] if loads and os.environ["PADDLE_TRAINER_ID"] == "0" else []
    paddle.distributed.init_parallel_env()
    paddle.seed(7)
    net = paddle.nn.Sequential(paddle.nn.Linear(16, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 1))
    model = paddle.DataParallel(net)
    paddle.seed(paddle.distributed.get_rank())
    optimizer, losses = paddle.optimizer.SGD(0.01, parameters=model.parameters()), []
    for _ in range(5):
        loss = model(paddle.randn([512, 16])).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item())
    return {"losses": losses, "drawn": drawn, "loaded": loaded}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with_and_without_threads(train, frameworks="paddle")
"""

LOADED = [18.0, 66.0]  # Three times 0 + 1 + 2 + 3, and 4 + 5 + 6 + 7.


# In `make test` ranks of torch train off a zygote in examples/pytest_suite.
@each(
    "program, loaded",
    [pytest.param(PADDLE, [LOADED], id="paddle"), pytest.param(TORCH, [LOADED, LOADED], id="torch")],
    first=0,
)
@pytest.mark.timeout(400)  # It imports the framework several times.
def test_training_off_a_zygote(tmp_path: Path, program: str, loaded: Any) -> None:
    main = tmp_path / "main.py"
    main.write_text(f"THREADS = {THREADS}\n{HEAD}{program}")
    command, env = [sys.executable, main], environment(CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    again = seen.pop("again")
    losses = {how: [f"{x:.8g}" for row in rows for x in row["losses"]] for how, rows in seen.items()}
    for threads in THREADS:
        assert losses[f"zygote {threads}"] == losses[f"spawn {threads}"]
        assert len(set(losses[f"zygote {threads}"])) == 10
    drawn = [row["drawn"] for rows in seen.values() for row in rows] + again
    assert [len(set(column)) for column in zip(*drawn, strict=True)] == [4 * len(THREADS) + 2] * 3
    assert seen["zygote None"][0]["loaded"] == loaded
