"""The features that a model's classifier receives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from tta_cattan.network.classifier import only_head_call, watch_head


@torch.no_grad()
def iterate_features(model: nn.Module, classifier: str, inputs: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the features (n x D) of each batch of inputs, by the model in evaluation mode."""
    model.eval()
    head = model.get_submodule(classifier)
    for x in inputs:
        with watch_head(head) as calls:
            output = model(x)
        yield only_head_call(calls, output, classifier).features
