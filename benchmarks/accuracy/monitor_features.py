"""Accuracy without labels on features of several domains: ``python -m benchmarks.accuracy.monitor_features DIR``.

SHOT's head is trained on four fifths of a domain, calibrated on the rest, and watched on every other domain.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.accuracy import estimators
from tta_cattan.bench.data.features import open_features
from tta_cattan.bench.models.networks import shot_head
from tta_cattan.methods import Tent
from tta_cattan.metrics import accuracy
from tta_cattan.monitor import Calibration
from tta_cattan.monitor.watch import Tap

BATCH, EPOCHS, RATE = 64, 30, 1e-4  # of the harness's configs for these features; the rate is TENT's
DRAWS, DROPPED = 10, 0.4  # dropout of AETTA, on the classifier's input

Data = tuple[Tensor, Tensor]
Rows = dict[str, dict[str, list[tuple[float, float]]]]  # frozen or TENT, estimator: (estimate, truth) of each target


def load(folder: Path) -> Data:
    """Return the features and labels of a domain, shuffled."""
    found = open_features(folder)
    order = np.random.default_rng(0).permutation(len(found.labels))
    return found.gather(torch.from_numpy(order))


def train(x: Tensor, y: Tensor, classes: int) -> nn.Module:
    """Return SHOT's head, trained by SGD with a falling rate and smooth labels."""
    torch.manual_seed(0)
    network = shot_head(classes, x.shape[1])
    optimizer = torch.optim.SGD(network.parameters(), 1e-2, momentum=0.9, nesterov=True, weight_decay=1e-3)
    steps = EPOCHS * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + 10 * step / steps) ** -0.75)
    for _ in range(EPOCHS):
        for places in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[places]), y[places], label_smoothing=0.1).backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def outputs(model: nn.Module, head: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits, and the classes and mean probabilities under dropout before ``head``."""
    tap, generator, found = Tap(model), torch.Generator().manual_seed(0), []
    for batch in x.split(BATCH):
        logits, z = tap(model, batch)
        kept = torch.rand(DRAWS, *z.shape, generator=generator) >= DROPPED
        draws = head(z * kept / (1 - DROPPED))
        found.append((logits.detach(), draws.argmax(2).T, draws.softmax(2).mean(0)))
    logits, dropped, softened = (torch.cat(parts) for parts in zip(*found, strict=True))
    return logits, dropped, softened


def estimates(sets: Sequence[tuple[Tensor, Tensor]], target: tuple[Tensor, ...]) -> dict[str, float]:
    """Return what each estimator says of the target, by (logits, labels) of clean data and, for a line, of shifts."""
    reference, labels = sets[0]
    right = accuracy(reference, labels)
    found = {
        "average confidence": estimators.average_confidence(target[0]),
        "difference of confidences": estimators.difference_of_confidences(target[0], reference, right),
        "ATC": estimators.thresholded_confidence(target[0], reference, right),
        "AETTA": estimators.dropout_agreement(*target),
        "monitor, clean data alone": Calibration.of(sets[:1], len(labels)).estimate(target[0]).value,
    }
    if len(sets) > 1:
        found["monitor, line"] = Calibration.of(sets, len(labels)).estimate(target[0]).value
    return found


def models(network: nn.Module) -> dict[str, nn.Module]:
    """Return what is watched: the network as it is, and a copy under TENT."""
    return {"frozen": network, "TENT": Tent(copy.deepcopy(network), lr=RATE)}


def watch(
    rows: Rows, network: nn.Module, head: nn.Module, labelled: Sequence[Data], targets: Mapping[str, Data]
) -> None:
    """Add what every estimator says of each target; it is calibrated to the model's own outputs on labelled data.

    Note: clean data first, then shifts, as ``Monitor.fit`` does it. Under statistics of the batch a network is less
    sure than by its running ones.
    """
    known: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for x, y in labelled:
        for name, model in models(network).items():
            known.setdefault(name, []).append((outputs(model, head, x)[0], y))
    for target, (x_t, y_t) in targets.items():
        for name, model in models(network).items():
            found = outputs(model, head, x_t)
            truth = accuracy(found[0], y_t)
            for estimator, value in estimates(known[name], found).items():
                rows.setdefault(name, {}).setdefault(estimator, []).append((value, truth))
            print(f"{target}, {name}: {100 * truth:.1f}", file=sys.stderr)


def to_markdown(rows: Rows) -> str:
    """Return a row per estimator: mean absolute error in points and correlation."""
    lines = [f"| estimator | {' | '.join(rows)} |", f"|---|{'---:|' * len(rows)}"]
    for estimator in rows["frozen"]:
        pairs = [np.array(column[estimator]).T for column in rows.values()]
        cells = [f"{100 * np.abs(a - b).mean():.1f} ({np.corrcoef(a, b)[0, 1]:.2f})" for a, b in pairs]
        lines.append(f"| {estimator} | {' | '.join(cells)} |")
    return "\n".join(lines)


@torch.no_grad()
def main(arguments: list[str]) -> int:
    """Print a row per estimator: mean absolute error in points and correlation, frozen and under TENT."""
    folders = sorted(path.parent for path in Path(arguments[0]).glob("*/manifest.json"))
    domains = {folder.name: load(folder) for folder in folders}
    classes = len(open_features(folders[0]).manifest.classes)
    rows: Rows = {}
    for source, (x, y) in domains.items():
        cut = 4 * len(x) // 5
        with torch.enable_grad():
            network = train(x[:cut], y[:cut], classes)
        targets = {f"{source} -> {name}": data for name, data in domains.items() if name != source}
        watch(rows, network, network.fc, [(x[cut:], y[cut:])], targets)
    print(to_markdown(rows))
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
