"""Methods left on over long streams with rubbish: is any stream, or what follows it, worse than the source model?"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.accuracy.monitor_runs import load_network
from tta_cattan.alignment import fit_source_moments
from tta_cattan.bench.data.datasets import read_npz
from tta_cattan.methods import ADAPTATION_REGISTRY, method_title

PHASES = (
    "clean", "gaussian_noise", "motion_blur", "snow", "contrast", "jpeg_compression", "fog", "pixelate",
)  # fmt: skip
RUBBISH = ("noise", "constant", "overexposed")
RUBBISH_BATCHES = 50
CLEAN = 1000  # images that test the model afterwards


@dataclass(frozen=True)
class Stream:
    """Rounds over the phases; ``classes`` draws each phase's images, ``rubbish`` comes between the phases."""

    name: str
    batch: int = 64
    rounds: int = 1
    images: int = 256  # of a phase
    classes: str = "balanced"
    rubbish: bool = False


STREAMS = (
    Stream("recurring, 10 rounds, batch 64", rounds=10, images=64),
    Stream("recurring, 10 rounds, batch 8", batch=8, rounds=10, images=64),
    Stream("recurring, 10 rounds, batch 1", batch=1, rounds=10, images=16),
    Stream("sorted by class", classes="sorted"),
    Stream("sorted by class, batch 8", batch=8, classes="sorted"),
    Stream("Dirichlet 0.1", classes="dirichlet"),
    Stream("two of ten classes", classes="two"),
    Stream("long tail", classes="tail"),
    Stream("50 batches of noise, constant and overexposed images between phases", rubbish=True),
)


