"""A linear subspace of the features, the small file that stores it, and the path of that file."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tta_cattan.util.door import FIT_AGAIN, fitted_tensors
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path, sha256_tensors, sha256_text
from tta_cattan.util.state import stateful

_FORMAT = "tta-cattan-subspace-2"
_MAX_BYTES = 1 << 30  # a full basis of 16,384 features is a gigabyte; anything larger is not a subspace
_STATISTICS = ("running_mean", "running_var")
_DIGITS = 12  # digits of the hash in a file name


@stateful
@dataclass(frozen=True, repr=False)
class Subspace:
    """An orthonormal basis (D x d) with all eigenvalues (descending), mean, sample count and provenance.

    ``centered`` says whether the basis is of the covariance (PCA) or of the second moment (uncentred SVD);
    ``mean`` is None if it was not kept. ``layer`` is the module whose output was fitted ('': the input of the
    classifier; None: unknown). ``provenance`` is free text by key: model hash, data, versions.
    """

    basis: Tensor
    eigenvalues: Tensor
    mean: Tensor | None
    count: int
    centered: bool
    provenance: Mapping[str, Any] = field(default_factory=dict)
    layer: str | None = None

    @property
    def dim(self) -> int:
        """D, the number of features."""
        return self.basis.shape[0]

    @property
    def d(self) -> int:
        """The number of directions."""
        return self.basis.shape[1]

    def __repr__(self) -> str:
        """Return one line, without the tensors, which would flood a notebook."""
        kind = "centred" if self.centered else "uncentred"
        layer = "" if self.layer is None else f", layer {self.layer or 'input of the classifier'!r}"
        return f"Subspace({self.d} directions of {self.dim} features, {self.count} samples, {kind}{layer})"

    def truncate(self, d: int) -> Subspace:
        """Return the subspace of the first ``d`` directions."""
        if not 1 <= d <= self.d:
            raise UserError(f"d = {d}: this subspace has {self.d} directions, so d must be in 1..{self.d}")
        # A copy: a view would keep the dropped directions in memory.
        return replace(self, basis=self.basis[:, :d].clone())

    def to(self, device: torch.device | str) -> Subspace:
        """Return a copy on ``device``."""
        mean = None if self.mean is None else self.mean.to(device)
        return replace(self, basis=self.basis.to(device), eigenvalues=self.eigenvalues.to(device), mean=mean)

    def distance(self, features: Tensor) -> float:
        """``(||m - m_s||^2 + (s - s_s)^2) / s_s^2`` of features (n x D) with mean ``m`` and total variance ``s^2``."""
        if self.mean is None:
            raise UserError("this subspace was saved without its mean, so that no distance to it is known: fit it anew")
        own = self.eigenvalues.double().sum()  # all eigenvalues: their sum is the total variance
        shift = (features.double().mean(0) - self.mean.to(features.device).double()).square().sum().to(own)
        spread = features.double().var(0).sum().sqrt().to(own) - own.sqrt()
        return ((shift + spread.square()) / own).item()

    def without_mean(self) -> Subspace:
        """Return a copy without the mean feature."""
        return replace(self, mean=None)

    def without_model(self) -> Subspace:
        """Return a copy without the hash of the model it was fitted to."""
        return replace(self, provenance={k: v for k, v in self.provenance.items() if k != "weights_sha256"})

    def save(self, path: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> None:
        """Write a safetensors file atomically; ``dtype`` is that of the basis (float16 halves the file)."""
        from safetensors.torch import save_file

        tensors = {
            "basis": self.basis.detach().cpu().to(dtype).contiguous(),
            "eigenvalues": self.eigenvalues.detach().cpu().float().contiguous(),
        }
        if self.mean is not None:
            tensors["mean"] = self.mean.detach().cpu().float().contiguous()
        header = {
            "format": _FORMAT,
            "count": str(self.count),
            "centered": json.dumps(self.centered),
            "layer": json.dumps(self.layer),
            "provenance": json.dumps(dict(self.provenance), sort_keys=True),
        }
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata=header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Subspace:
        """Read a file that ``save`` wrote; reject anything else and say what is wrong with it."""
        header, tensors = fitted_tensors(path, "subspace", _FORMAT, _MAX_BYTES, ["eigenvalues"])
        basis, eigenvalues = (tensors.get(name, torch.empty(())) for name in ("basis", "eigenvalues"))
        mean, layer = tensors.get("mean"), header.get("layer")
        centered: Any = header.get("centered")
        problem = None
        if not basis.ndim or eigenvalues.ndim != 1:
            problem = "its basis or eigenvalues are not there"
        elif not isinstance(centered, bool) or not isinstance(layer, (str, type(None))):
            problem = f"its layer or centring is {layer!r}, {centered!r}"
        elif basis.ndim != 2 or not 1 <= basis.shape[1] <= basis.shape[0]:
            problem = f"its basis has shape {tuple(basis.shape)}"
        elif mean is not None and mean.shape != basis.shape[:1]:
            problem = f"its mean has shape {tuple(mean.shape)}, its basis {tuple(basis.shape)}"
        elif (off := orthonormality_error(basis.float())) > 1e-2:
            problem = f"its basis is not orthonormal (off by {off:.1e})"
        if problem:
            raise UserError(f"subspace file {path} is damaged: {problem}; {FIT_AGAIN}")
        # A basis stored as float16 is only orthonormal to 1e-3; QR restores float32 precision.
        basis = basis.float() if basis.dtype == torch.float32 else reorthonormalize(basis.float())
        mean = None if mean is None else mean.float()
        return cls(basis, eigenvalues.float(), mean, header["count"], centered, header["provenance"], layer)


def orthonormality_error(basis: Tensor) -> float:
    """Return ``max |W^T W - I|``."""
    gram = basis.T @ basis
    return (gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).abs().max().item()


def reorthonormalize(basis: Tensor) -> Tensor:
    """Return an orthonormal basis of the same span, by QR, with the sign of each column kept."""
    q, r = torch.linalg.qr(basis.cpu().double())
    return (q * r.diagonal().sign()).to(basis)


def float64_device(device: torch.device) -> torch.device:
    """Return ``device``, or the CPU if the device has no float64 (MPS)."""
    return torch.device("cpu") if device.type == "mps" else device


def sha256_weights(model: nn.Module) -> str:
    """Return the SHA-256 of a network's parameters and normalisation statistics, whatever their names.

    Note: wrappers rename weights and add buffers, such as an input normalisation; the hash does not change.
    """
    statistics = [value for name, value in model.named_buffers() if name.rpartition(".")[2] in _STATISTICS]
    return sha256_text("".join(sorted(sha256_tensors({"": value}) for value in [*model.parameters(), *statistics])))


def require_model(what: str, provenance: Mapping[str, Any], model: nn.Module) -> None:
    """Reject a model other than the one that a source file was fitted to, if that is recorded."""
    made_for = provenance.get("weights_sha256")
    if made_for is not None and made_for != (weights := sha256_weights(model)):
        raise UserError(
            f"source {what}: made for the model {str(made_for)[:12]}, and this model is {weights[:12]}; fit this one's "
            "with fit_source(net, loader), fit_source_moments(net, loader) or `tta-cattan fit-source`"
        )


def subspace_path(ckpt_dir: str | os.PathLike[str], arch: str, weights: str, centered: bool, layer: str = "") -> Path:
    """Return the path of a model's subspace: ``<ckpt_dir>/subspaces/<arch>-<weights>-<kind>.safetensors``.

    The kind is ``pca`` or ``uncentred``, followed by the layer unless it is the input of the classifier.
    """
    return Path(ckpt_dir) / "subspaces" / _name(_file_name(arch), weights[:_DIGITS], centered, layer)


def moments_path(ckpt_dir: str | os.PathLike[str], arch: str, weights: str, channels: int, layer: str = "") -> Path:
    """Return the path of a model's moments, named as its subspaces are with ``moments-<channels>`` as the kind."""
    parts = [_file_name(arch), weights[:_DIGITS], "moments", str(channels), *([_file_name(layer)] if layer else [])]
    return Path(ckpt_dir) / "subspaces" / f"{'-'.join(parts)}.safetensors"


def find_subspaces(
    ckpt_dir: str | os.PathLike[str],
    centered: bool,
    layer: str = "",
    arch: str | None = None,
    weights: str | None = None,
) -> list[Path]:
    """Return the cached subspaces of an architecture, or of given weights under any architecture name."""
    model = "*" if arch is None else glob.escape(_file_name(arch))
    digits = "?" * _DIGITS if weights is None else weights[:_DIGITS]
    return sorted((Path(ckpt_dir) / "subspaces").glob(_name(model, digits, centered, layer)))


def _name(model: str, digits: str, centered: bool, layer: str) -> str:
    parts = [model, digits, "pca" if centered else "uncentred", *([_file_name(layer)] if layer else [])]
    return f"{'-'.join(parts)}.safetensors"


def _file_name(arch: str) -> str:
    """Make a name fit for a file name: ``torchvision/resnet18`` has a slash."""
    return re.sub(r"[^\w.-]", "_", arch)
