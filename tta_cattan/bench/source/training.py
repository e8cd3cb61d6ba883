"""Training a source model: the recipe, and a loop that validates, saves checkpoints and resumes bit for bit."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from tqdm import tqdm

from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.data.datasets import split_at_random, take
from tta_cattan.bench.data.stream import Batch, Stream
from tta_cattan.util.errors import UserError
from tta_cattan.util.progress import progress
from tta_cattan.util.state import load_state, restore_generators, save_state

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

_MOMENTUM = 0.9
_SAVE_EVERY = 60.0  # seconds between two checkpoints


@dataclass(frozen=True)
class Recipe:
    """All settings of a training: the keys of ``SOURCE``, and the seed."""

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
        """Return SGD with Nesterov momentum; a ``backbone`` has its own learning rate."""
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
        """Return the schedule of the learning rates over ``steps`` updates."""
        if self.schedule == "power":
            return LambdaLR(optimizer, lambda step: power_decay(step / steps))
        return OneCycleLR(optimizer, [group["lr"] for group in optimizer.param_groups], total_steps=steps)


def power_decay(t: float) -> float:
    """Return SHOT's factor of the learning rate, ``(1 + 10 t)^-0.75``, after the fraction ``t`` of the training."""
    return (1 + 10 * t) ** -0.75


@dataclass(frozen=True)
class SourceStreams:
    """The source data to train on (before ``augment``), and the held-out part."""

    training: Stream
    held_out: Stream | None
    augment: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, benchmark: Benchmark, recipe: Recipe, device: torch.device, workers: int) -> SourceStreams:
        """Split the source data of a benchmark by the recipe's seed."""
        training, held_out = benchmark.training_source(), None
        if recipe.validation:
            whole = benchmark.source()
            if len(whole) < 3:
                raise UserError(
                    f"SOURCE.VALIDATION = {recipe.validation}: {len(whole)} source samples are too few to split"
                )
            kept, held = split_at_random(len(whole), recipe.validation, recipe.seed)
            training = take(training, kept)
            held_out = Stream(take(whole, held), recipe.batch_size, None, device, workers)
        stream = Stream(training, recipe.batch_size, recipe.seed, device, workers)
        return cls(stream, held_out, benchmark.augment)


def train_classifier(
    model: nn.Module, streams: SourceStreams, recipe: Recipe, checkpoint: Path, identity: Mapping[str, Any]
) -> float | None:
    """Train ``model`` and return its accuracy on the held-out part (None without one), whose best epoch is kept.

    Note: a killed training of the same ``identity`` resumes from ``checkpoint`` with the same result, bit for bit,
    where the device's arithmetic is deterministic, as the CPU's is. The caller deletes it once the result is saved.
    """
    training = _Training(model, streams, recipe)
    training.resume(checkpoint, identity)
    total = recipe.epochs * len(streams.training)
    with progress(None, total, "training the source model") as bar:
        bar.update(training.epoch * len(streams.training) + training.done)
        saved = time.monotonic()
        while training.epoch < recipe.epochs:
            for batch in training.remaining_batches():
                training.step(batch)
                bar.update()
                if time.monotonic() - saved > _SAVE_EVERY:
                    training.save(checkpoint, identity)
                    saved = time.monotonic()
            training.end_epoch(bar)
    return training.finish()


class _Training:
    """The state of a training: all of it goes into a checkpoint."""

    def __init__(self, model: nn.Module, streams: SourceStreams, recipe: Recipe) -> None:
        self.model, self.streams, self.recipe = model, streams, recipe
        self.optimizer = recipe.optimizer(model)
        self.schedule = recipe.scheduler(self.optimizer, recipe.epochs * len(streams.training))
        self.epoch = 0  # finished epochs
        self.done = 0  # finished batches of the current epoch
        self.best: tuple[float, dict[str, Tensor]] | None = None
        model.train()

    def remaining_batches(self) -> Stream:
        """Return the remaining batches of the current epoch."""
        epoch = self.streams.training.reordered(self.epoch + 1)
        return epoch.only(range(self.done, len(epoch)))

    def step(self, batch: Batch) -> None:
        """Update once; a batch of one sample is skipped, because it has no batch statistics."""
        if len(batch.inputs) > 1:
            inputs = self.streams.augment(batch.inputs)
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.recipe.mixed_precision):
                logits = self.model(inputs)
            labels = batch.labels.to(inputs.device)
            loss = F.cross_entropy(logits.float(), labels, label_smoothing=self.recipe.label_smoothing)
            if not torch.isfinite(loss):
                raise UserError(
                    f"the training diverged in epoch {self.epoch + 1} (the loss is {loss.item()}): lower SOURCE.LR "
                    f"(it is {self.recipe.lr:g})"
                )
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.schedule.step()
        self.done += 1

    def end_epoch(self, bar: tqdm) -> None:
        """Validate, and keep the weights if they are the best so far."""
        self.epoch, self.done = self.epoch + 1, 0
        if self.streams.held_out is None:
            return
        accuracy = evaluate(self.model, self.streams.held_out)
        self.model.train()
        logger.info("epoch %d of %d: validation accuracy %.2f%%", self.epoch, self.recipe.epochs, 100 * accuracy)
        bar.set_postfix(validation=f"{accuracy:.2%}")
        if self.best is None or accuracy >= self.best[0]:
            self.best = (accuracy, copy.deepcopy(self.model.state_dict()))

    def finish(self) -> float | None:
        """Load the best weights, set evaluation mode and return their accuracy."""
        if self.best is not None:
            self.model.load_state_dict(self.best[1])
        self.model.eval()
        return None if self.best is None else self.best[0]

    def save(self, checkpoint: Path, identity: Mapping[str, Any]) -> None:
        """Write all that the rest of the training depends on."""
        state = {
            "of": json.dumps(identity, sort_keys=True),
            "epoch": self.epoch,
            "done": self.done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "best": self.best,
        }
        save_state(checkpoint, state)

    def resume(self, checkpoint: Path, identity: Mapping[str, Any]) -> None:
        """Load the state of a checkpoint; a damaged one, or one of another training, is ignored."""
        state = load_state(checkpoint, json.dumps(identity, sort_keys=True))
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.epoch, self.done, self.best = state["epoch"], state["done"], state["best"]
        restore_generators(state)
        logger.info("resuming after %d epochs and %d batches (%s)", self.epoch, self.done, checkpoint)


@torch.no_grad()
def evaluate(model: nn.Module, stream: Stream) -> float:
    """Return the accuracy of ``model`` in evaluation mode."""
    model.eval()
    right = sum(int((model(batch.inputs).argmax(1).cpu() == batch.labels).sum()) for batch in stream)
    return right / len(stream.dataset)
