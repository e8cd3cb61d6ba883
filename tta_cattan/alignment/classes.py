"""The target's classes: normal distributions in its subspace, fitted without labels, and predictions that use them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_cattan.alignment.fitting import FeatureMoments, subspace_of_moments
from tta_cattan.alignment.subspace import float64_device
from tta_cattan.network.layers import effective_linear, with_weight
from tta_cattan.util.state import stateful

_EMPTY = 1e-6  # samples; a class with fewer counts as empty
_OVERCONFIDENCE = 1.5  # actual errors per error that a network expects; 1.4 to 1.7 on shifted data


def class_discriminants(coordinates: Tensor, shares: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Return ``G = S^-1 M^T`` (d x C) and ``g = log pi - 1/2 diag(M S^-1 M^T)`` (C), one covariance for all classes.

    ``x G + g`` is ``log(pi_c N(x; m_c, S))`` up to a term common to all classes. ``pi`` are the class fractions; ``M``
    holds the means of ``coordinates`` (n x d) weighted by ``shares`` (n x C, rows sum to 1); ``S`` is the covariance
    around these means, shrunk by ``shrinkage`` towards an isotropic one.
    """
    counts, means, covariance = _moments(coordinates, shares, shrinkage)
    weight = torch.linalg.solve(covariance, means.T)
    parts = (counts / len(coordinates)).clamp_min(_EMPTY)
    return weight, parts.log() - 0.5 * (means * weight.T).sum(1)


def left_out_densities(coordinates: Tensor, shares: Tensor, shrinkage: float) -> Tensor:
    """Return the leave-one-out ``log(pi_c N(x; m_c, S))`` (n x C) up to a constant: ``pi`` and ``m`` exclude ``x``.

    Without ``x`` and its share p, a class of N samples has the mean ``(N m - p x) / (N - p)``, so a class that consists
    of only a few samples does not hold on to them. A class that consists of ``x`` alone gets the mean 0, as
    ``coordinates`` are centred. ``S`` is that of all samples.
    """
    counts, means, covariance = _moments(coordinates, shares, shrinkage)
    others = counts - shares + _EMPTY
    solved = torch.linalg.solve(covariance, torch.cat([coordinates, means]).T).T
    of_samples, of_means = solved.tensor_split([len(coordinates)])
    # x - (N m - p x) / (N - p) = (N x - N m) / (N - p)
    own = counts + _EMPTY
    distances = (coordinates @ of_means.T).mul_(-2 * own * counts)
    distances += own.square() * (coordinates * of_samples).sum(1, keepdim=True)
    distances += counts.square() * (means * of_means).sum(1)
    return (others / len(coordinates)).log_().sub_(distances.div_(others.square()).clamp_min_(0), alpha=0.5)


def sample_weight(n: int, classes: int, doubt: float) -> float:
    """Return ``n / (n + doubt C)``, the weight of the fitted classes: small if there are few samples per class."""
    return n / (n + doubt * classes)


def change_weight(changed: float, calm: float) -> float:
    """Return ``c^2 / (c^2 + calm^2)`` for the fraction ``c`` of predictions that adaptation changed.

    If it is small there was little to repair, and the network is more reliable than normal distributions.
    """
    if not calm:
        return 1.0
    return 1 / (1 + (calm / changed) ** 2) if changed else 0.0


def may_be_balanced(logits: Tensor) -> bool:
    """Return whether ``1/2 sum |m - 1/C|`` of the mean prediction ``m`` is within ``balanced_limit``."""
    parts = logits[logits.isfinite().all(1)].softmax(1)
    if not len(parts):
        return True
    mean = parts.mean(0)
    deviation = 0.5 * (mean - 1 / len(mean)).abs().sum()
    return bool(deviation <= balanced_limit(1 - parts.amax(1).mean(), len(parts), len(mean)))


