"""The source subspace of a network in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tta_cattan import __version__
from tta_cattan.alignment.fitting import fit_subspace
from tta_cattan.alignment.subspace import Subspace, sha256_weights
from tta_cattan.network.given import require_plain
from tta_cattan.network.layers import find_classifier, iterate_features
from tta_cattan.network.normalization import require_module
from tta_cattan.util.batches import ReadBatches


def fit_source(
    model: nn.Module,
    loader: Iterable[Any],
    layer: str | None = None,
    d: int | None = None,
    classifier: str = "",
    center: bool = True,
) -> Subspace:
    """Fit the source subspace of ``model`` to source images: batches of images or (images, labels), one pass.

    The features are the input of the classifier, which ``classifier`` names where it is not the last linear layer, or
    the output of ``layer``. ``d=None`` keeps every direction that the samples determine. The model stays as it is.
    """
    require_module(model)
    require_plain(model)
    name = "" if layer else find_classifier(model, classifier)
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.inference_mode(False):
            inputs = (x for _, x in ReadBatches(loader, next(model.parameters()).device))
            return fit_subspace(
                iterate_features(model, name, inputs, layer or ""),
                d,
                center,
                {"weights_sha256": sha256_weights(model), "model": type(model).__name__, "tta-cattan": __version__},
                layer or "",
            )
    finally:
        for module, mode in modes.items():
            module.training = mode
