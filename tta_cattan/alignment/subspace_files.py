"""Where the source subspace of a model is kept, by its weights."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from torch import nn

from tta_cattan.util.files import sha256_tensors, sha256_text

_STATISTICS = ("running_mean", "running_var")
_DIGITS = 12  # of the hash, in a file name


def sha256_weights(model: nn.Module) -> str:
    """Return the SHA-256 of a network's parameters and normalisation statistics, whatever their names.

    Note: wrappers rename the weights and add buffers, such as an input normalisation; the hash stays the same.
    """
    statistics = [value for name, value in model.named_buffers() if name.rpartition(".")[2] in _STATISTICS]
    return sha256_text("".join(sorted(sha256_tensors({"": value}) for value in [*model.parameters(), *statistics])))


def subspace_path(ckpt_dir: str | os.PathLike[str], arch: str, weights: str, centered: bool, layer: str = "") -> Path:
    """Return where the subspace of a model is kept: ``<ckpt_dir>/subspaces/<arch>-<weights>-<kind>.safetensors``.

    The kind is ``pca`` or ``uncentred``, and the layer where it is not the input of the classifier.
    """
    return Path(ckpt_dir) / "subspaces" / _name(_file_name(arch), weights[:_DIGITS], centered, layer)


def find_subspaces(
    ckpt_dir: str | os.PathLike[str],
    centered: bool,
    layer: str = "",
    arch: str | None = None,
    weights: str | None = None,
) -> list[Path]:
    """Return the kept subspaces of an architecture, or of these weights under any name of their architecture."""
    model = "*" if arch is None else glob.escape(_file_name(arch))
    digits = "?" * _DIGITS if weights is None else weights[:_DIGITS]
    return sorted((Path(ckpt_dir) / "subspaces").glob(_name(model, digits, centered, layer)))


def _name(model: str, digits: str, centered: bool, layer: str) -> str:
    parts = [model, digits, "pca" if centered else "uncentred", *([_file_name(layer)] if layer else [])]
    return f"{'-'.join(parts)}.safetensors"


def _file_name(arch: str) -> str:
    """Return an architecture's name as part of a file name: ``torchvision/resnet18`` has a slash."""
    return re.sub(r"[^\w.-]", "_", arch)
