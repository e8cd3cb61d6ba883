"""Models, subspaces and data that several benchmarks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from tta_cattan.alignment import Subspace, fit_source_moments
from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.models.networks import SmallResNet
from tta_cattan.bench.models.zoo import LoadedModel
from tta_cattan.bench.results.store import Cell
from tta_cattan.bench.run.plan import Job
from tta_cattan.bench.run.setting import Setting
from tta_cattan.config import load_cfg
from tta_cattan.methods.cattan import CATTAn
from tta_cattan.methods.cattan_plus import CATTAnPlus
from tta_cattan.util.upstream import import_torchvision

TINY = "SmallResNet"  # the network that only shows that a benchmark runs
TINY_DIM = 64  # of its features


def network(name: str, classes: int = 1000) -> nn.Module:
    """Return a torchvision model, or TINY, with random weights: what a step costs does not depend on them."""
    torch.manual_seed(0)
    if name == TINY:
        return SmallResNet(classes).eval()
    return import_torchvision("torchvision.models").get_model(name, weights=None, num_classes=classes).eval()


def random_subspace(dim: int, d: int, seed: int = 0) -> Subspace:
    """Return a random orthonormal basis (D x d) with a falling spectrum."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(dim, d, generator=generator)).Q
    return Subspace(basis, torch.linspace(2, 1, d), torch.zeros(dim), 10 * dim, True)


def aligned(model: nn.Module, dim: int, d: int, **options: object) -> CATTAn:
    """Return CATTAn as it is after ``prepare``, with random subspaces."""
    method = CATTAn(model, source_subspace=random_subspace(dim, d), d=d, **options)
    method.begin_target(random_subspace(dim, d, 1))
    return method


def learning(model: nn.Module, x: Tensor) -> CATTAnPlus:
    """Return CATTAn+ as it is after ``prepare`` on ``x``, with the moments of darker random images."""
    source = torch.rand(64, *x.shape[1:2], 64, 64) * torch.rand(64, 3, 1, 1)
    options = {"classes": False, "class_change": 0.0, "far": 1e9, "on_collapse": "report"}
    method = CATTAnPlus(model, source_moments=fit_source_moments(model, [source]), **options)
    method.prepare([(torch.arange(len(x)), x)])
    return method


class InMemory(Benchmark):
    """Random images in memory."""

    def __init__(self, cfg: object, images: Tensor, classes: int) -> None:
        super().__init__(cfg)
        labels = torch.arange(len(images)) % classes
        self.num_classes, self.data = classes, TensorDataset(images, labels)

    def check(self) -> None:
        """Nothing can be missing."""

    def target(self, domain: Domain, seed: int = 0) -> Dataset:
        return self.data

    def describe(self) -> dict[str, object]:
        return {"name": "random images"}


def job_in_memory(
    model: nn.Module, images: Tensor, subspace: Subspace | None, *overrides: object
) -> tuple[Job, Setting]:
    """Return what the harness needs to run a cell on ``images``."""
    cfg = load_cfg(None, ["DEVICE", "cpu", *overrides])
    classes = model(images[:1]).shape[1]
    loaded = LoadedModel.of(model, "random weights")
    job = Job(cfg, Cell(cfg.MODEL.ADAPTATION.lower(), "random", 0, 0))
    return job, Setting(InMemory(cfg, images, classes), loaded, torch.device("cpu"), subspace)
