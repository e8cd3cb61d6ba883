"""Set-ups that run and cannot be right are told, with the likely cause; right ones are not."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tta_cattan.alignment import fit_source
from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.models.networks import IMAGENET_MEAN, IMAGENET_STD
from tta_cattan.bench.models.zoo import LoadedModel
from tta_cattan.bench.run.plausible import signed_rank, warn_of_wrong_setup
from tta_cattan.bench.run.setting import Setting
from tta_cattan.config import load_cfg

TEMPLATES = torch.rand(10, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def pictures(n, seed, noise):
    """Return n images of ten classes, each its template and noise, in [0, 1]."""
    generator, labels = torch.Generator().manual_seed(seed), torch.arange(n) % 10
    x = TEMPLATES[labels] + noise * torch.randn(n, 3, 4, 4, generator=generator)
    return TensorDataset(x.clamp(0, 1), labels)


class Templates(Benchmark):
    """Clean images, and two domains of noisy ones."""

    num_classes = 10

    def check(self):
        """Nothing can be missing."""

    def domains(self):
        return [Domain("noise", 1), Domain("noise", 5)]

    def target(self, domain, seed=0):
        return pictures(100, seed, 0.1 * domain.severity)

    def clean(self, seed=0):
        return pictures(200, seed, 0.05)

    def describe(self):
        return {}


def nearest_template():
    """Return the network ``-||x - t_c||^2`` up to what all classes share, on normalised features."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    with torch.no_grad():
        net[1].weight.copy_(2 * TEMPLATES.flatten(1))
        net[1].bias.copy_(-TEMPLATES.flatten(1).square().sum(1))
    return net


@pytest.fixture
def setting():
    cfg = load_cfg(None, ["MODEL.ADAPTATION", "cattan"])
    net = nearest_template()
    subspace = fit_source(net, [pictures(300, 5, 0.05).tensors])
    return cfg, Setting(Templates(cfg), LoadedModel.of(net, "a test"), torch.device("cpu"), subspace)


class Wrong:
    """A benchmark whose clean data went through something else."""

    def __init__(self, benchmark, images=lambda x: x, labels=lambda y: y, has_clean=True):
        self.benchmark, self.change, self.has_clean = benchmark, (images, labels), has_clean

    def __getattr__(self, name):
        return getattr(self.benchmark, name)

    def _changed(self, data):
        return TensorDataset(*(change(part) for change, part in zip(self.change, data.tensors, strict=True)))

    def clean(self, seed=0):
        return self._changed(self.benchmark.clean(seed)) if self.has_clean else None

    def target(self, domain, seed=0):
        return self._changed(self.benchmark.target(domain, seed))


def told(setting, caplog, **changes):
    cfg, found = setting
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        warn_of_wrong_setup(cfg, replace(found, benchmark=Wrong(found.benchmark, **changes)))
    return [record.getMessage() for record in caplog.records]


def test_a_right_setup_is_not_mentioned(setting, caplog):
    assert told(setting, caplog) == []
    assert told(setting, caplog, has_clean=False) == []


def test_images_in_0_to_255(setting, caplog):
    lines = told(setting, caplog, images=lambda x: 255 * x)
    assert "the clean images lie in [0, 255], and models take them in [0, 1]" in lines[0]
    assert "features of clean samples are far" in lines[-1] and "BGR" in lines[-1]
    assert "the target images lie" in told(setting, caplog, images=lambda x: 255 * x, has_clean=False)[0]


def test_bgr_is_named_where_it_costs_little(setting, caplog):
    from scipy.stats import wilcoxon

    cfg, found = setting
    other = replace(found, subspace=None)
    (line,) = told((cfg, other), caplog, images=lambda x: x.flip(1))
    right = int(line.split("right on ")[1].split()[0])
    assert 64 < right < 128, "no other rule would have looked"
    assert "the images are in BGR order, or the model was trained on it, it seems; otherwise 100 %" in line
    grey = told((cfg, other), caplog, images=lambda x: x.mean(1, keepdim=True).expand(-1, 3, -1, -1))
    assert not any("BGR order" in line for line in grey)
    differences = torch.randn(50, generator=torch.Generator().manual_seed(0)) + 0.3
    reference = wilcoxon(differences.numpy(), method="approx", correction=False, alternative="greater").zstatistic
    assert signed_rank(differences) == pytest.approx(reference)


def test_images_that_were_normalised_already(setting, caplog):
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    lines = told(setting, caplog, images=lambda x: (x - mean) / std)
    assert "and models take them in [0, 1]: are they normalised twice" in lines[0]
    assert "features of clean samples are far from those that the source subspace was fitted to" in lines[-1]


def test_shifted_labels_are_named(setting, caplog):
    (line,) = told(setting, caplog, labels=lambda y: (y + 1) % 10)
    assert "(by chance 12.8): the labels are shifted by a constant, it seems" in line


def test_a_model_of_another_pre_processing_is_named(setting, caplog):
    cfg, found = setting

    class Caffe(nn.Module):
        """A network for images in [0, 255]."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x / 255)

    model = Caffe(found.loaded.model)
    other = replace(found, loaded=LoadedModel.of(model, "a test"), subspace=None)
    lines = told((cfg, other), caplog)
    assert len(lines) == 1 and "the model takes images in [0, 255], it seems" in lines[0]


def test_a_cause_is_named_where_some_predictions_are_right(setting, caplog):
    cfg, found = setting

    class Normalised(nn.Module):
        """A network for images around 0, which prefers three of its classes."""

        def forward(self, x):
            return nearest_template()(0.25 * x + 0.45) + 3 * (torch.arange(10) < 3)

    other = replace(found, loaded=LoadedModel.of(Normalised(), "a test"), subspace=None)
    (line,) = told((cfg, other), caplog)
    right = int(line.split("right on ")[1].split()[0])
    assert 20 < right < 64 and "it seems; otherwise 100 % of them would be right" in line


def test_a_model_that_knows_nothing_gets_the_list_of_causes(setting, caplog):
    cfg, found = setting
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    nn.init.zeros_(net[1].weight)
    (line,) = told((cfg, replace(found, loaded=LoadedModel.of(net, "a test"), subspace=None)), caplog)
    assert "check the input normalisation" in line and "the order of the labels" in line
