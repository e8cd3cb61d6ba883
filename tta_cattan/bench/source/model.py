"""The source model of a run: loaded by name, or trained on the benchmark's source data and cached in CKPT_DIR.

Training validates, saves checkpoints and resumes bit for bit.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from tqdm import tqdm
from yacs.config import CfgNode

from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.data.datasets import split_at_random, take
from tta_cattan.bench.data.stream import Batch, Stream
from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.zoo import Architecture, LoadedModel, find_architecture, load_model, placed, resolve_device
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path, sha256_file, sha256_text
from tta_cattan.util.progress import progress
from tta_cattan.util.state import load_state, restore_generators, save_state

logger = logging.getLogger(__name__)


def source_model(cfg: CfgNode, benchmark: Benchmark) -> LoadedModel:
    """Return the source model of a run: loaded by name, or the one trained by the config's recipe.

    Note: a network that trains in a minute is trained on the spot; for others, the error names the command.
    """
    if _trained_architecture(cfg) is None:
        return load_model(cfg, benchmark.num_classes, benchmark.family)
    require_trained(cfg, benchmark)
    return train_source(cfg, benchmark)


def require_trained(cfg: CfgNode, benchmark: Benchmark) -> None:
    """Refuse to continue without a source model that takes too long to be trained on the spot."""
    architecture = _trained_architecture(cfg)
    if architecture is None or architecture.trained_here or (path := trained_path(cfg, benchmark)).is_file():
        return
    raise UserError(
        f"there is no source model at {path}: train it with `tta-cattan train-source --cfg FILE DATA.SOURCE "
        f"{cfg.DATA.SOURCE!r}` and the same SOURCE keys, or set MODEL.CKPT_PATH"
    )


def ensure_trained(cfg: CfgNode, benchmark: Benchmark) -> None:
    """Train the source model if it is one that is trained here and its file does not exist."""
    if _trained_architecture(cfg) is not None and not trained_path(cfg, benchmark).is_file():
        train_source(cfg, benchmark)


def train_source(cfg: CfgNode, benchmark: Benchmark) -> LoadedModel:
    """Return the network ``MODEL.ARCH`` trained on the benchmark's source data, from its file if that exists.

    Note: the file's name holds a fingerprint of everything that determines its weights, so a changed recipe trains
    again; the file itself holds their hash, so changed weights are detected.
    """
    architecture = _trained_architecture(cfg)
    if architecture is None:
        raise UserError(
            f"MODEL.ARCH = {cfg.MODEL.ARCH!r}{' with MODEL.CKPT_PATH' if cfg.MODEL.CKPT_PATH else ''} has its weights "
            "already; a network that is trained here is e.g. 'shot/torchvision/resnet50' or 'small_cnn'"
        )
    path, recipe, device = trained_path(cfg, benchmark), Recipe.of(cfg), resolve_device(cfg.DEVICE)
    torch.manual_seed(cfg.RNG_SEED)
    model = architecture(benchmark.num_classes, cfg.MODEL)
    if path.is_file():
        load_weights(model, path)
        loaded = LoadedModel.of(placed(model, cfg.DEVICE), str(path))
        if loaded.sha256 != _metadata(path).get("sha256"):
            raise UserError(f"{path} was changed after training: delete it to train again")
        return loaded
    architecture.initialise(model, cfg.SOURCE.INIT)
    streams = SourceStreams.of(benchmark, recipe, device, cfg.TEST.NUM_WORKERS)
    logger.info("training %s on %d source samples (saved as %s)", cfg.MODEL.ARCH, len(streams.training.dataset), path)
    identity = describe_training(cfg, benchmark)
    checkpoint = path.with_name(f".{path.name}.checkpoint")
    accuracy = train_classifier(placed(model, cfg.DEVICE), streams, recipe, checkpoint, identity)
    trained = LoadedModel.of(model, str(path))
    metadata = {"recipe": json.dumps(identity, sort_keys=True), "sha256": trained.sha256}
    if accuracy is not None:
        metadata["validation_accuracy"] = repr(accuracy)
    with atomic_path(path) as temporary:
        save_file({name: t.contiguous() for name, t in model.state_dict().items()}, temporary, metadata=metadata)
    checkpoint.unlink(missing_ok=True)
    return trained


def trained_path(cfg: CfgNode, benchmark: Benchmark) -> Path:
    """Return the file of the trained source model: ``CKPT_DIR/<benchmark>/<source>-<arch>-<fingerprint>``."""
    training = describe_training(cfg, benchmark)
    stamp = sha256_text(json.dumps(training, sort_keys=True))[:12]
    stem = re.sub("[/ ]", "_", f"{training['data'].get('name', 'source')}-{cfg.MODEL.ARCH}")
    return Path(cfg.CKPT_DIR) / benchmark.name / f"{stem}-{stamp}.safetensors"


def describe_training(cfg: CfgNode, benchmark: Benchmark) -> dict[str, Any]:
    """Return everything that determines the weights of a trained source model."""
    if not benchmark.has_source():
        raise UserError(f"MODEL.ARCH = {cfg.MODEL.ARCH!r} is trained on source data, and {benchmark.name} has none")
    architecture, init = find_architecture(cfg.MODEL.ARCH), cfg.SOURCE.INIT
    return {
        "arch": cfg.MODEL.ARCH,
        **(architecture.options(cfg.MODEL) if architecture else {}),
        "data": benchmark.describe_source(),
        "init": sha256_file(init) if Path(init).is_file() else init,
        **asdict(Recipe.of(cfg)),
    }


def validation_accuracy(path: str | Path) -> float | None:
    """Return the accuracy on held-out source data that is recorded in a trained model's file, or None."""
    recorded = _metadata(Path(path)).get("validation_accuracy")
    return None if recorded is None else float(recorded)


