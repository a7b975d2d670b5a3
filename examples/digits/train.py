"""Recognise handwritten digits, trained data-parallel with Paddle.

The images are the real 8x8 scans that scikit-learn bundles, so nothing is downloaded. Start it with
a launcher, one process per rank:

    python -m rlaunch --nproc_per_node 2 train.py

or from Python, where `train` is an ordinary function:

    import rlaunch as dist
    from train import train

    dist.spawn(train, nprocs=2)

Each rank holds a replica of the network and learns from its own half of the images; Paddle averages the
gradients, so the replicas stay identical. `train` checks that they did.
"""

import argparse
import hashlib
import json
import os
import random
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

REQUIRED_ACCURACY = 0.95


def load_data(seed: int) -> tuple[np.ndarray, ...]:
    """Train images, test images, train labels, test labels: the same split on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    return train_test_split(images, labels, test_size=0.2, random_state=seed, stratify=labels)


def shard_batches(count: int, batch_size: int, shuffle: np.random.Generator) -> list[np.ndarray]:
    """This rank's batches of one epoch, as indices into the training set.

    Every rank draws the same permutation and takes its own slice of each global batch, so no image is used
    twice. The incomplete batch at the end is dropped: a rank with one step more would wait for ever for the
    others' gradients.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    order = shuffle.permutation(count)
    whole = count - count % (batch_size * ranks)
    return [batch[rank::ranks] for batch in np.split(order[:whole], whole // (batch_size * ranks))]


def checksum(model: nn.Layer) -> int:
    """A number that changes when any bit of any parameter does."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.numpy().tobytes())
    return int.from_bytes(digest.digest()[:8], "big", signed=True)  # what fits an int64 tensor


def gather(value: int) -> list[int]:
    """The value of every rank, in rank order."""
    if dist.get_world_size() == 1:  # `python train.py`, without a launcher: Paddle makes no group
        return [value]
    values: list[paddle.Tensor] = []
    dist.all_gather(values, paddle.to_tensor([value], dtype="int64"))
    return [tensor.item() for tensor in values]


def train(
    epochs: int = 15, report: str | None = None, *, batch_size: int = 32, lr: float = 8e-3, seed: int = 0
) -> float:
    """Train on this rank's share of the digits and return the accuracy on the test images.

    With `report` (by default, the folder named by the variable `DIGITS_REPORT`) each rank writes what it saw
    to `rank<N>.json` there. Raises if the ranks end with different parameters, or learnt too little.
    """
    dist.init_parallel_env()
    rank = dist.get_rank()
    random.seed(seed)
    np.random.seed(seed)
    paddle.seed(seed)

    train_x, test_x, train_y, test_y = load_data(seed)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = paddle.DataParallel(net)
    optimizer = paddle.optimizer.Adam(learning_rate=lr, parameters=model.parameters())
    loss_fn = nn.CrossEntropyLoss()
    shuffle = np.random.default_rng(seed)

    losses: list[float] = []  # this rank's, one per step
    for epoch in range(1, epochs + 1):
        batches = shard_batches(len(train_x), batch_size, shuffle)
        for batch in batches:
            loss = loss_fn(model(paddle.to_tensor(train_x[batch])), paddle.to_tensor(train_y[batch]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
        if rank == 0:
            mean = sum(losses[-len(batches) :]) / len(batches)
            print(f"epoch {epoch:2}/{epochs}  loss {mean:.4f}", flush=True)

    net.eval()
    with paddle.no_grad():
        predicted = net(paddle.to_tensor(test_x)).numpy().argmax(axis=1)
    accuracy = float((predicted == test_y).mean())

    checksums = gather(checksum(net))

    report = report or os.environ.get("DIGITS_REPORT")
    if report:
        folder = Path(report)
        folder.mkdir(parents=True, exist_ok=True)
        result = {"losses": losses, "accuracy": accuracy, "checksum": checksums[rank]}
        (folder / f"rank{rank}.json").write_text(json.dumps(result))

    if len(set(checksums)) != 1:
        raise RuntimeError(f"the ranks ended with different parameters: checksums {checksums}")
    if accuracy < REQUIRED_ACCURACY:
        raise RuntimeError(f"test accuracy {accuracy:.4f} is below {REQUIRED_ACCURACY}")
    if rank == 0:
        print(f"test accuracy {accuracy:.4f}, parameters equal on every rank ({len(checksums)})", flush=True)
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a digit classifier, data-parallel.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--report", metavar="DIR", help="write rank<N>.json here (default: $DIGITS_REPORT)")
    options = parser.parse_args()
    train(epochs=options.epochs, report=options.report)
