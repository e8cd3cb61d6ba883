"""Estimates from a stream without labels: its distance from the source, a change of domain, the accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tta_cattan.alignment import Subspace, fit_subspace
from tta_cattan.metrics import accuracy
from tta_cattan.util.errors import UserError
from tta_cattan.util.state import stateful

_NORMAL_90 = 1.645  # half width of a 90 % interval, in standard deviations
_UNKNOWN_DEVIATION = 0.1  # of the estimate, if there are no labelled shifts to measure it: a guess
_PER_CLASS = 20  # clean samples per class, on average, needed for a usable class prior
_NULL_WINDOWS = 100  # windows of clean data that show how far the drift score varies by chance


def frechet_distance(rows: Tensor, variances: Tensor) -> float:
    """Return ``sum_j m_j^2 + (s_j - sqrt(e_j))^2`` over ``sum_j e_j`` of rows in the source's centred eigenbasis.

    Note: there the source's covariance is diagonal (e); only the diagonal of the rows' covariance (s^2) is used.
    """
    mean, deviation = rows.mean(0), rows.std(0, unbiased=False)
    return ((mean.square() + (deviation - variances.sqrt()).square()).sum() / variances.sum()).item()


def mean_shift(recent: Tensor, count: float, mean: Tensor, second: Tensor) -> float:
    """Return by how many standard deviations ``T = sum_j (m_j - m'_j)^2 / (v_j (1/n + 1/n'))`` exceeds chance.

    The recent rows have mean m, those before mean m' and second moment ``second`` (n' = ``count``); v is their pooled
    variance. Without a change T has mean d and variance 2 d, so ``(T - d) / sqrt(2 d)`` is returned.
    """
    n, d = recent.shape
    mine = recent.mean(0)
    before = second - mean.square()
    pooled = (n * recent.var(0, unbiased=False) + count * before) / (n + count)
    t = ((mine - mean).square() / pooled.clamp_min(1e-12)).sum().item() / (1 / n + 1 / count)
    return (t - d) / math.sqrt(2 * d)


def transport_confidence(probabilities: Tensor, prior: Tensor, blur: float = 0.05, rounds: int = 50) -> float:
    """Return the mean probability of the assigned classes when samples are assigned in the proportions of ``prior``.

    ``max_G sum_ic G_ic p_ic`` over ``G >= 0`` with row sums 1 / n and column sums ``prior``, smoothed by ``blur``
    (Sinkhorn): the confidence-by-transport estimate of Lu et al. (2023). If all predictions fall into one class, it is
    near that class's prior, however confident the network is.
    """
    p = probabilities.double()
    kernel = (p / blur).exp()  # at most exp(20)
    share = prior.double().clamp_min(1e-12) * len(p)
    column = torch.ones_like(share)
    for _ in range(rounds):
        row = 1 / (kernel @ column)
        column = share / (row @ kernel)
    row = 1 / (kernel @ column)
    return (row @ (kernel * p) @ column).item() / len(p)


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T that minimises the cross-entropy of ``softmax(logits / T)`` (Guo et al. 2017).

    Note: its derivative with respect to ``b = 1 / T`` is ``mean(sum_c p_c y_c - y_label)``, which increases with b, so
    bisection finds the minimum.
    """
    y = logits.double()
    own = y.gather(1, labels[:, None])[:, 0]
    low, high = math.log(1e-3), math.log(1e3)
    for _ in range(60):
        middle = (low + high) / 2
        slope = (((y * math.exp(middle)).softmax(1) * y).sum(1) - own).mean()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return math.exp(-low)


def negative_entropy(logits: Tensor) -> Tensor:
    """Return ``sum_c p_c log p_c`` of each row."""
    log_p = logits.double().log_softmax(1)
    return (log_p.exp() * log_p).sum(1)


