"""Set-ups that run and cannot be right: told before the first cell, with the likely cause."""

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
# Of Subspace.distance. On clean images it was 0.03 at most, with a wrong normalisation 0.5 and more, under severe
# corruptions up to 1.3.
_FAR, _FAR_WHEN_SHIFTED = 0.3, 3.0
_CAUSES = (
    "the input normalisation (inside the model?), images in [0, 255], BGR, the order of the labels, a checkpoint of "
    "another pre-processing"
)


@torch.no_grad()
def warn_of_wrong_setup(cfg: CfgNode, setting: Setting) -> None:
    """Look at the least shifted data at hand, and log a warning for what cannot be right; nothing is changed.

    Those are clean samples where the benchmark has them, otherwise some of every domain.
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
    predicted = _predict(model, inputs)
    correct, chance = int((predicted == labels).sum()), len(labels) / setting.benchmark.num_classes
    at_chance = correct <= chance + math.sqrt(chance)
    # A wrong normalisation can leave a third right: on clean data any network that is mostly wrong is looked at.
    cause = _likely_cause(setting, inputs, labels) if at_chance or (clean and 2 * correct < len(labels)) else ""
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
    """Return whether they are clean, and the inputs and labels of some samples, drawn evenly."""
    clean = benchmark.clean()
    domains = benchmark.domains()
    some = domains[:: -(-len(domains) // _DOMAINS)]
    datasets = [clean] if clean is not None else [benchmark.target(domain) for domain in some]
    each = -(-_SAMPLES // len(datasets))
    found = []
    for dataset in datasets:
        one_by_one = Stream(dataset, 1, 0, device)  # a batch of several could be of different sizes
        found += list(one_by_one.only(range(min(each, len(one_by_one)))))
    alike = [one for one in found if one.inputs.shape == found[0].inputs.shape]
    labels = torch.cat([one.labels for one in alike]).to(device)
    return clean is not None, torch.cat([one.inputs for one in alike]), labels


def _predict(model: nn.Module, inputs: Tensor) -> Tensor:
    return torch.cat([model(part).argmax(1) for part in inputs.split(32)])


def _likely_cause(setting: Setting, inputs: Tensor, labels: Tensor) -> str:
    """Return the mistake whose repair makes far more predictions right, if one does; otherwise an empty string."""
    model, benchmark = setting.loaded.model, setting.benchmark
    predicted, found = _predict(model, inputs), {}
    for cause, repaired in _repairs(inputs) if benchmark.images and inputs.ndim == 4 else ():
        found[cause] = (_predict(model, repaired) == labels).float().mean().item()
    offsets = (labels - predicted) % benchmark.num_classes
    found["the labels are shifted by a constant"] = (offsets == offsets.mode().values).float().mean().item()
    cause = max(found, key=lambda name: found[name])
    if found[cause] < (predicted == labels).float().mean().item() + max(0.1, 2 / benchmark.num_classes):
        return ""
    return f"{cause}, it seems; otherwise {100 * found[cause]:.0f} % of them would be right"


def _repairs(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield what may be wrong with images, and images in which it is not."""
    yield "the images are in [0, 255] where the model takes [0, 1]", x / 255
    yield "the model takes images in [0, 255]", x * 255
    if x.shape[1] == 3:
        mean, std = (torch.tensor(v, device=x.device).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
        yield "the images are in BGR order, or the model was trained on it", x.flip(1)
        yield "the input normalisation is missing", (x - mean) / std
        yield "the images are normalised twice", x * std + mean


def _features(cfg: CfgNode, setting: Setting, inputs: Tensor) -> Tensor:
    model, layer = setting.loaded.model, aligning_method(cfg).value_in(cfg, "layer")
    place, dim, _ = feature_place(cfg, model, setting.benchmark, inputs[:2])
    return torch.cat(list(iterate_features(model, place, inputs.split(32), layer, dim))).float()
