"""Whitening by the target's moments and colouring by the source's, and the projection onto the source's subspace.

Channels are the features, images and positions the samples. What is known of the source travels in one small file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tta_cattan.alignment.fitting import FeatureMoments, from_loader, subspace_of_moments
from tta_cattan.alignment.subspace import Subspace, orthonormality_error
from tta_cattan.network.layers import channel_place, find_layer, hooked, require_logits
from tta_cattan.network.normalization import divergence
from tta_cattan.util.batches import refusing_one_image
from tta_cattan.util.door import FIT_AGAIN, fitted_tensors
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path
from tta_cattan.util.state import stateful

ENOUGH_IMAGES = 4096  # of the source: with their positions they determine 128 x 128 covariances to a few per cent

_FORMAT = "tta-cattan-moments-3"
_SUBSPACE = ("basis", "eigenvalues", "mean")
_MAX_BYTES = 1 << 28
_DIRECTIONS = 256  # of the source's subspace that a file holds, at most
_POSITIONS = 16  # per side of a feature map; neighbours say little more
_RIDGE = 0.005  # of the mean variance, added to both covariances
_PAIRS = 20.0  # images at which covariances count half as much as variances
_COORDINATES = 32  # of a signature of features, at most
_CLASSES = 16  # classes whose own moments are taken, at most
_TINY = 1e-5


@stateful
@dataclass
class Moments:
    """Running moments of one layer's input: mean (C), covariance (C x C) or variance (C), and their noise.

    ``mean_noise`` and ``var_noise`` (C) are the variances, over images, of what one image says of mean and variance.
    """

    mean: Tensor
    cov: Tensor
    mean_noise: Tensor
    var_noise: Tensor

    @classmethod
    def zeros(cls, channels: int, full: bool, device: torch.device) -> Moments:
        """Return moments of nothing: a first ``absorb`` with ``share`` 1 replaces them."""
        cov = torch.zeros(channels, channels) if full else torch.zeros(channels)
        values = (torch.zeros(channels), cov, torch.zeros(channels), torch.zeros(channels))
        return cls(*(value.to(device) for value in values))

    @property
    def var(self) -> Tensor:
        """The variances."""
        return self.cov.diagonal() if self.cov.ndim == 2 else self.cov

    def absorb(self, rows: Tensor, share: float) -> bool:
        """Merge a batch (images x C x positions) that is ``share`` of all images seen.

        ``m' = m + a d`` and ``V' = V + a (V_b - V) + a (1 - a) d d^T`` with ``d = m_b - m``: exact for ``a = n_b / n``.
        A batch whose fourth powers are not finite is left out; tell whether it was not.
        """
        means, variances = image_moments(rows)
        mean = means.mean(0)
        shift = mean - self.mean
        moved = self.mean + share * shift
        squares = variances + (means - moved).square()
        if not torch.isfinite(squares.square().sum()):
            return False
        self.mean = moved
        if self.cov.ndim == 2:
            flat = rows.transpose(0, 1).flatten(1) - mean[:, None]
            cov = flat @ flat.T / flat.shape[1]
            self.cov = torch.lerp(self.cov, cov, share).addr(shift, shift, alpha=share * (1 - share))
        else:
            cov = variances.mean(0) + (means - mean).square().mean(0)
            self.cov = torch.lerp(self.cov, cov, share) + share * (1 - share) * shift.square()
        self.mean_noise = torch.lerp(self.mean_noise, (means - self.mean).square().mean(0), share)
        self.var_noise = torch.lerp(self.var_noise, (squares - self.var).square().mean(0), share)
        return True


def sampled(x: Tensor) -> Tensor:
    """Return a layer's input as images x C x positions in float32, at most 16 x 16 positions of each image."""
    if x.ndim == 2:
        return x.float()[..., None]
    places = tuple(slice(None, None, step) for step in sampling(x.shape[2:]))
    return x[(slice(None), slice(None), *places)].float().flatten(2)


