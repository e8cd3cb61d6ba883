"""SHOT: information maximisation and pseudo-labels from feature centroids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_cattan.losses import information_maximization
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod, Batches
from tta_cattan.methods.target import Target
from tta_cattan.network.layers import find_classifier
from tta_cattan.util.errors import UserError
from tta_cattan.util.keys import at_least, key
from tta_cattan.util.state import stateful


def centroid_features(features: Tensor) -> Tensor:
    """Append a constant 1 to each feature vector and normalise to length 1."""
    return F.normalize(torch.cat([features, features.new_ones(len(features), 1)], 1), dim=1)


def centroid_sums(features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``sum_i w_ic z_i`` per class (C x D+1), and how many samples have each class as their largest weight.

    Note: the cosine does not need the division by ``sum_i w_ic``. A sample with NaN or Inf in its features or weights
    is left out, because it would corrupt every centroid.
    """
    finite = torch.isfinite(features).all(1) & torch.isfinite(weights).all(1)
    weights = weights[finite]
    predicted = torch.zeros_like(weights[:0].sum(0)).index_add_(0, weights.argmax(1), torch.ones_like(weights[:, 0]))
    return weights.T @ features[finite], predicted


def nearest_centroid(features: Tensor, sums: Tensor, predicted: Tensor) -> Tensor:
    """Return the class of the nearest centroid (cosine), among the classes that are predicted at least once."""
    similarity = features @ F.normalize(sums, dim=1).T
    return similarity.masked_fill(predicted == 0, float("-inf")).argmax(1)


def pseudo_labels(batches: Iterable[tuple[Tensor, Tensor]], rounds: int = 2) -> Tensor:
    """Return SHOT's pseudo-labels for batches of (features, logits): the nearest centroid of each sample.

    The first round weights the centroids by softmax, the other ``rounds - 1`` use the labels of the round before.
    Note: batches are read one at a time, and only their normalised features are kept (n x D+1 in all).
    """
    kept: list[Tensor] = []
    parts = []
    for features, logits in batches:
        kept.append(centroid_features(features))
        parts.append(centroid_sums(kept[-1], logits.softmax(1)))
        classes = logits.shape[1]
    for _ in range(rounds):
        sums, predicted = (sum(column) for column in zip(*parts, strict=True))
        labels = [nearest_centroid(z, sums, predicted) for z in kept]
        parts = [centroid_sums(z, F.one_hot(found, classes).to(z)) for z, found in zip(kept, labels, strict=True)]
    return torch.cat(labels)


@stateful
@dataclass
class ShotTarget(Target):
    """Pseudo-labels by sample index (offline, ``known``), or running sums of the centroids (online)."""

    sums: Tensor | None = None
    predicted: Tensor | None = None  # number of samples predicted as each class


@ADAPTATION_REGISTRY.register()
class Shot(AdaptationMethod):
    """Minimise ``L = information maximisation + lambda_pl x cross-entropy`` to pseudo-labels.

    Offline, the labels come from all target features and are refreshed every epoch. Online, the softmax-weighted
    centroids are summed over the batches seen so far, and each batch is labelled with them.
    """

    title = "SHOT"
    node = "SHOT"
    lambda_pl: float = key(0.3, "weight of the cross-entropy to the pseudo-labels", at_least(0), origin="SHOT")
    target_type = ShotTarget
    target: ShotTarget

    def inspect(self, model: nn.Module) -> None:
        """Find the classifier, whose inputs are the features for the centroids."""
        super().inspect(model)
        self.classifier = find_classifier(model, self.classifier, self.num_classes)

    @torch.no_grad()
    def start_epoch(self, batches: Batches) -> None:
        """Recompute the pseudo-label of every target sample."""
        indices: list[Tensor] = []

        def passes() -> Iterator[tuple[Tensor, Tensor]]:
            for index, x in batches:
                if index is None:
                    raise UserError("SHOT keeps a label per sample: give batches of (indices, images)")
                indices.append(index)
                logits, features = self.logits_and_head_input(x, adapting=False)
                yield features, logits
            if not indices:
                raise UserError("no target data to take pseudo-labels from: the batches are empty")

        labels = pseudo_labels(passes())
        self.target.known = dict(zip(torch.cat(indices).tolist(), labels.tolist(), strict=True))

    def loss_calculation(self, x: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the logits and ``IM + lambda_pl CE(pseudo-labels)``."""
        logits, features = self.logits_and_head_input(x, adapting=True)
        if self.target.known and indices is not None:
            labels = torch.tensor([self._label_of(i) for i in indices.tolist()], device=logits.device)
        else:
            labels = self._label_batch(features.detach(), logits.detach())
        loss = information_maximization(logits) + self.lambda_pl * F.cross_entropy(logits, labels)
        return logits, loss

    def _label_batch(self, features: Tensor, logits: Tensor) -> Tensor:
        """Add a batch to the running centroids and label it with them."""
        z = centroid_features(features)
        target = self.target
        if self.new_batch or target.sums is None:
            sums, predicted = centroid_sums(z, logits.softmax(1))
            target.sums = sums if target.sums is None else target.sums + sums
            target.predicted = predicted if target.predicted is None else target.predicted + predicted
        return nearest_centroid(z, target.sums, target.predicted)

    def _label_of(self, index: int) -> int:
        if index not in self.target.known:
            raise UserError(f"sample {index} has no pseudo-label: start_epoch did not see it; give it all batches")
        return self.target.known[index]
