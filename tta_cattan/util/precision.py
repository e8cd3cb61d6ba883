"""Mixed precision, in the type that suits the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


class Precision:
    """Autocast around the forward pass, and the loss scaling that float16 needs.

    bfloat16 where the device supports it (CPU, MPS, recent GPUs), which needs no scaling; otherwise scaled float16.
    """

    def __init__(self, mixed: bool) -> None:
        self.mixed = mixed
        self.scaler: torch.amp.GradScaler | None = None
        self._scaling: torch.amp.GradScaler | None = None  # the scaler, if the last loss was scaled

    def restart(self) -> None:
        """Forget the loss scale."""
        # It moved in torch 2.3.
        scaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
        self.scaler = scaler() if self.mixed and _needs_scaling() else None

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the context for the forward pass on ``device``."""
        if not self.mixed:
            return nullcontext()
        dtype = torch.float16 if device.type == "cuda" and _needs_scaling() else torch.bfloat16
        return torch.autocast(device.type, dtype=dtype)

    def backward(self, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Back-propagate and unscale the gradients."""
        self._scaling = self.scaler if loss.is_cuda else None
        if self._scaling is not None:
            self._scaling.scale(loss).backward()
            self._scaling.unscale_(optimizer)
        else:
            loss.backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an optimizer step."""
        if self._scaling is not None:
            self._scaling.step(optimizer)
            self._scaling.update()
        else:
            optimizer.step()

    def skip(self) -> None:
        """Skip a step whose gradients are not finite, and lower the scale."""
        if self._scaling is not None:
            self._scaling.update()


def _needs_scaling() -> bool:
    """Return whether the GPU lacks native bfloat16 (NVIDIA before Ampere; torch would emulate it slowly)."""
    return torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability()[0] < 8
