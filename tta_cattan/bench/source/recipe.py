"""How a source model is trained: everything that decides its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

if TYPE_CHECKING:
    from yacs.config import CfgNode

_MOMENTUM = 0.9


@dataclass(frozen=True)
class Recipe:
    """The keys of ``SOURCE`` that concern training, and the seed."""

    epochs: int
    lr: float
    backbone_lr: float
    batch_size: int
    weight_decay: float
    schedule: str
    label_smoothing: float
    validation: float
    seed: int
    mixed_precision: bool

    @classmethod
    def of(cls, cfg: CfgNode) -> Recipe:
        """Return the recipe that a config asks for."""
        node = cfg.SOURCE
        return cls(
            epochs=node.EPOCHS,
            lr=node.LR,
            backbone_lr=node.BACKBONE_LR,
            batch_size=node.BATCH_SIZE,
            weight_decay=node.WD,
            schedule=node.SCHEDULE,
            label_smoothing=node.LABEL_SMOOTHING,
            validation=node.VALIDATION,
            seed=cfg.RNG_SEED,
            mixed_precision=node.MIXED_PRECISION,
        )

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        """Return SGD with Nesterov momentum; what lies in a ``backbone`` learns at its own rate."""
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            share = self.backbone_lr if "backbone" in name.split(".") else 1.0
            groups.setdefault(share, []).append(parameter)
        return torch.optim.SGD(
            [{"params": parameters, "lr": self.lr * share} for share, parameters in groups.items()],
            momentum=_MOMENTUM,
            nesterov=True,
            weight_decay=self.weight_decay,
        )

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
        """Return the course of the learning rates over ``steps`` updates."""
        if self.schedule == "power":
            return LambdaLR(optimizer, lambda step: power_decay(step / steps))
        return OneCycleLR(optimizer, [group["lr"] for group in optimizer.param_groups], total_steps=steps)


def power_decay(t: float) -> float:
    """Return SHOT's factor of the learning rate ``(1 + 10 t)^-0.75`` after the share ``t`` of the training."""
    return (1 + 10 * t) ** -0.75
