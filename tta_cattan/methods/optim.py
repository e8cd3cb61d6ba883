"""Optimisers by config: a factory, because the parameters exist only once the model is configured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from yacs.config import CfgNode

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def adam(lr: float = 1e-3, beta: float = 0.9, weight_decay: float = 0.0) -> OptimizerFactory:
    """Return a factory of TENT's Adam."""
    return partial(torch.optim.Adam, lr=lr, betas=(beta, 0.999), weight_decay=weight_decay)


def optimizer_from_cfg(cfg: CfgNode) -> OptimizerFactory:
    """Return the factory of the optimiser that ``cfg.OPTIM`` describes (Adam, AdamW or SGD)."""
    options = cfg.OPTIM
    if options.METHOD == "Adam":
        return adam(options.LR, options.BETA, options.WD)
    if options.METHOD == "AdamW":
        return partial(torch.optim.AdamW, lr=options.LR, betas=(options.BETA, 0.999), weight_decay=options.WD)
    return partial(
        torch.optim.SGD,
        lr=options.LR,
        momentum=options.MOMENTUM,
        dampening=options.DAMPENING,
        weight_decay=options.WD,
        nesterov=options.NESTEROV,
    )
