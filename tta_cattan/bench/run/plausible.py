"""Warn of set-ups that run but cannot be right, before the first cell and with the likely cause."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tta_cattan.alignment import Subspace
from tta_cattan.bench.data import Benchmark, Stream
from tta_cattan.bench.models.networks import IMAGENET_MEAN, IMAGENET_STD
from tta_cattan.bench.run.setting import Setting
from tta_cattan.bench.source.subspace import aligning_method, feature_place
from tta_cattan.network.layers import iterate_features

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

_SAMPLES, _DOMAINS = 128, 16
# Thresholds of Subspace.distance. On clean images it was at most 0.03, with a wrong normalisation at least 0.5, under
# severe corruptions up to 1.3.
_FAR, _FAR_WHEN_SHIFTED = 0.3, 3.0
# Threshold of the signed-rank statistic in standard deviations: on clean CIFAR-10 images in BGR it was at least 4.0
# (40 draws of 128), thus at most -4.0 in RGB.
_BETTER = 3.0
_CAUSES = (
    "the input normalisation (inside the model?), images in [0, 255], BGR, the order of the labels, a checkpoint of "
    "another pre-processing"
)
_BGR = "the images are in BGR order, or the model was trained on it"


@torch.no_grad()
def warn_of_wrong_setup(cfg: CfgNode, setting: Setting) -> None:
    """Check the setting on the least shifted data available, and log a warning for what cannot be right.

    The data are clean samples if the benchmark has them, otherwise some of up to 16 domains. Nothing is changed.
    """
    clean, inputs, labels = _sample(setting.benchmark, setting.device)
    which = "clean" if clean else "target"
    low, high = inputs.min().item(), inputs.max().item()
    if setting.benchmark.images and (low < -0.01 or high > 1.01):
        logger.warning(
            "the %s images lie in [%.3g, %.3g], and models take them in [0, 1]: are they normalised twice, or in "
            "[0, 255]?", which, low, high,
        )  # fmt: skip
    model = setting.loaded.model
    logits = _logits(model, inputs)
    correct, chance = int((logits.argmax(1) == labels).sum()), len(labels) / setting.benchmark.num_classes
    at_chance = correct <= chance + math.sqrt(chance)
    # A wrong normalisation can leave a third of the predictions right: on clean data any network that is mostly wrong
    # is examined. The wrong channel order costs less accuracy, so it is always tried.
    if at_chance or (clean and 2 * correct < len(labels)):
        cause = _likely_cause(setting, inputs, logits.argmax(1), labels)
    else:
        cause = _swapped_channels(setting, inputs, logits, labels)
    if at_chance or cause:
        logger.warning(
            "the source model is right on %d of %d %s samples (by chance %.1f): %s",
            correct, len(labels), which, chance, cause or f"check {_CAUSES}",
        )  # fmt: skip
    subspace = setting.subspace
    if isinstance(subspace, Subspace) and subspace.mean is not None and subspace.count:
        distance = subspace.distance(_features(cfg, setting, inputs))
        if distance > (_FAR if clean else _FAR_WHEN_SHIFTED):
            logger.warning(
                "the features of %s samples are far from those that the source subspace was fitted to (distance %.2g, "
                "0 = the same): check %s", which, distance, _CAUSES,
            )  # fmt: skip


def _sample(benchmark: Benchmark, device: torch.device) -> tuple[bool, Tensor, Tensor]:
    """Return whether the samples are clean, their inputs and their labels, drawn evenly from the domains."""
    clean = benchmark.clean()
    domains = benchmark.domains()
    some = domains[:: -(-len(domains) // _DOMAINS)]
    datasets = [clean] if clean is not None else [benchmark.target(domain) for domain in some]
    each = -(-_SAMPLES // len(datasets))
    found = []
    for dataset in datasets:
        one_by_one = Stream(dataset, 1, 0, device)  # the samples of a larger batch could differ in size
        found += list(one_by_one.only(range(min(each, len(one_by_one)))))
    alike = [one for one in found if one.inputs.shape == found[0].inputs.shape]
    labels = torch.cat([one.labels for one in alike]).to(device)
    return clean is not None, torch.cat([one.inputs for one in alike]), labels


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    return torch.cat([model(part) for part in inputs.split(32)])


def signed_rank(differences: Tensor) -> float:
    """Return Wilcoxon's signed-rank statistic in standard deviations: how far paired differences lie above 0."""
    n = len(differences)
    ranks = differences.abs().argsort().argsort().double() + 1
    return (ranks * differences.sign()).sum().item() / math.sqrt(n * (n + 1) * (2 * n + 1) / 6)


def _swapped_channels(setting: Setting, inputs: Tensor, logits: Tensor, labels: Tensor) -> str:
    """Return a BGR diagnosis if the labels are clearly more likely with swapped channels, else an empty string."""
    if not (setting.benchmark.images and inputs.ndim == 4 and inputs.shape[1] == 3):
        return ""
    swapped = _logits(setting.loaded.model, inputs.flip(1))
    before, after = (one.log_softmax(1).gather(1, labels[:, None])[:, 0] for one in (logits, swapped))
    share, otherwise = ((one.argmax(1) == labels).float().mean().item() for one in (logits, swapped))
    return _seems(_BGR, otherwise) if otherwise > share and signed_rank(after - before) > _BETTER else ""


def _likely_cause(setting: Setting, inputs: Tensor, predicted: Tensor, labels: Tensor) -> str:
    """Return the mistake whose repair makes far more predictions right, or an empty string if there is none."""
    model, benchmark = setting.loaded.model, setting.benchmark
    found: dict[str, float] = {}
    for cause, repaired in _repairs(inputs) if benchmark.images and inputs.ndim == 4 else ():
        found[cause] = (_logits(model, repaired).argmax(1) == labels).float().mean().item()
    offsets = (labels - predicted) % benchmark.num_classes
    found["the labels are shifted by a constant"] = (offsets == offsets.mode().values).float().mean().item()
    cause = max(found, key=lambda name: found[name])
    if found[cause] < (predicted == labels).float().mean().item() + max(0.1, 2 / benchmark.num_classes):
        return ""
    return _seems(cause, found[cause])


def _seems(cause: str, otherwise: float) -> str:
    return f"{cause}, it seems; otherwise {100 * otherwise:.0f} % of them would be right"


def _repairs(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield each mistake that images may have, and the images with that mistake repaired."""
    yield "the images are in [0, 255] where the model takes [0, 1]", x / 255
    yield "the model takes images in [0, 255]", x * 255
    if x.shape[1] == 3:
        mean, std = (torch.tensor(v, device=x.device).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
        yield _BGR, x.flip(1)
        yield "the input normalisation is missing", (x - mean) / std
        yield "the images are normalised twice", x * std + mean


def _features(cfg: CfgNode, setting: Setting, inputs: Tensor) -> Tensor:
    model, layer = setting.loaded.model, aligning_method(cfg).value_in(cfg, "layer")
    place, dim, _ = feature_place(cfg, model, setting.benchmark, inputs[:2])
    return torch.cat(list(iterate_features(model, place, inputs.split(32), layer, dim))).float()
