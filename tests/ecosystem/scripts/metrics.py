"""Metrics of torchmetrics, each rank with its share of the data: their values are those of all data."""

from __future__ import annotations

import telling
import torch
import torchmetrics
from torch import distributed

distributed.init_process_group("gloo")
rank, world = distributed.get_rank(), distributed.get_world_size()
torch.manual_seed(1)
scores, labels = torch.rand(64, 5), torch.randint(5, (64,))
metrics = torchmetrics.MetricCollection(
    {
        "accuracy": torchmetrics.Accuracy(task="multiclass", num_classes=5),
        "auroc": torchmetrics.AUROC(task="multiclass", num_classes=5),
        "mean": torchmetrics.MeanMetric(),
    }
)
for name, metric in metrics.items():
    metric.update(*((scores[rank::world], labels[rank::world]) if name != "mean" else (scores[rank::world],)))
whole = {
    "accuracy": torchmetrics.functional.accuracy(scores, labels, "multiclass", num_classes=5).item(),
    "auroc": torchmetrics.functional.auroc(scores, labels, "multiclass", num_classes=5).item(),
    "mean": scores.mean().item(),
}
seen = {name: metric.compute().item() for name, metric in metrics.items()}
telling.tell(rank=rank, world=world, seen=seen, whole=whole)
distributed.destroy_process_group()