def balanced_limit(doubt: Tensor, n: int, classes: int) -> Tensor:
    """Return ``1.5 doubt + sqrt((C - 1) / (2 pi n))``: how far predictions of balanced classes may be from uniform.

    Predicted class fractions differ from the true ones by at most the error rate (total variation). The network
    expects an error rate of ``doubt = 1 - mean(max softmax(y))`` and makes more. The second term is how far n samples
    of C balanced classes are from uniform themselves, on average and unless n is very small.

    Note: an average, not a bound: a network that is certain of everything may be found unbalanced by chance. It does
    not need the balance either.
    """
    return _OVERCONFIDENCE * doubt + math.sqrt((classes - 1) / (2 * math.pi * n))


def balancing_offset(logits: Tensor, rounds: int = 20) -> Tensor:
    """Return the offset ``w`` (C) with which the mean of ``softmax(y + w)`` is uniform.

    Note: if few samples are uncertain and many would have to change, ``rounds`` run out before that.
    """
    offset = torch.zeros_like(logits[0])
    for _ in range(rounds):
        parts = (logits + offset).softmax(1).mean(0)
        offset = offset - (parts * len(parts)).clamp_min(_EMPTY).log()
    return offset


def fit_class_structure(
    coordinates: Tensor, logits: Tensor, rho: float, shrinkage: float = 0.3, level: float = 0.0, rounds: int = 10
) -> tuple[Tensor, Tensor, float]:
    """Return weight (d x C), offset (C) and temperature of ``t (y + x weight + offset)``, the combined logits.

    They combine the network's prediction, ``softmax(y)``, with the density of the target's classes in its subspace, to
    the power ``rho``: both are multiplied and the classes refitted to the product, ``rounds`` times (expectation
    maximisation with the network as the prior, leave-one-out). Each time, the class priors are pulled towards uniform
    by ``level`` (in log space). ``t`` keeps the mean confidence at the network's, because the d directions are less
    independent than a normal distribution assumes.
    """
    device = float64_device(coordinates.device)
    x, y = coordinates.to(device).double(), logits.to(device).double()
    centre = x.mean(0)
    x = x - centre
    shares = y.softmax(1)
    for _ in range(rounds - 1):
        joint = left_out_densities(x, shares, shrinkage).mul_(rho).add_(y)
        shares = (joint + level * balancing_offset(joint) if level else joint).softmax(1)
    weight, offset = (rho * found for found in class_discriminants(x, shares, shrinkage))
    if level:
        offset = offset + level * balancing_offset(y + x @ weight + offset)
    temperature = matching_temperature(y + x @ weight + offset, y.softmax(1).amax(1).mean().item())
    return weight.to(logits), (offset - centre @ weight).to(logits), temperature


def matching_temperature(logits: Tensor, confidence: float) -> float:
    """Return the ``t`` in [1e-4, 1] at which the mean of ``max softmax(t y)`` is ``confidence``, or a bound."""
    low, high = 1e-4, 1.0
    if (high * logits).softmax(1).amax(1).mean().item() <= confidence:
        return high
    for _ in range(40):
        middle = (low * high) ** 0.5
        above = (middle * logits).softmax(1).amax(1).mean().item() > confidence
        low, high = (low, middle) if above else (middle, high)
    return (low * high) ** 0.5


