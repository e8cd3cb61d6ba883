"""Hosts that call ``.cuda()`` whatever the machine has."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import nn

from tta_cattan.util.errors import UserError


def require_cuda(host: str) -> None:
    """Refuse a CUDA-only host on a machine without CUDA, before it has loaded anything."""
    if not torch.cuda.is_available():
        raise UserError(
            f"{host} calls .cuda() throughout, and torch sees no CUDA device here: run it on a GPU machine, or pass "
            "--cpu before the script, which makes .cuda() do nothing in this process"
        )


def stay_on_cpu() -> None:
    """Make ``.cuda()`` of tensors and modules return what it is called on, and load checkpoints to the CPU.

    Note: this concerns the running process only; no file of the host or of torch changes.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # hosts that do ask torch.cuda.is_available() get the same answer
    torch.Tensor.cuda = _itself  # type: ignore[method-assign]
    nn.Module.cuda = _itself  # type: ignore[method-assign]
    load = torch.load

    @functools.wraps(load)
    def load_to_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(f, "cpu" if map_location is None else map_location, *args, **kwargs)

    torch.load = load_to_cpu


def _itself(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for ``.cuda()``."""
    return self