def sampling(sizes: Sequence[int]) -> list[int]:
    """Return which of so many positions per side ``sampled`` takes: one in how many."""
    most = _POSITIONS if len(sizes) > 1 else _POSITIONS**2
    return [-(-size // most) for size in sizes]


def image_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (images x C) of each image's positions (images x C x positions)."""
    means = rows.mean(2)
    if rows.shape[2] == 1:
        return means, torch.zeros_like(means)
    squares = torch.linalg.vector_norm(rows, dim=2).square() / rows.shape[2]
    return means, (squares - means.square()).clamp(min=0)


def signatures(x: Tensor) -> Tensor:
    """Return what tells domains apart, per image: means and log standard deviations of the first layer's channels."""
    rows = sampled(x)
    means, variances = image_moments(rows)
    return means if rows.shape[2] == 1 else torch.cat([means, 0.5 * (variances + _TINY).log()], 1)


def precision_of(signature: Tensor) -> Tensor:
    """Return ``(C + r diag(C))^-1`` of the covariance of signatures (n x p), ``r = 1e-3``.

    Note: means and log standard deviations have units of their own, so each coordinate gets a ridge of its own; the
    inverse is taken of the correlations, in float64.
    """
    cov = torch.cov(signature.cpu().double().T).reshape(signature.shape[1], -1)
    scale = (cov.diagonal() + 1e-12).sqrt()
    inverse = torch.linalg.inv(cov / torch.outer(scale, scale) + 1e-3 * torch.eye(len(cov), dtype=cov.dtype))
    precision = inverse / torch.outer(scale, scale)
    return ((precision + precision.T) / 2).to(signature)


def matrix_power(matrix: Tensor, power: float) -> Tensor:
    """Return a power of a symmetric positive definite matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=_TINY * float(values[-1].clamp(min=1e-30))).pow(power)) @ vectors.T


def with_ridge(cov: Tensor) -> Tensor:
    """Return ``C + r I`` with ``r`` in proportion to the mean variance."""
    return cov + (_RIDGE * cov.diagonal().mean() + 1e-12) * torch.eye(len(cov), device=cov.device)


def recolouring(
    target: Moments, source_mean: Tensor, source_cov: Tensor, colour: Tensor, weight: float, n: float
) -> tuple[Tensor, Tensor]:
    """Return ``T`` and ``b`` of ``x -> x T + b``, which gives features of the target the moments of the source.

    ``T = (V + r I)^-1/2 (C + r' I)^1/2``, whose second factor is ``colour``, and ``b = m_s - m T``. ``m`` and the
    variances of ``V`` lie ``weight`` of the way from the source's to the target's, its covariances
    ``weight n / (n + 20)`` of it: ``weight = 0`` is the identity.
    """
    cov = torch.lerp(source_cov, target.cov, weight * n / (n + _PAIRS))
    var = torch.lerp(source_cov.diagonal(), target.var, weight)
    scale = (var / cov.diagonal().clamp(min=1e-12)).sqrt()
    cov = cov * scale[:, None] * scale
    mean = torch.lerp(source_mean, target.mean, weight)
    linear = matrix_power(with_ridge(cov), -0.5) @ colour
    return linear, source_mean - mean @ linear


def shift_weight(target: Moments, mean: Tensor, var: Tensor, n: float, composition: float, scale: float) -> float:
    """Return how far a layer goes to the target, in [0, 1): ``w = max(0, D - N - K) / (D + scale)``.

    ``D`` is the divergence of the target's means and variances from the source's, ``N`` what chance makes of it in
    ``n`` images, and ``K`` (``composition``) what a mix of classes unlike the source's would.
    """
    found = target.var + _TINY * var
    distance = divergence((target.mean - mean).square(), (found - var).square(), found, var)
    noise = divergence(target.mean_noise / max(n - 1, 1), target.var_noise / max(n - 1, 1), found, var)
    weight = (distance - noise - composition).clamp(min=0) / (distance + scale)
    return float(weight)


def projected(z: Tensor, basis: Tensor, mean: Tensor, phi: Tensor | None = None) -> Tensor:
    """Return ``m_s + (z - m_s) W_s Phi W_s^T`` of features in any layout; ``basis`` is ``W_s``, ``mean`` is ``m_s``.

    Without ``phi`` that is ``Phi* = W_t^T W_s`` where the target spans the whole space, ``W_t = I``: directions that
    the source does not vary in, and nothing behind was trained on, are left out.
    """
    place = channel_place(z, len(basis))
    basis, mean = basis.to(z.dtype), mean.to(z.dtype)
    coordinates = (z.movedim(place, -1) - mean) @ basis
    coordinates = coordinates if phi is None else coordinates @ phi.to(z.dtype)
    return (mean + coordinates @ basis.T).movedim(-1, place)


def feature_signatures(z: Tensor, basis: Tensor, mean: Tensor) -> Tensor:
    """Return what tells domains apart before any BatchNorm: coordinates, and the log deviation outside of them."""
    rows = z.float().movedim(channel_place(z, len(basis)), -1).flatten(1, -2) if z.ndim > 2 else z.float()[:, None]
    centred = rows.mean(1) - mean
    coordinates = centred @ basis
    whole = centred.square().sum(1, keepdim=True)
    outside = (whole - coordinates.square().sum(1, keepdim=True)).clamp(min=_TINY * whole.mean().item() + 1e-30)
    return torch.cat([coordinates, 0.5 * outside.log()], 1)


@dataclass(frozen=True)
class SourceMoments:
    """What CATTAn-F knows of the source: moments at each layer, and the signature of its images.

    ``mean`` and ``cov`` (C x C) are those of the layers with a full covariance, by name; ``classes`` is, for every
    layer, the mean divergence of one class from all. ``signature`` (p) and ``precision`` (p x p) are mean and inverse
    covariance of ``signatures``, ``count`` the number of images. ``subspace`` is that of one layer's output, if any.
    """

    mean: Mapping[str, Tensor]
    cov: Mapping[str, Tensor]
    classes: Mapping[str, float]
    signature: Tensor
    precision: Tensor
    count: int
    provenance: Mapping[str, Any] = field(default_factory=dict)
    subspace: Subspace | None = None

    def to(self, device: torch.device | str) -> SourceMoments:
        """Return a copy on ``device``."""
        return replace(
            self,
            mean={name: value.to(device) for name, value in self.mean.items()},
            cov={name: value.to(device) for name, value in self.cov.items()},
            signature=self.signature.to(device),
            precision=self.precision.to(device),
            subspace=None if self.subspace is None else self.subspace.to(device),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all numbers, by name."""
        named = {f"mean.{name}": value for name, value in self.mean.items()}
        named |= {f"cov.{name}": value for name, value in self.cov.items()}
        named |= {f"classes.{name}": torch.tensor(value) for name, value in self.classes.items()}
        named |= {"signature": self.signature, "precision": self.precision}
        if self.subspace is not None:
            named |= {f"subspace.{part}": getattr(self.subspace, part) for part in _SUBSPACE}
        return {name: value.detach().cpu().float().contiguous() for name, value in named.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file atomically."""
        from safetensors.torch import save_file

        header = {"format": _FORMAT, "count": str(self.count), "provenance": json.dumps(dict(self.provenance))}
        header["layer"] = json.dumps("" if self.subspace is None else self.subspace.layer)
        with atomic_path(path) as temporary:
            save_file(self.tensors(), temporary, metadata=header)

    def __repr__(self) -> str:
        """Return one line: tensors of thousands of numbers say nothing in a notebook."""
        return f"SourceMoments({len(self.classes)} layers, {len(self.cov)} with a covariance, {self.count} images)"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SourceMoments:
        """Read a file that ``save`` wrote; anything else is refused with what is wrong with it."""
        header, tensors = fitted_tensors(path, "moments", _FORMAT, _MAX_BYTES, ["classes.", "subspace.eigenvalues"])
        kinds = ("mean", "cov", "classes", "signature", "precision", "subspace")
        parts: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
        for name, tensor in tensors.items():
            kind, _, layer = name.partition(".")
            parts.setdefault(kind, {})[layer] = tensor.float()
        mean, cov, classes, signature, precision, subspace = parts.values() if len(parts) == len(kinds) else [{}] * 6
        pairs = [(mean[name], cov.get(name)) for name in mean] + [(signature.get(""), precision.get(""))]
        fits = all(map(_are_moments, pairs)) and cov.keys() == mean.keys() and not any(c.ndim for c in classes.values())
        if not fits or not (_is_subspace(subspace) and isinstance(header.get("layer"), str)):
            raise UserError(f"moments file {path} is damaged: its parts do not fit each other; {FIT_AGAIN}")
        count, provenance = header["count"], header["provenance"]
        at_layer = Subspace(**subspace, count=count, centered=True, layer=header["layer"]) if subspace else None
        found = {name: value.item() for name, value in classes.items()}
        return cls(mean, cov, found, signature[""], precision[""], count, provenance, at_layer)


def _is_subspace(parts: Mapping[str, Tensor]) -> bool:
    """Tell whether the parts are those of a centred subspace, its basis orthonormal, or none at all."""
    if not parts:
        return True
    if parts.keys() != set(_SUBSPACE):
        return False
    basis, eigenvalues, mean = (parts[part] for part in _SUBSPACE)
    fits = basis.ndim == 2 and mean.shape == basis.shape[:1] and eigenvalues.shape[:1] >= basis.shape[1:]
    return fits and orthonormality_error(basis) < 1e-2


def _are_moments(pair: tuple[Tensor | None, Tensor | None]) -> bool:
    """Tell whether a mean (C) and a matrix (C x C), symmetric and without negative eigenvalues to rounding, fit."""
    mean, matrix = pair
    if mean is None or matrix is None or mean.ndim != 1 or matrix.shape != (len(mean), len(mean)) or not len(mean):
        return False
    allowed = 1e-3 * float(matrix.abs().max())
    close = float((matrix - matrix.T).abs().max()) <= allowed
    return close and float(torch.linalg.eigvalsh(matrix.double())[0]) >= -allowed


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers of batch normalisation that keep running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def running_signature(layer: _BatchNorm, size: int) -> tuple[Tensor, Tensor]:
    """Return mean and precision of the signatures that a first layer's running statistics suggest.

    Note: how much of a channel's variance lies between images they do not say. Natural images stand in: a quarter, and
    a log deviation of -0.4 +- 0.4 within an image.
    """
    mean, var = layer.running_mean.float(), layer.running_var.float() + layer.eps
    if size == len(mean):
        return mean, torch.diag(1 / var)
    centre = torch.cat([mean, 0.5 * var.log() - 0.4])
    return centre, torch.diag(1 / torch.cat([0.25 * var, torch.full_like(var, 0.16)]))


@from_loader
@torch.no_grad()
def fit_source_moments(
    model: nn.Module,
    batches: Iterable[Tensor],
    channels: int = 128,
    provenance: Mapping[str, Any] | None = None,
    layer: str = "",
) -> SourceMoments:
    """Take the source's moments in one pass over images, with covariances where a layer has at most ``channels``.

    ``layer`` names the module whose output's subspace is fitted too. Note: 4,096 images are enough, and no more are
    read. The classes are those that the model predicts: no labels.
    """
    model.eval()
    device = next(model.parameters()).device
    fitted = {name: _Fit(layer, layer.num_features <= channels) for name, layer in batch_norms(model).items()}
    if not fitted:
        raise UserError(
            f"{type(model).__name__} has no BatchNorm with running statistics: CATTAn-F has no layer to align"
        )
    seen: list[Tensor] = []
    first: list[str] = []
    features: list[FeatureMoments] = []
    count = 0

    def look(name: str, norm: _BatchNorm, x: Tensor) -> Tensor:
        if not first:
            first.append(name)
        if name == first[0]:
            seen.append(signatures(x))
        fitted[name].look(sampled(x), count)
        return own_forward(norm)(x)

    def look_at_features(_: nn.Module, args: Any, z: Tensor) -> None:
        rows = z.movedim(channel_place(z), -1)
        if not features:
            features.append(FeatureMoments(rows.shape[-1], device))
        features[0].update(rows.flatten(0, -2).float())
        if not first:
            first.append("")
        if first[0] == "":
            seen.append(rows.flatten(1, -2).mean(1) if rows.ndim > 2 else rows)  # until there is a basis

    watching = [find_layer(model, layer).register_forward_hook(look_at_features)] if layer else []
    with hooked(watching), replaced_forward(batch_norms(model), look):
        for batch in batches:
            x = batch.to(device)[: ENOUGH_IMAGES - count]
            if not torch.isfinite(x).all():
                raise UserError("source images hold NaN or Inf: check the images and their normalisation")
            with refusing_one_image(x):
                logits = model(x)
            require_logits(logits, len(x))
            classes = logits.argmax(1)
            for fit in fitted.values():
                fit.tell(classes)
            count += len(x)
            if count >= ENOUGH_IMAGES:
                break
    if count < 2:
        raise UserError(f"{count} source images: moments need at least 2, better some thousand")
    signature, subspace = torch.cat(seen), None
    if features:
        d = min(_DIRECTIONS, features[0].dim, features[0].sample_count() - 1)
        subspace = subspace_of_moments(features[0], d, layer=layer).to(device)
        if first[0] == "":
            large = int((subspace.eigenvalues > subspace.eigenvalues.sum() / subspace.dim).sum())
            signature = feature_signatures(signature, subspace.basis[:, : min(large, _COORDINATES)], subspace.mean)
    full = {name: fit.moments for name, fit in fitted.items() if fit.moments.cov.ndim == 2}
    return SourceMoments(
        {name: moments.mean for name, moments in full.items()},
        {name: moments.cov for name, moments in full.items()},
        {name: fit.class_divergence() for name, fit in fitted.items()},
        signature.mean(0),
        precision_of(signature),
        count,
        dict(provenance or {}),
        subspace,
    )


class _Fit:
    """One layer's moments, and those of its classes, while the source is read."""

    def __init__(self, layer: _BatchNorm, full: bool) -> None:
        self.moments = Moments.zeros(layer.num_features, full, layer.running_mean.device)
        self.var = layer.running_var.float() + layer.eps
        zeros = torch.zeros(_CLASSES, layer.num_features, device=self.var.device)
        self.sums = zeros[:, 0].clone(), zeros, zeros.clone()  # of each class: images, means and second moments

    def look(self, rows: Tensor, before: int) -> None:
        self.moments.absorb(rows, len(rows) / (before + len(rows)))
        means, variances = image_moments(rows)
        self.last = means, variances + means.square()

    def tell(self, classes: Tensor) -> None:
        """Add the last batch's images to the classes that are kept."""
        kept = F.one_hot(classes % _CLASSES, _CLASSES).float().T * (classes < _CLASSES)
        for total, part in zip(self.sums, (kept.sum(1), kept @ self.last[0], kept @ self.last[1]), strict=True):
            total += part

    def class_divergence(self) -> float:
        """Return the mean divergence of a class from all, beyond what chance makes of it in so few images."""
        found = []
        for n, mean, square in zip(*self.sums, strict=True):
            if n >= 2:
                mean, var = mean / n, (square / n - (mean / n).square()).clamp(min=0) + _TINY * self.var
                noise = (self.moments.mean_noise / n, self.moments.var_noise / n)
                shift = (mean - self.moments.mean).square() - noise[0], (var - self.moments.var).square() - noise[1]
                found.append(divergence(*shift, var, self.moments.var + _TINY * self.var))
        return max(0.0, torch.stack(found).mean().item()) if found else 0.0


def own_forward(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the forward of a layer's class, whatever ``replaced_forward`` has put before it."""
    return type(layer).forward.__get__(layer)


@contextmanager
def replaced_forward(
    layers: Mapping[str, _BatchNorm], forward: Callable[[str, _BatchNorm, Tensor], Tensor]
) -> Iterator[None]:
    """Let ``forward(name, layer, x)`` stand in for the forward of the layers inside the block."""
    for name, layer in layers.items():
        layer.forward = lambda x, name=name, layer=layer: forward(name, layer, x)
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.forward