def _trained_architecture(cfg: CfgNode) -> Architecture | None:
    """Return the architecture if it is trained on source data and no checkpoint replaces its weights."""
    found = None if cfg.MODEL.CKPT_PATH else find_architecture(cfg.MODEL.ARCH)
    return found if found is not None and (found.trained_here or found.trained_apart) else None


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        return {}


_MOMENTUM = 0.9
_SAVE_EVERY = 60.0  # seconds between two checkpoints


@dataclass(frozen=True)
class Recipe:
    """All settings of a training run: the keys of ``SOURCE``, and the seed."""

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
        keys = {**cfg.SOURCE, "WEIGHT_DECAY": cfg.SOURCE.WD, "SEED": cfg.RNG_SEED}
        return cls(**{field.name: keys[field.name.upper()] for field in fields(cls)})

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
        if self.schedule == "power":
            return LambdaLR(optimizer, lambda step: power_decay(step / steps))
        return OneCycleLR(optimizer, [group["lr"] for group in optimizer.param_groups], total_steps=steps)


def power_decay(t: float) -> float:
    """Return SHOT's learning rate factor, ``(1 + 10 t)^-0.75``, after the fraction ``t`` of the training."""
    return (1 + 10 * t) ** -0.75


@dataclass(frozen=True)
class SourceStreams:
    """The source data to train on (before ``augment``), and the held-out part."""

    training: Stream
    held_out: Stream | None
    augment: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, benchmark: Benchmark, recipe: Recipe, device: torch.device, workers: int) -> SourceStreams:
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
    """Train ``model``, keep the epoch that is best on the held-out part, and return that accuracy (None without one).

    Note: a killed run of the same ``identity`` resumes from ``checkpoint`` with the same result, bit for bit, if the
    device's arithmetic is deterministic, as the CPU's is. The caller deletes it once the result is saved.
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
    """The state of a training run, all of which goes into a checkpoint."""

    def __init__(self, model: nn.Module, streams: SourceStreams, recipe: Recipe) -> None:
        self.model, self.streams, self.recipe = model, streams, recipe
        self.optimizer = recipe.optimizer(model)
        self.schedule = recipe.scheduler(self.optimizer, recipe.epochs * len(streams.training))
        self.epoch = 0  # finished epochs
        self.done = 0  # finished batches of the current epoch
        self.best: tuple[float, dict[str, Tensor]] | None = None
        model.train()

    def remaining_batches(self) -> Stream:
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
        """Write everything that the rest of the training depends on."""
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
    model.eval()
    right = sum(int((model(batch.inputs).argmax(1).cpu() == batch.labels).sum()) for batch in stream)
    return right / len(stream.dataset)
