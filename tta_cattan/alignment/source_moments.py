"""The source statistics of CATTAn-F: moments of each layer and the signature of the images, in one small file."""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tta_cattan.alignment.fitting import FeatureMoments, from_loader, subspace_of_moments
from tta_cattan.alignment.recolouring import (
    TINY,
    Moments,
    Signature,
    feature_signatures,
    image_moments,
    sampled,
    signatures,
)
from tta_cattan.alignment.subspace import Subspace, orthonormality_error
from tta_cattan.network.batch_norms import batch_norms, own_forward, replaced_forward
from tta_cattan.network.layers import channel_place, find_layer, hooked, require_logits
from tta_cattan.network.normalization import divergence
from tta_cattan.util.batches import refusing_one_image
from tta_cattan.util.door import FIT_AGAIN, fitted_tensors
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path

logger = logging.getLogger(__name__)

ENOUGH_IMAGES = 4096  # with their positions, they determine 128 x 128 covariances to a few per cent

_FORMAT = "tta-cattan-moments-4"
_SUBSPACE = ("basis", "eigenvalues", "mean")
_MAX_BYTES = 1 << 28
_DIRECTIONS = 256  # most directions of the source's subspace in a file
_COORDINATES = 32  # most coordinates in a signature of features
_CLASSES = 16  # most classes with their own moments
_DEPTH = 3  # the deeper signature is that of the layer a third of the way through the network
_FEW = 100  # images below which the covariance of their signatures is rough


@dataclass(frozen=True)
class SourceMoments:
    """The source statistics of CATTAn-F: moments at each layer, and the signature of the source images.

    ``mean`` and ``cov`` (C x C) are those of the layers with a full covariance, by name; ``classes`` is the mean
    divergence of one class from all classes, for every layer. ``first`` and ``second`` are the signatures of the images
    at the first and at a deeper layer (None: a network of few layers), ``count`` their number. ``subspace`` is that of
    one layer's output, if any.
    """

    mean: Mapping[str, Tensor]
    cov: Mapping[str, Tensor]
    classes: Mapping[str, float]
    first: Signature
    count: int
    provenance: Mapping[str, Any] = field(default_factory=dict)
    second: Signature | None = None
    subspace: Subspace | None = None

    def to(self, device: torch.device | str) -> SourceMoments:
        """Return a copy on ``device``."""
        return replace(
            self,
            mean={name: value.to(device) for name, value in self.mean.items()},
            cov={name: value.to(device) for name, value in self.cov.items()},
            first=self.first.to(device),
            second=None if self.second is None else self.second.to(device),
            subspace=None if self.subspace is None else self.subspace.to(device),
        )

    def without_model(self) -> SourceMoments:
        """Return a copy without the hash of the model, usable with any model that has these layers."""
        return replace(self, provenance={k: v for k, v in self.provenance.items() if k != "weights_sha256"})

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, as they are saved."""
        named = {f"mean.{name}": value for name, value in self.mean.items()}
        named |= {f"cov.{name}": value for name, value in self.cov.items()}
        named |= {f"classes.{name}": torch.tensor(value) for name, value in self.classes.items()}
        for kind, known in (("first", self.first), ("second", self.second)):
            named |= {} if known is None else {f"{kind}.mean": known.mean, f"{kind}.whitener": known.whitener}
        if self.subspace is not None:
            named |= {f"subspace.{part}": getattr(self.subspace, part) for part in _SUBSPACE}
        return {name: value.detach().cpu().float().contiguous() for name, value in named.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file atomically."""
        from safetensors.torch import save_file

        header = {"format": _FORMAT, "count": str(self.count), "provenance": json.dumps(dict(self.provenance))}
        header["layer"] = json.dumps("" if self.subspace is None else self.subspace.layer)
        header["second"] = json.dumps("" if self.second is None else self.second.layer)
        with atomic_path(path) as temporary:
            save_file(self.tensors(), temporary, metadata=header)

    def __repr__(self) -> str:
        """Return one line, without the tensors, which would flood a notebook."""
        return f"SourceMoments({len(self.classes)} layers, {len(self.cov)} with a covariance, {self.count} images)"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SourceMoments:
        """Read a file that ``save`` wrote; reject anything else and say what is wrong with it."""
        header, tensors = fitted_tensors(path, "moments", _FORMAT, _MAX_BYTES, ["classes.", "subspace.eigenvalues"])
        kinds = ("mean", "cov", "classes", "first", "second", "subspace")
        parts: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
        for name, tensor in tensors.items():
            kind, _, layer = name.partition(".")
            parts.setdefault(kind, {})[layer] = tensor.float()
        mean, cov, classes, first, second, subspace = parts.values() if len(parts) == len(kinds) else [{}] * 6
        fits = cov.keys() == mean.keys() and all(_are_moments(mean[name], cov[name]) for name in mean)
        fits = fits and not any(c.ndim for c in classes.values()) and all(map(_is_signature, (first, second or first)))
        named = isinstance(header.get("layer"), str) and isinstance(header.get("second"), str)
        if not (fits and named and _is_subspace(subspace)):
            raise UserError(f"moments file {path} is damaged: its parts do not fit each other; {FIT_AGAIN}")
        return cls(
            mean,
            cov,
            {name: value.item() for name, value in classes.items()},
            Signature(**first),
            header["count"],
            header["provenance"],
            Signature(**second, layer=header["second"]) if second else None,
            Subspace(**subspace, count=header["count"], centered=True, layer=header["layer"]) if subspace else None,
        )


def _is_signature(parts: Mapping[str, Tensor]) -> bool:
    """Return whether the parts are a mean (p) and a whitener (p x k)."""
    if parts.keys() != {"mean", "whitener"}:
        return False
    mean, whitener = parts["mean"], parts["whitener"]
    return mean.ndim == 1 and whitener.ndim == 2 and len(whitener) == len(mean) and whitener.numel() > 0