@stateful
@dataclass(frozen=True)
class Estimate:
    """An accuracy estimated without labels, and an interval that should contain the true one in nine of ten windows."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@stateful
@dataclass(frozen=True)
class Calibration:
    """A line from a network's confidence to its accuracy, fitted to labelled data.

    The confidence is the fraction of samples with a negative entropy above ``threshold``, which clean predictions
    exceed as often as they are correct (ATC of Garg et al. 2022), or `transport_confidence` plus ``offset`` if that is
    lower, at the ``temperature`` that calibrates the clean predictions and with the ``prior`` of the clean labels. The
    line is fitted to all labelled sets, with slope 1 if fewer than three; ``deviation`` is the spread around it.
    """

    classes: int
    temperature: float
    threshold: float
    prior: Tensor | None  # None if there are too few clean samples to estimate it
    offset: float
    slope: float
    intercept: float
    deviation: float

    @classmethod
    def of(cls, sets: Sequence[tuple[Tensor, Tensor]], window: int = 250) -> Calibration:
        """Fit to (logits, labels) of several sets, the clean one first; the prior uses add-one smoothing.

        Note: scores are means over whole windows, because chance variation of the classes in a window lowers them.
        """
        sets = [(logits.detach().float().cpu(), labels.cpu()) for logits, labels in sets]
        logits, labels = sets[0]
        classes, right = logits.shape[1], accuracy(logits, labels)
        temperature = fitted_temperature(logits, labels)
        level = negative_entropy(logits).sort().values[min(round((1 - right) * len(logits)), len(logits) - 1)].item()
        prior, offset = None, 0.0
        if len(labels) >= _PER_CLASS * classes:
            prior = (torch.bincount(labels, minlength=classes).double() + 1) / (len(labels) + classes)
            parts = [transport_confidence((y / temperature).softmax(1), prior) for y in _windows(logits, window)]
            offset = right - sum(parts) / len(parts)
        plain = cls(classes, temperature, level, prior, offset, 1.0, 0.0, _UNKNOWN_DEVIATION)
        points = []
        for y, truth in sets:
            scores = [plain.score(part) for part in _windows(y, window)]
            points.append((sum(scores) / len(scores), accuracy(y, truth)))
        slope, intercept, deviation = _line(points)
        return replace(plain, slope=slope, intercept=intercept, deviation=deviation)

    def score(self, logits: Tensor) -> float:
        """Return the confidence of n rows of logits, before the line is applied."""
        confident = (negative_entropy(logits) >= self.threshold).double().mean().item()
        if self.prior is None:
            return confident
        return min(confident, transport_confidence((logits / self.temperature).softmax(1), self.prior) + self.offset)

    def estimate(self, logits: Tensor) -> Estimate:
        """Return the estimated accuracy of n rows of logits; the interval adds the line's spread and binomial noise."""
        value = min(max(self.slope * self.score(logits) + self.intercept, 0.0), 1.0)
        spread = _NORMAL_90 * math.sqrt(self.deviation**2 + value * (1 - value) / len(logits))
        return Estimate(value, max(value - spread, 0.0), min(value + spread, 1.0))


def _windows(logits: Tensor, window: int) -> Sequence[Tensor]:
    """Return the whole windows of a set, or the set itself if it is shorter than one."""
    parts = logits.split(window)
    return parts[:-1] if len(parts) > 1 and len(parts[-1]) < window else parts


def _line(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return slope, intercept and residual deviation of the least-squares line; below three points the slope is 1."""
    x, y = torch.tensor(points, dtype=torch.float64).T
    if len(points) < 3:
        return 1.0, (y - x).mean().item(), _UNKNOWN_DEVIATION
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum().clamp_min(1e-12)
    intercept = y.mean() - slope * x.mean()
    residual = (y - slope * x - intercept).square().sum() / (len(points) - 2)
    return slope.item(), intercept.item(), residual.sqrt().item()


@stateful
@dataclass(frozen=True)
class Reference:
    """A network's behaviour on clean data: the subspace of its features, the limit of the drift, and calibration."""

    subspace: Subspace
    drift_limit: float
    calibration: Calibration
    frozen: Calibration | None = None  # of the source network, if the watched one adapts

    @classmethod
    def of(
        cls,
        features: Tensor,
        calibration: Calibration,
        frozen: Calibration | None = None,
        d: int = 16,
        window: int = 250,
    ) -> Reference:
        """Fit the subspace and the drift limit to clean features (n x D)."""
        if len(features) < 4 * d:
            raise UserError(f"{len(features)} samples without shift and d = {d}: give at least {4 * d}, or a smaller d")
        features = features.detach().float().cpu()
        limit = _drift_limit(features, d, min(window, len(features) // 4))
        return cls(fit_subspace(features, d), limit, calibration, frozen)

    def drift(self, rows: Tensor) -> float:
        """Return the Fréchet distance of coordinates from the source's."""
        return frechet_distance(rows, self.subspace.eigenvalues[: self.subspace.d])

    def summary(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return each sample's coordinates in ``W_s``, log energy there, share outside, and entropy: B x (d + 3)."""
        rows, outside = coordinates(features, self.subspace)
        energy = rows.square().sum(1).clamp_min(1e-12).log()
        entropy = -negative_entropy(logits / self.calibration.temperature).float()
        return torch.cat([rows, torch.stack([energy, outside, entropy], 1)], 1)


def coordinates(features: Tensor, subspace: Subspace) -> tuple[Tensor, Tensor]:
    """Return the coordinates in ``W_s`` around the source's mean (n x d), and each row's fraction of energy outside."""
    centred = features - subspace.mean
    rows = centred @ subspace.basis
    total = centred.square().sum(1).clamp_min(1e-12)
    return rows, (1 - rows.square().sum(1) / total).clamp_min(0)


def _drift_limit(features: Tensor, d: int, window: int) -> float:
    """Return the mean plus eight standard deviations of the drift of clean windows from a fit to other clean data."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(features), generator=generator)
    fitted, held = features[order[: len(order) // 2]], features[order[len(order) // 2 :]]
    subspace = fit_subspace(fitted, d)
    rows, _ = coordinates(held, subspace)
    draws = [rows[torch.randperm(len(rows), generator=generator)[:window]] for _ in range(_NULL_WINDOWS)]
    scores = torch.tensor([frechet_distance(draw, subspace.eigenvalues[:d]) for draw in draws])
    return (scores.mean() + 8 * scores.std()).item()