def order(labels: np.ndarray, classes: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the places of ``count`` images: balanced, sorted, in Dirichlet(0.1) runs, of two classes, or a tail.

    A Dirichlet run spreads each class over ten slots by its own draw, the slots follow each other; the tail keeps
    ``0.6^c`` of class c.
    """
    shuffled = rng.permutation(len(labels))
    if classes == "two":
        return shuffled[labels[shuffled] < 2][:count]
    if classes == "tail":
        return shuffled[rng.random(len(labels)) < 0.6 ** labels[shuffled]][:count]
    chosen = shuffled[:count]
    if classes == "sorted":
        return chosen[np.argsort(labels[chosen], kind="stable")]
    if classes == "dirichlet":
        slots = np.empty(count)
        for c in np.unique(labels[chosen]):
            mine = labels[chosen] == c
            slots[mine] = rng.choice(10, mine.sum(), p=rng.dirichlet(np.full(10, 0.1)))
        return chosen[np.argsort(slots, kind="stable")]
    return chosen


def rubbish(kind: str, batch: int, generator: torch.Generator) -> Tensor:
    """Return a batch of images in [0, 1] that show nothing."""
    if kind == "noise":
        return torch.rand(batch, 3, 32, 32, generator=generator)
    level = torch.rand(batch, 1, 1, 1, generator=generator)
    return (level if kind == "constant" else 0.97 + 0.03 * level).expand(batch, 3, 32, 32).clone()


def load_phase(folder: Path, name: str) -> tuple[Tensor, np.ndarray]:
    """Return the images of a phase in [0, 1] and their labels."""
    x, y = read_npz(folder / "clean.npz", ("x", "y"))
    if name != "clean":
        x = np.load(folder / "CIFAR-10-C" / f"{name}.npy", mmap_mode="r")[-len(y) :]
    return torch.from_numpy(np.array(x)).permute(0, 3, 1, 2).float() / 255, y


def batches(stream: Stream, folder: Path, seed: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield images and labels; rubbish has none."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    data = {name: load_phase(folder, name) for name in PHASES}
    for number in range(stream.rounds * len(PHASES)):
        x, y = data[PHASES[number % len(PHASES)]]
        for places in torch.from_numpy(order(y, stream.classes, stream.images, rng)).split(stream.batch):
            yield x[places], torch.from_numpy(y)[places]
        if stream.rubbish and number < len(RUBBISH):
            for _ in range(RUBBISH_BATCHES):
                yield rubbish(RUBBISH[number], stream.batch, generator), None


def held_out(data: Path) -> tuple[Tensor, Tensor]:
    """Return the clean images that test a model afterwards, and their labels."""
    x, y = read_npz(data / "cifar10" / "test.npz", ("x", "y"))
    return torch.from_numpy(x[-CLEAN:]).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(y[-CLEAN:])


def accuracies(method: nn.Module, stream: Stream, folder: Path, clean: tuple[Tensor, Tensor], seed: int) -> list[float]:
    """Return the accuracy over a stream and, predicting only, on clean images afterwards (%)."""
    right = [method(x).argmax(1).eq(y) for x, y in batches(stream, folder, seed) if y is not None or method(x) is None]
    predict = getattr(method, "predict", method)
    afterwards = torch.cat([predict(x).argmax(1) for x in clean[0].split(100)]).eq(clean[1])
    return [100 * torch.cat(found).float().mean().item() for found in (right, [afterwards])]


@torch.no_grad()
def table(data: Path, out: Path, methods: Sequence[str] = ("tent", "cattan_plus"), seed: int = 0) -> str:
    """Return accuracy over each stream and on clean images afterwards: the source model and the methods."""
    network = load_network(data, "resnet20")
    x, _ = read_npz(data / "cifar10" / "train_first10k.npz", ("x", "y"))
    source = (torch.from_numpy(b).permute(0, 3, 1, 2).float() / 255 for b in np.array_split(x[:4096], 32))
    moments = fit_source_moments(copy.deepcopy(network), source)
    held = held_out(data)
    titles = [method_title(name) for name in ("source", *methods)]
    heads = [f"{title}{after}" for title in titles for after in ("", ", clean afterwards")]
    lines = [f"| stream | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for stream in STREAMS:
        cells = accuracies(network, stream, out / "cifar-reported", held, seed)
        for name in methods:
            kind = ADAPTATION_REGISTRY.get(name)
            options = {"source_moments": moments} if kind.source_argument == "source_moments" else {}
            cells += accuracies(kind(copy.deepcopy(network), **options), stream, out / "cifar-reported", held, seed)
        lines.append(f"| {stream.name} | {' | '.join(f'{cell:.1f}' for cell in cells)} |")
    return "\n".join(lines)


def safety_table(data: Path, out: Path, seed: int = 0) -> str:
    """Return accuracy over each stream, and on clean images afterwards, of methods with gradients at two rates.

    A cell holds that without and with resets by ``SAFETY``, and their number.
    """
    network, held = load_network(data, "resnet20"), held_out(data)
    kinds = list(product(("tent", "cattan"), (1e-3, 1e-2)))
    titles = ["Source", *(f"{method_title(name)}, {lr:g}" for name, lr in kinds)]
    lines = [
        [f"| {what} | {' | '.join(titles)} |", f"|---|{'---:|' * len(titles)}"] for what in ("stream", "afterwards")
    ]
    for stream in STREAMS:
        with torch.no_grad():
            rows = [[f"{found:.1f}"] for found in accuracies(network, stream, out / "cifar-reported", held, seed)]
        for name, lr in kinds:
            found, resets = [], 0
            for reaction in ("reset", "report"):
                if reaction == "report" and not resets:  # without an alarm the bits are the same
                    found *= 2
                    continue
                options = {"lr": lr, "on_collapse": reaction, "on_divergence": reaction}
                method = ADAPTATION_REGISTRY.get(name)(copy.deepcopy(network), **options)
                found.append(accuracies(method, stream, out / "cifar-reported", held, seed))
                resets += method.safety.resets
            for row, guarded, plain in zip(rows, *found, strict=True):
                row.append(f"{plain:.1f}, {guarded:.1f} ({resets})")
        for part, row in zip(lines, rows, strict=True):
            part.append(f"| {stream.name} | {' | '.join(row)} |")
            print(part[-1], flush=True)
    return "\n".join([*lines[0], "", *lines[1]])