def _is_subspace(parts: Mapping[str, Tensor]) -> bool:
    """Return whether the parts form a centred subspace with an orthonormal basis, or there are none."""
    if not parts:
        return True
    if parts.keys() != set(_SUBSPACE):
        return False
    basis, eigenvalues, mean = (parts[part] for part in _SUBSPACE)
    fits = basis.ndim == 2 and mean.shape == basis.shape[:1] and eigenvalues.shape[:1] >= basis.shape[1:]
    return fits and orthonormality_error(basis) < 1e-2


def _are_moments(mean: Tensor, matrix: Tensor) -> bool:
    """Return whether a mean (C) fits a matrix (C x C) that is positive semi-definite up to rounding."""
    if mean.ndim != 1 or matrix.shape != (len(mean), len(mean)) or not len(mean):
        return False
    allowed = 1e-3 * float(matrix.abs().max())
    close = float((matrix - matrix.T).abs().max()) <= allowed
    return close and float(torch.linalg.eigvalsh(matrix.double())[0]) >= -allowed


@from_loader
@torch.no_grad()
def fit_source_moments(
    model: nn.Module,
    batches: Iterable[Tensor],
    channels: int = 128,
    provenance: Mapping[str, Any] | None = None,
    layer: str = "",
) -> SourceMoments:
    """Compute the source's moments in one pass over images, with covariances for layers of at most ``channels``.

    ``layer`` names a module for whose output a subspace is fitted too. Note: 4,096 images are enough, and no more are
    used. Classes are those that the model predicts: no labels are needed.
    """
    model.eval()
    device = next(model.parameters()).device
    fitted = {name: _Fit(layer, layer.num_features <= channels) for name, layer in batch_norms(model).items()}
    if not fitted:
        raise UserError(
            f"{type(model).__name__} has no BatchNorm with running statistics: CATTAn-F has no layer to align"
        )
    seen: dict[str, list[Tensor]] = defaultdict(list)  # signatures, by layer
    first: list[str] = []
    deeper = list(fitted)[len(fitted) // _DEPTH] if len(fitted) > _DEPTH else ""
    features: list[FeatureMoments] = []
    count = 0

    def look(name: str, norm: _BatchNorm, x: Tensor) -> Tensor:
        if not first:
            first.append(name)
        if name in (first[0], deeper):
            seen[name].append(signatures(x))
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
            seen[""].append(rows.flatten(1, -2).mean(1) if rows.ndim > 2 else rows)  # raw until a basis is fitted

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
        raise UserError(f"source images given: {count}; moments need at least 2, better some thousand")
    if count < _FEW:
        logger.warning("moments of only %d source images are unreliable: valid target images may be ignored", count)
    signature, subspace = torch.cat(seen[first[0]]), None
    if features:
        d = min(_DIRECTIONS, features[0].dim, features[0].sample_count() - 1)
        subspace = subspace_of_moments(features[0], d, layer=layer).to(device)
        if first[0] == "":
            large = int((subspace.eigenvalues > subspace.eigenvalues.sum() / subspace.dim).sum())
            signature = feature_signatures(signature, subspace.basis[:, : min(large, _COORDINATES)], subspace.mean)
    used = {name: fit for name, fit in fitted.items() if fit.last is not None}
    full = {name: fit.moments for name, fit in used.items() if fit.moments.cov.ndim == 2}
    return SourceMoments(
        {name: moments.mean for name, moments in full.items()},
        {name: moments.cov for name, moments in full.items()},
        {name: fit.class_divergence() for name, fit in used.items()},
        Signature.of(signature),
        count,
        dict(provenance or {}),
        Signature.of(torch.cat(seen[deeper]), deeper) if seen[deeper] and deeper != first[0] else None,
        subspace,
    )


class _Fit:
    """Running moments of one layer, in total and per class, while the source is read."""

    def __init__(self, layer: _BatchNorm, full: bool) -> None:
        self.moments = Moments.zeros(layer.num_features, full, layer.running_mean.device)
        self.var = layer.running_var.float() + layer.eps
        zeros = torch.zeros(_CLASSES, layer.num_features, device=self.var.device)
        self.sums = zeros[:, 0].clone(), zeros, zeros.clone()  # by class: count, summed means and second moments
        self.last: tuple[Tensor, Tensor] | None = None  # means and second moments of the last batch; None: not called

    def look(self, rows: Tensor, before: int) -> None:
        self.moments.absorb(rows, len(rows) / (before + len(rows)))
        means, variances = image_moments(rows)
        self.last = means, variances + means.square()

    def tell(self, classes: Tensor) -> None:
        """Add the last batch's images to the moments of their classes, if these are kept."""
        if self.last is None:  # the network does not call the layer: an auxiliary head, for instance
            return
        kept = F.one_hot(classes % _CLASSES, _CLASSES).float().T * (classes < _CLASSES)
        for total, part in zip(self.sums, (kept.sum(1), kept @ self.last[0], kept @ self.last[1]), strict=True):
            total += part

    def class_divergence(self) -> float:
        """Return the mean divergence of a class from all classes, minus the part expected by chance."""
        found = []
        for n, mean, square in zip(*self.sums, strict=True):
            if n >= 2:
                mean, var = mean / n, (square / n - (mean / n).square()).clamp(min=0) + TINY * self.var
                noise = (self.moments.mean_noise / n, self.moments.var_noise / n)
                shift = (mean - self.moments.mean).square() - noise[0], (var - self.moments.var).square() - noise[1]
                found.append(divergence(*shift, var, self.moments.var + TINY * self.var))
        return max(0.0, torch.stack(found).mean().item()) if found else 0.0
