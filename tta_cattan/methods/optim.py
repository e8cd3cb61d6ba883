"""Optimisers by config: a factory, because the parameters exist only once the model is configured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from yacs.config import CfgNode

_HAS_ONE_PASS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def adam(lr: float = 1e-3, beta: float = 0.9, weight_decay: float = 0.0) -> OptimizerFactory:
    """Return a factory of TENT's Adam."""
    return partial(_in_one_pass, torch.optim.Adam, lr=lr, betas=(beta, 0.999), weight_decay=weight_decay)


def optimizer_from_cfg(cfg: CfgNode) -> OptimizerFactory:
    """Return the factory of the optimiser that ``cfg.OPTIM`` describes (Adam, AdamW or SGD)."""
    options = cfg.OPTIM
    if options.METHOD == "Adam":
        return adam(options.LR, options.BETA, options.WD)
    if options.METHOD == "AdamW":
        betas = (options.BETA, 0.999)
        return partial(_in_one_pass, torch.optim.AdamW, lr=options.LR, betas=betas, weight_decay=options.WD)
    return partial(
        torch.optim.SGD,
        lr=options.LR,
        momentum=options.MOMENTUM,
        dampening=options.DAMPENING,
        weight_decay=options.WD,
        nesterov=options.NESTEROV,
    )


def _in_one_pass(
    kind: Callable[..., torch.optim.Optimizer], params: Iterable[nn.Parameter], **options: Any
) -> torch.optim.Optimizer:
    """Build Adam so that, on the CPU, one pass does what is ten passes over the parameters otherwise.

    Note: torch has it there since 2.4. On a GPU torch chooses: with loss scaling the two differ in more than time.
    """
    params = list(params)
    one_pass = _HAS_ONE_PASS and all(param.device.type == "cpu" for param in params)
    return kind(params, fused=True if one_pass else None, **options)
