"""TENT in the harness against a bare PyTorch loop on tensors in memory."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from benchmarks.speed.subjects import TINY, job_in_memory, network
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved
from tta_cattan.bench.run.cell import run_cell

GOAL = ">= 0.97"


def bare_loop(model: nn.Module, images: Tensor, labels: Tensor, batch: int) -> float:
    """TENT as one would write it for one experiment; return the accuracy."""
    model = copy.deepcopy(model).requires_grad_(False)
    params = []
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.train()
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
            params += [layer.weight.requires_grad_(True), layer.bias.requires_grad_(True)]
    optimizer = torch.optim.Adam(params, lr=1e-3)
    correct = 0
    for start in range(0, len(images), batch):
        logits = model(images[start : start + batch])
        log_p = logits.log_softmax(1)
        loss = -(log_p.exp() * log_p).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += int((logits.argmax(1) == labels[start : start + batch]).sum())
    return correct / len(images)


def measure(tiny: bool = False) -> list[Line]:
    """Time whole runs over the same images, copies of the model and metrics included."""
    name, n, size, batch = (TINY, 16, 32, 8) if tiny else ("resnet18", 512, 64, 64)
    torch.manual_seed(0)
    model, images = network(name, 10), torch.rand(n, 3, size, size)
    options = ("MODEL.ADAPTATION", "tent", "TEST.BATCH_SIZE", batch, "TEST.ORDER", "file")
    job, setting = job_in_memory(model, images, None, *options)
    labels = setting.benchmark.data.tensors[1]
    found: dict[str, float] = {}

    def ours() -> None:
        found["ours"] = run_cell(job, setting).metrics["accuracy"]

    def bare() -> None:
        found["bare"] = bare_loop(model, images, labels, batch)

    rounds = interleaved({"harness": ours, "bare loop": bare}, rounds=1 if tiny else 9)
    assert abs(found["ours"] - found["bare"]) < 1.5 / n, found
    return [rounds.line(f"harness, TENT, {name}, {n} images of {size} px: speed", "harness", "bare loop", GOAL)]


if __name__ == "__main__":
    print_lines(measure())
