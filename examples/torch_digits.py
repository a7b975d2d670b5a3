"""Recognise handwritten digits, trained with torch's DistributedDataParallel.

The images are the real 8x8 scans that scikit-learn bundles, so nothing is downloaded. Start it with one
process per rank:

    python -m rlaunch.run --nproc-per-node 2 torch_digits.py

or with torchrun, which it was written for: nothing in it knows of rlaunch. Each rank learns from its own half
of the images; torch averages the gradients, so the replicas stay identical, which the script checks.
"""

import argparse
import gc
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel

REQUIRED_ACCURACY = 0.95


def load_data(seed: int) -> tuple[torch.Tensor, ...]:
    """Train images, test images, train labels, test labels: the same split on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    split = train_test_split(images, labels, test_size=0.2, random_state=seed, stratify=labels)
    return tuple(torch.from_numpy(part) for part in split)


def checksum(model: nn.Module) -> int:
    """A number that changes when any bit of any parameter does."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return int.from_bytes(digest.digest()[:8], "big", signed=True)


def train(epochs: int, batch_size: int = 32, lr: float = 8e-3, seed: int = 0) -> dict[str, object]:
    """Trains on this rank's share; its losses (one a step), the accuracy on the test images, the checksum."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    train_x, test_x, train_y, test_y = load_data(seed)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    loss_fn = nn.CrossEntropyLoss()
    shuffle = np.random.default_rng(seed)

    losses: list[float] = []
    for epoch in range(1, epochs + 1):
        # The same permutation on every rank; each takes its own slice of each whole global batch.
        order = shuffle.permutation(len(train_x))
        for start in range(0, len(order) - batch_size * ranks + 1, batch_size * ranks):
            batch = order[start : start + batch_size * ranks][rank::ranks]
            optimizer.zero_grad()
            loss = loss_fn(model(train_x[batch]), train_y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if rank == 0:
            print(f"epoch {epoch:2}/{epochs}  loss {losses[-1]:.4f}", flush=True)

    with torch.no_grad():
        accuracy = (net(test_x).argmax(1) == test_y).float().mean().item()
    sums = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(sums, torch.tensor([checksum(net)]))
    # A rank that ends with a live model, or what leads to it, may abort at interpreter exit (torch 2.15).
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()
    if len({int(one) for one in sums}) != 1:
        raise RuntimeError(f"the ranks ended with different parameters: checksums {sums}")
    if accuracy < REQUIRED_ACCURACY:
        raise RuntimeError(f"test accuracy {accuracy:.4f} is below {REQUIRED_ACCURACY}")
    if rank == 0:
        print(f"test accuracy {accuracy:.4f}, parameters equal on every rank ({ranks})", flush=True)
    return {"losses": losses, "accuracy": accuracy, "checksum": int(sums[rank])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a digit classifier, data-parallel, with torch.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--report", metavar="DIR", help="write rank<N>.json here")
    options = parser.parse_args()
    result = train(options.epochs)
    if options.report:
        folder = Path(options.report)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result))
