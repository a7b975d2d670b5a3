"""Train the digits network with rlaunch and with Paddle's own launcher, and show that nothing differs.

`train.py` runs three times on two ranks: under `python -m rlaunch`, under `python -m
paddle.distributed.launch`, and as a function under `rlaunch.spawn`. Each run must learn the digits and end
with equal parameters on both ranks, and all three must see exactly the same losses, step by step.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

TRAIN = Path(__file__).with_name("train.py")
RANKS = 2
EPOCHS = 15
REQUIRED_ACCURACY = 0.95

# One thread per rank, so that sums are taken in the same order in every run; then, less chatter from Paddle.
ENV = {"OMP_NUM_THREADS": "1", "GLOG_minloglevel": "2", "PYTHONWARNINGS": "ignore:No ccache found"}

Report = list[dict[str, Any]]  # what each rank wrote, by rank


def say(text: str) -> None:
    """Print at once, so that our lines stay in order with those of the processes we start."""
    print(text, flush=True)


def fail(reason: str) -> NoReturn:
    """End the demo with one line that says why."""
    sys.exit(f"demo failed: {reason}")


def launch(module: str, folder: Path, *, show: bool) -> float:
    """Run `train.py` under the launcher `python -m MODULE`; the wall time in seconds."""
    command = [sys.executable, "-m", module, "--nproc_per_node", str(RANKS), "--log_dir", str(folder / "log")]
    command += [str(TRAIN), "--epochs", str(EPOCHS), "--report", str(folder)]
    output = None if show else subprocess.PIPE
    started = time.monotonic()
    done = subprocess.run(command, stdout=output, stderr=output and subprocess.STDOUT, text=True)
    if done.returncode != 0:
        if done.stdout:
            say(done.stdout)
        fail(f"{module} exited with code {done.returncode}")
    return time.monotonic() - started


def spawn(folder: Path) -> list[float]:
    """Run `train` in two processes started from this one; the accuracy that each returned."""
    import rlaunch as dist
    from train import train

    try:
        context = dist.spawn(train, args=(EPOCHS, str(folder)), nprocs=RANKS)
    except Exception as error:
        say(str(error))
        fail("rlaunch.spawn raised the error above")
    return [queue.get() for queue in context.return_queues]


def read(folder: Path) -> Report:
    """The checked reports of the ranks of a run: the ranks agree and the network has learnt."""
    paths = [folder / f"rank{rank}.json" for rank in range(RANKS)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        fail(f"{folder.name}: no {' or '.join(missing)}, so not all of {RANKS} ranks took part")
    ranks = [json.loads(path.read_text()) for path in paths]
    if len({rank["checksum"] for rank in ranks}) != 1:
        fail(f"{folder.name}: the ranks ended with different parameters")
    if min(rank["accuracy"] for rank in ranks) < REQUIRED_ACCURACY:
        fail(f"{folder.name}: the test accuracy is below {REQUIRED_ACCURACY}")
    return ranks


def compare(name: str, run: Report, reference: Report) -> None:
    """Fail unless every rank of a run saw the very losses that the same rank of the reference saw."""
    for rank, (ours, theirs) in enumerate(zip(run, reference, strict=True)):
        if len(ours["losses"]) != len(theirs["losses"]):
            fail(f"{name}: rank {rank} took {len(ours['losses'])} steps, not {len(theirs['losses'])}")
        for step, (loss, expected) in enumerate(zip(ours["losses"], theirs["losses"], strict=True), 1):
            if loss != expected:
                fail(f"{name}: rank {rank}, step {step}: loss {loss!r}, with Paddle's launcher {expected!r}")
        if ours["checksum"] != theirs["checksum"]:
            fail(f"{name}: the parameters of rank {rank} differ from those with Paddle's launcher")
    say(f"{name}: {RANKS} x {len(run[0]['losses'])} losses and the parameters equal those of Paddle's own")


def main() -> None:
    """Train, compare, train once more, compare."""
    os.environ.update(ENV)
    warnings.filterwarnings("ignore", message="No ccache found")  # PYTHONWARNINGS, for this process

    with tempfile.TemporaryDirectory(prefix="rlaunch-demo-") as temporary:
        ours, paddles, spawned = (Path(temporary, name) for name in ("rlaunch", "paddle", "spawn"))

        say(f"1. python -m rlaunch --nproc_per_node {RANKS} train.py")
        our_time = launch("rlaunch", ours, show=True)

        say(f"\n2. python -m paddle.distributed.launch --nproc_per_node {RANKS} train.py")
        paddle_time = launch("paddle.distributed.launch", paddles, show=False)

        say("\n3. compare")
        reference = read(paddles)
        compare("rlaunch", read(ours), reference)

        say(f"\n4. rlaunch.spawn(train, nprocs={RANKS})")
        for rank, accuracy in enumerate(spawn(spawned)):
            say(f"rank {rank} returned accuracy {accuracy:.4f}")
        compare("spawn", read(spawned), reference)

    say(
        f"\ndemo passed: accuracy {reference[0]['accuracy']:.4f} three times over; wall time: "
        f"rlaunch {our_time:.1f} s, paddle.distributed.launch {paddle_time:.1f} s"
    )


if __name__ == "__main__":
    main()
