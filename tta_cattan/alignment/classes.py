"""The target's classes: normal distributions in its subspace, found without labels, and predictions that use them."""

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

_EMPTY = 1e-6  # samples: a class with fewer has no mean of its own
_OVERCONFIDENCE = 1.5  # errors per error that a network expects to make; 1.4 to 1.7 were seen on shifted data


def class_discriminants(coordinates: Tensor, shares: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Return ``G = S^-1 M^T`` (d x C) and ``g = log pi - 1/2 diag(M S^-1 M^T)`` (C), one covariance for all classes.

    ``x G + g`` is ``log(pi_c N(x; m_c, S))`` up to what all classes share. ``pi`` are the classes' parts of all;
    ``M`` holds the means of ``coordinates`` (n x d) weighted by ``shares`` (n x C, each sample's sum to 1); ``S`` is
    their covariance around the means, ``shrinkage`` of it replaced by the same variance in every direction.
    """
    counts, means, covariance = _moments(coordinates, shares, shrinkage)
    weight = torch.linalg.solve(covariance, means.T)
    parts = (counts / len(coordinates)).clamp_min(_EMPTY)
    return weight, parts.log() - 0.5 * (means * weight.T).sum(1)


def left_out_densities(coordinates: Tensor, shares: Tensor, shrinkage: float) -> Tensor:
    """Return ``log(pi_c N(x; m_c, S))`` (n x C) up to a constant, ``pi`` and ``m`` from all samples but the one judged.

    Without ``x`` and its share p a class of N samples has the mean ``(N m - p x) / (N - p)``: a class that a few
    samples make up by themselves does not keep them. One that ``x`` alone makes up has the mean 0 then; ``coordinates``
    are centred. ``S`` is that of all samples.
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
    """Return ``n / (n + doubt C)``, what classes found count beside the network: with few samples each, little."""
    return n / (n + doubt * classes)


def change_weight(changed: float, calm: float) -> float:
    """Return ``c^2 / (c^2 + calm^2)`` of the part ``c`` of the predictions that adaptation changed.

    Where it is small there was little to repair, and the network knows more than normal distributions do.
    """
    if not calm:
        return 1.0
    return 1 / (1 + (calm / changed) ** 2) if changed else 0.0


def may_be_balanced(logits: Tensor) -> bool:
    """Tell whether ``1/2 sum |m - 1/C|`` of the mean prediction ``m`` is within ``balanced_limit``."""
    parts = logits[logits.isfinite().all(1)].softmax(1)
    if not len(parts):
        return True
    mean = parts.mean(0)
    deviation = 0.5 * (mean - 1 / len(mean)).abs().sum()
    return bool(deviation <= balanced_limit(1 - parts.amax(1).mean(), len(parts), len(mean)))


def balanced_limit(doubt: Tensor, n: int, classes: int) -> Tensor:
    """Return ``1.5 doubt + sqrt((C - 1) / (2 pi n))``: how far balanced classes' predictions may lie from balance.

    The parts that a network predicts differ from the true ones by no more than its errors (total variation). It
    expects ``doubt = 1 - mean(max softmax(y))`` of them, and makes more. And n samples of C equal classes are
    themselves so far from balance, on average and for n not too small.

    Note: a mean, no bound: a network that is sure of everything may be found unbalanced by chance. It has no use for
    the balance either.
    """
    return _OVERCONFIDENCE * doubt + math.sqrt((classes - 1) / (2 * math.pi * n))


def balancing_offset(logits: Tensor, rounds: int = 20) -> Tensor:
    """Return the ``w`` (C) with which the mean of ``softmax(y + w)`` is the same for all classes.

    Note: where few samples are in doubt and many would have to change, ``rounds`` end before that.
    """
    offset = torch.zeros_like(logits[0])
    for _ in range(rounds):
        parts = (logits + offset).softmax(1).mean(0)
        offset = offset - (parts * len(parts)).clamp_min(_EMPTY).log()
    return offset


def fit_class_structure(
    coordinates: Tensor, logits: Tensor, rho: float, shrinkage: float = 0.3, level: float = 0.0, rounds: int = 10
) -> tuple[Tensor, Tensor, float]:
    """Return weight (d x C), offset (C) and temperature of ``t (y + x weight + offset)``, the logits by both opinions.

    The opinions are the network's, ``softmax(y)``, and the one of where the target's classes lie in its subspace, to
    the power ``rho``: they are multiplied, the classes are found again by the product, ``rounds`` times (expectation
    maximisation, the network as the prior, each sample judged by the others). Each time ``level`` of the way is gone
    (in the logarithm) to where all classes have the same part. ``t`` keeps the mean confidence at the
    network's, because the d directions are not as independent as a normal distribution has it.
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
    """Return the ``t`` in [1e-4, 1] at which the mean of ``max softmax(t y)`` is ``confidence``, or the nearest end."""
    low, high = 1e-4, 1.0
    if (high * logits).softmax(1).amax(1).mean().item() <= confidence:
        return high
    for _ in range(40):
        middle = (low * high) ** 0.5
        above = (middle * logits).softmax(1).amax(1).mean().item() > confidence
        low, high = (low, middle) if above else (middle, high)
    return (low * high) ** 0.5


def _moments(coordinates: Tensor, shares: Tensor, shrinkage: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the samples, the mean and, of all, the shrunk covariance of the classes."""
    counts = shares.sum(0)
    means = shares.T @ coordinates / counts.clamp_min(_EMPTY)[:, None]
    covariance = (coordinates.T @ coordinates - (counts[:, None] * means).T @ means) / len(coordinates)
    even = torch.eye(len(covariance)).to(covariance) * covariance.diagonal().mean().clamp_min(_EMPTY)
    return counts, means, torch.lerp(covariance, even, shrinkage)


@stateful
@dataclass(eq=False)  # tensors have no one truth
class TargetClasses:
    """``t (y + z A^T + a)`` of logits ``y`` and features ``z``: the network's opinion and that of the classes."""

    weight: Tensor
    bias: Tensor
    temperature: Tensor

    def __call__(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return the logits by both opinions."""
        weight, bias = self.weight.to(features), self.bias.to(features)
        return self.temperature.to(features) * (logits + F.linear(features, weight, bias))

    @torch.no_grad()
    def fold_into(self, linear: nn.Linear) -> nn.Module:
        """Return the one linear layer that equals ``linear`` and this after it."""
        weight, bias = effective_linear(linear)
        bias = self.bias if bias is None else self.bias + bias
        joint, shift = self.temperature * (weight + self.weight), self.temperature * bias
        return with_weight(linear, joint.to(weight), shift.to(weight))


FITTED_TO = 4096  # samples that the subspace of the classes is fitted to: the rest is only projected
DIRECTIONS = 64  # of the classifier's input in which the classes are found, at most
_SHRINKAGE = 0.3  # share of their covariance that is isotropic
_PRIOR_COUNT = 10.0  # samples per class at which they count half
_FEWEST = 2  # samples per class: each is judged by the others
_UNIFORMITY = 0.5  # how strongly the class priors are pulled towards uniform


class TargetSamples:
    """Coordinates and logits of the samples of a target, in the main directions of the first of them.

    Kept per sample are its ``d`` coordinates and its logits; one that is not finite has no say.
    """

    def __init__(self) -> None:
        self.basis: Tensor | None = None  # D x d
        self._waiting: list[Tensor] = []  # features, until there are enough to fit the basis to
        self._coordinates: list[Tensor] = []
        self._logits: list[Tensor] = []
        self._finite: list[Tensor] = []

    def add(self, logits: Tensor, features: Tensor) -> None:
        """Take in the logits (n x C) and features (n x D) of a batch."""
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
        """Return the coordinates (n x d) of all samples; of fewer than two there is no subspace and there are none."""
        if self.basis is None and sum(map(len, self._waiting)) >= 2:
            self._fit()
        return torch.cat(self._coordinates) if self._coordinates else torch.empty(0, 0)

    def logits(self) -> Tensor:
        """Return the logits (n x C)."""
        return torch.cat(self._logits)

    def changed(self, before: Iterable[Tensor]) -> float:
        """Return the share of the samples whose class was another in ``before``, batch by batch."""
        now = self.logits().argmax(1).cpu()
        then = torch.cat([b[f.cpu()] for b, f in zip((b.cpu() for b in before), self._finite, strict=True)])
        return (now != then).double().mean().item()

    def classes(self, before: Iterable[Tensor], calm: float) -> tuple[TargetClasses | None, float | None]:
        """Return the classes, weighted less where samples are few or little has changed, and how much has.

        Note: with fewer than two samples per class there are none.
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
