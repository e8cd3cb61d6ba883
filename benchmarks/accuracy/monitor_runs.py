"""What the evaluation of the monitor looks at: logits, features and labels of networks on shifts, kept in files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tta_cattan.alignment import fit_source_moments
from tta_cattan.alignment.aligned import AlignedHead
from tta_cattan.bench.data.corruptions import COMMON
from tta_cattan.bench.data.corruptions.make import Task, corrupt_array_file
from tta_cattan.bench.data.datasets import read_npz
from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.networks import inner_network
from tta_cattan.bench.models.zoo import ARCHITECTURES
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.network.layers import find_classifier
from tta_cattan.util.files import atomic_path

CHOOSING = COMMON[1::3]  # shot noise, glass blur, snow, brightness, pixelate: they choose and are not reported
REPORTED = tuple(name for name in COMMON if name not in CHOOSING)
SEVERITIES = (1, 3, 5)
ADAPTED = {"resnet20": (3, 5), "resnet56": (5,)}  # severities that methods adapt to
# Of CIFAR-10's 7,954 test images at hand.
PARTS = {"reported": slice(0, 1000), "choosing": slice(2000, 3000)}
CALIBRATION, CLEAN = slice(5954, 7954), slice(0, 5954)
BATCH = 100
COLUMNS = ("logits", "features", "labels", "dropped", "softened", "domain")
DRAWS, DROPPED = 10, 0.4  # dropout predictions of AETTA, on the features


@dataclass(frozen=True)
class Run:
    """A network under a method on a list of (corruption, severity), one after the other; severity 0 is clean."""

    network: str
    method: str
    part: str
    domains: tuple[tuple[str, int], ...]
    batch: int = BATCH
    lr: float | None = None
    seed: int = 0
    count: int = -1  # images of each domain; -1: all

    @property
    def name(self) -> str:
        where = "-".join(f"{name}{severity}" for name, severity in self.domains) if len(self.domains) == 1 else "stream"
        rate = "" if self.lr is None else f"-lr{self.lr:g}"
        return f"{self.network}-{self.method}{rate}-b{self.batch}-{self.part}-{where}-s{self.seed}"


@dataclass(frozen=True)
class Outputs:
    """What a run gave, sample by sample in the order of its stream."""

    logits: Tensor
    features: Tensor
    labels: Tensor
    dropped: Tensor  # n x DRAWS, classes predicted from features with dropout
    softened: Tensor  # n x classes, mean probabilities under dropout
    domain: Tensor  # n, place in the run's list
    batch: int

    @property
    def accuracy(self) -> float:
        return (self.logits.argmax(1) == self.labels).double().mean().item()


def make_data(data: Path, out: Path) -> None:
    """Corrupt the two parts of the test images."""
    for part, corruptions in (("reported", REPORTED), ("choosing", CHOOSING)):
        clean = out / part / "clean.npz"
        if not clean.is_file():
            x, y = read_npz(data / "cifar10" / "test.npz", ("x", "y"))
            with atomic_path(clean) as path, path.open("wb") as target:
                np.savez(target, x=x[PARTS[part]], y=y[PARTS[part]])
        corrupt_array_file(clean, out / part / "CIFAR-10-C", Task(corruptions, SEVERITIES, "cifar"))


def load_images(data: Path, out: Path, run: Run, name: str, severity: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of one domain, shuffled by the run's seed."""
    if severity:
        folder = out / run.part / "CIFAR-10-C"
        y = np.load(folder / "labels.npy")
        x = np.load(folder / f"{name}.npy", mmap_mode="r")[(severity - 1) * len(y) :][: len(y)]
    else:
        x, y = read_npz(data / "cifar10" / "test.npz", ("x", "y"))
        part = {"calibration": CALIBRATION, "clean": CLEAN}.get(name) or PARTS[run.part]
        x, y = x[part], y[part]
    order = np.random.default_rng(run.seed).permutation(len(y))[: run.count if run.count > 0 else None]
    return x[order], y[order]


def load_network(data: Path, name: str) -> nn.Module:
    """Return one of He et al.'s networks for images in [0, 1]."""
    model = ARCHITECTURES.get(f"cifar_{name}")(10)
    load_weights(inner_network(model), str(data / "cifar10" / f"{name}.safetensors"))
    return model.eval()


