"""Read batches in the forms that loaders yield: images, (images, labels) or (indices, images)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tta_cattan.util.errors import UserError, first_line, is_out_of_memory

_FORMS = "give images, (images, labels) or (indices, images), as tensors with the samples first"


def require_batch(x: object) -> Tensor:
    """Return ``x`` if it is a valid batch of inputs; otherwise raise a UserError that says what is wrong."""
    if not isinstance(x, Tensor):
        raise UserError(
            f"a batch has the type {type(x).__name__}: give a torch.Tensor, samples first (see torch.as_tensor)"
        )
    if x.ndim == 0 or len(x) == 0:
        raise UserError("an empty batch was given: there is nothing to predict or to adapt to")
    if x.dtype == torch.uint8:
        raise UserError("a batch is uint8: give real numbers as the network was trained on, such as x.float() / 255")
    return x


@contextmanager
def refusing_one_image(x: Tensor) -> Iterator[None]:
    """Run a network on ``x`` in the block; if it fails on a 3-d ``x``, say that a single image is not a batch."""
    try:
        yield
    except Exception as error:  # torch's layers raise a ValueError or RuntimeError, timm's assert
        if x.ndim != 3 or isinstance(error, UserError) or is_out_of_memory(error):
            raise
        raise UserError(
            f"the network cannot take inputs of shape {tuple(x.shape)} ({first_line(error)}): give one image as a "
            "batch of one, x[None]"
        ) from error


def read_batch(batch: Any) -> tuple[Tensor | None, Tensor]:
    """Return (indices or None, inputs) from one batch of a loader.

    A 1-d integer tensor followed by inputs of the same length holds indices; anything after the inputs is ignored.
    """
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    if not parts or not isinstance(parts[0], Tensor):
        found = type(parts[0] if parts else batch).__name__
        raise UserError(f"a batch of the loader holds a {found} where its inputs should be: {_FORMS}")
    first = parts[0]
    if first.ndim != 1 or first.is_floating_point():
        return None, require_batch(first)
    if len(parts) < 2 or not isinstance(parts[1], Tensor) or len(parts[1]) != len(first) or parts[1].ndim < 2:
        raise UserError(f"a batch of the loader begins with {len(first)} integers and no inputs follow: {_FORMS}")
    return first, require_batch(parts[1])


class ReadBatches:
    """A loader's batches as (indices or None, inputs on ``device``); iterable as often as the loader itself."""

    def __init__(self, loader: Iterable[Any], device: torch.device | None) -> None:
        if not isinstance(loader, Iterable):
            raise UserError(
                f"a loader has the type {type(loader).__name__}: give an iterable of batches, such as a DataLoader"
            )
        self.loader, self.device = loader, device
        self._gone_through = False

    def __iter__(self) -> Iterator[tuple[Tensor | None, Tensor]]:
        if self._gone_through and isinstance(self.loader, Iterator):
            raise UserError("the batches are needed twice, and an iterator gives them once: give a list")
        self._gone_through = True
        for batch in self.loader:
            indices, x = read_batch(batch)
            x = x if self.device is None else x.to(self.device)
            yield indices, x.clone() if x.is_inference() else x