def _moments(coordinates: Tensor, shares: Tensor, shrinkage: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sample count and mean of each class, and their common, shrunk covariance."""
    counts = shares.sum(0)
    means = shares.T @ coordinates / counts.clamp_min(_EMPTY)[:, None]
    covariance = (coordinates.T @ coordinates - (counts[:, None] * means).T @ means) / len(coordinates)
    even = torch.eye(len(covariance)).to(covariance) * covariance.diagonal().mean().clamp_min(_EMPTY)
    return counts, means, torch.lerp(covariance, even, shrinkage)


@stateful
@dataclass(eq=False)  # == of tensors is not a single bool
class TargetClasses:
    """``t (y + z A^T + a)`` of logits ``y`` and features ``z``: the network combined with the target's classes."""

    weight: Tensor
    bias: Tensor
    temperature: Tensor

    def __call__(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return the combined logits."""
        weight, bias = self.weight.to(features), self.bias.to(features)
        return self.temperature.to(features) * (logits + F.linear(features, weight, bias))

    @torch.no_grad()
    def fold_into(self, linear: nn.Linear) -> nn.Module:
        """Return the single linear layer that equals ``linear`` combined with the classes."""
        weight, bias = effective_linear(linear)
        bias = self.bias if bias is None else self.bias + bias
        joint, shift = self.temperature * (weight + self.weight), self.temperature * bias
        return with_weight(linear, joint.to(weight), shift.to(weight))


FITTED_TO = 4096  # samples to fit the subspace of the classes to; the rest are only projected
DIRECTIONS = 64  # most directions of the classifier's input in which the classes are fitted
_SHRINKAGE = 0.3  # share of the isotropic part in their covariance
_PRIOR_COUNT = 10.0  # samples per class at which the classes get half their weight
_FEWEST = 2  # samples per class, since each is judged by the others
_UNIFORMITY = 0.5  # how strongly the class priors are pulled towards uniform


class TargetSamples:
    """Logits of a target's samples, and their coordinates in the main directions of the first of them.

    Only the ``d`` coordinates and the logits are kept per sample; samples that are not finite are left out.
    """

    def __init__(self) -> None:
        self.basis: Tensor | None = None  # D x d
        self._waiting: list[Tensor] = []  # features, until there are enough to fit the basis
        self._coordinates: list[Tensor] = []
        self._logits: list[Tensor] = []
        self._finite: list[Tensor] = []

    def add(self, logits: Tensor, features: Tensor) -> None:
        """Add the logits (n x C) and features (n x D) of a batch."""
        finite = logits.isfinite().all(1) & features.isfinite().all(1)
        self._finite.append(finite)
        self._logits.append(logits[finite])
        if self.basis is not None:
            self._coordinates.append(features[finite] @ self.basis)
            return
        self._waiting.append(features[finite])
        if sum(map(len, self._waiting)) >= FITTED_TO:
            self._fit()

    def _fit(self) -> None:
        moments = FeatureMoments(self._waiting[0].shape[1], self._waiting[0].device)
        for features in self._waiting:
            moments.update(features.float())
        d = min(DIRECTIONS, moments.sample_count() - 1, self._waiting[0].shape[1])
        self.basis = subspace_of_moments(moments, d).basis.to(self._waiting[0])
        self._coordinates = [features @ self.basis for features in self._waiting]
        self._waiting = []

    def coordinates(self) -> Tensor:
        """Return the coordinates (n x d) of all samples; empty for fewer than two, which span no subspace."""
        if self.basis is None and sum(map(len, self._waiting)) >= 2:
            self._fit()
        return torch.cat(self._coordinates) if self._coordinates else torch.empty(0, 0)

    def logits(self) -> Tensor:
        """Return the logits (n x C)."""
        return torch.cat(self._logits)

    def changed(self, before: Iterable[Tensor]) -> float:
        """Return the fraction of samples whose predicted class differs from ``before``, given batch by batch."""
        now = self.logits().argmax(1).cpu()
        then = torch.cat([b[f.cpu()] for b, f in zip((b.cpu() for b in before), self._finite, strict=True)])
        return (now != then).double().mean().item()

    def classes(self, before: Iterable[Tensor], calm: float) -> tuple[TargetClasses | None, float | None]:
        """Return the classes, weighted less if samples are few or little has changed, and the fraction that changed.

        Note: with fewer than two samples per class, no classes are fitted.
        """
        coordinates = self.coordinates()
        if not len(coordinates):
            return None, None
        logits, changed = self.logits(), self.changed(before)
        if len(logits) < _FEWEST * logits.shape[1]:
            return None, changed
        rho = sample_weight(len(logits), logits.shape[1], _PRIOR_COUNT) * change_weight(changed, calm)
        level = rho * _UNIFORMITY if may_be_balanced(logits) else 0.0
        weight, offset, temperature = fit_class_structure(coordinates, logits, rho, _SHRINKAGE, level)
        found = TargetClasses((self.basis @ weight).T.contiguous(), offset, offset.new_tensor(temperature))
        return found, changed