def outputs_of(data: Path, out: Path, run: Run) -> Outputs:
    """Return the outputs of a run, computed once."""
    path = out / "outputs" / f"{run.name}.npz"
    if not path.is_file():
        columns = compute(data, out, run)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("wb") as target:
            np.savez(target, **columns)
    found = np.load(path)
    return Outputs(*(torch.from_numpy(found[name]) for name in COLUMNS), batch=run.batch)


def compute(data: Path, out: Path, run: Run) -> dict[str, np.ndarray]:
    """Predict and adapt over the domains once, without a reset, and return the columns of the file."""
    torch.manual_seed(run.seed)
    options: dict[str, Any] = {} if run.lr is None else {"lr": run.lr}
    options |= {"on_collapse": "report", "on_divergence": "report"}  # what a monitor is to find
    network = load_network(data, run.network)
    if run.method == "cattan_forward":
        x, _ = read_npz(data / "cifar10" / "train_first10k.npz", ("x", "y"))
        images = torch.from_numpy(x[:4096]).permute(0, 3, 1, 2).float() / 255
        options["source_moments"] = fit_source_moments(network, images.split(BATCH))
    method = ADAPTATION_REGISTRY.get(run.method)(network, **options)
    method.safety.compares = lambda: False  # the hook below takes one pass per batch
    head = method.model.get_submodule(getattr(method, "aligned_name", None) or find_classifier(method.model))
    rows: dict[str, list[Tensor]] = {name: [] for name in COLUMNS}
    generator = torch.Generator().manual_seed(run.seed)

    def watch(_: nn.Module, args: tuple[Tensor, ...], __: Tensor) -> None:
        z = args[0].detach()
        weight, bias = head.linear_map() if isinstance(head, AlignedHead) else (head.weight, head.bias)
        rows["features"].append(z.clone())
        draws = torch.stack([_dropped(z, weight, bias, generator) for _ in range(DRAWS)], 1)
        rows["dropped"].append(draws.argmax(2))
        rows["softened"].append(draws.softmax(2).mean(1))

    head.register_forward_hook(watch)
    for place, (name, severity) in enumerate(run.domains):
        for x, y in _batches(*load_images(data, out, run, name, severity), run.batch):
            rows["logits"].append(method(x).detach())
            rows["labels"].append(y)
            rows["domain"].append(torch.full_like(y, place))
    return {name: torch.cat(parts).detach().numpy() for name, parts in rows.items()}


@torch.no_grad()
def _dropped(z: Tensor, weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> Tensor:
    kept = torch.rand(z.shape, generator=generator) >= DROPPED
    return nn.functional.linear(z * kept / (1 - DROPPED), weight, bias)


def _batches(x: np.ndarray, y: np.ndarray, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(x), size):
        images = torch.from_numpy(np.ascontiguousarray(x[start : start + size]))
        yield images.permute(0, 3, 1, 2).float() / 255, torch.from_numpy(y[start : start + size].astype(np.int64))


def stream_runs() -> list[Run]:
    """Return the continual streams over the ten reported corruptions, some at rates at which methods collapse."""
    hard = tuple((name, 5) for name in REPORTED)
    settings: list[tuple[str, int, float | None]] = [
        ("source", BATCH, None), ("tent", BATCH, None), ("cattan_forward", BATCH, None), ("cattan_forward", 16, None),
        ("tent", BATCH, 1e-2), ("tent", BATCH, 3e-2), ("tent", BATCH, 0.1), ("tent", 16, 3e-3), ("tent", 16, 3e-2),
    ]  # fmt: skip
    return [Run("resnet20", method, "reported", hard, batch, lr, count=500) for method, batch, lr in settings]


def calibration_run(run: Run) -> Run:
    """Return the labelled stream that a monitor of ``run`` is fitted to: clean images, then corruptions that choose."""
    shifts = tuple((name, severity) for severity in (3, 5) for name in CHOOSING)
    return Run(run.network, run.method, "choosing", (("calibration", 0), *shifts), run.batch, run.lr, count=500)


def clean_runs() -> list[Run]:
    """Return streams without shift, twice in another order."""
    methods = ("source", "tent", "cattan_forward")
    return [Run("resnet20", method, "clean", (("clean", 0),), seed=seed) for method in methods for seed in (0, 1)]
