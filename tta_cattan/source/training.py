"""Training a small source model on the spot."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tta_cattan.data.benchmark import Benchmark
from tta_cattan.data.stream import Stream
from tta_cattan.errors import UserError
from tta_cattan.files import atomic_path, sha256_text
from tta_cattan.models.architectures import ARCHITECTURES
from tta_cattan.models.checkpoints import load_weights
from tta_cattan.models.zoo import LoadedModel, load_model, resolve_device
from tta_cattan.progress import progress

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)


def source_model(cfg: CfgNode, benchmark: Benchmark) -> LoadedModel:
    """Return the source model of a run: loaded by name, or trained on the spot where it is one of the small ones."""
    arch = cfg.MODEL.ARCH
    if not cfg.MODEL.CKPT_PATH and arch in ARCHITECTURES and ARCHITECTURES.get(arch).trained_here:
        return load_or_train(cfg, benchmark)
    return load_model(cfg, benchmark.num_classes, benchmark.family)


def load_or_train(cfg: CfgNode, benchmark: Benchmark) -> LoadedModel:
    """Return the small model ``cfg.MODEL.ARCH`` trained on the benchmark's source data, from the cache if it is there.

    Note: the file's name holds a fingerprint of all that decides its weights, so a changed recipe trains anew.
    """
    data = benchmark.source()
    if data is None:
        raise UserError(f"MODEL.ARCH = {cfg.MODEL.ARCH!r} is trained on source data, and {benchmark.name} has none")
    training = {key: cfg.SOURCE[key] for key in ("EPOCHS", "LR", "BATCH_SIZE")}
    architecture = ARCHITECTURES.get(cfg.MODEL.ARCH)
    network = {"arch": cfg.MODEL.ARCH, **architecture.options(cfg.MODEL)}
    recipe = {**network, "seed": cfg.RNG_SEED, "data": benchmark.describe_source(), **training}
    stamp = sha256_text(json.dumps(recipe, sort_keys=True))[:12]
    path = Path(cfg.CKPT_DIR) / benchmark.name / f"{cfg.MODEL.ARCH}-{stamp}.safetensors"
    device = resolve_device(cfg.DEVICE)
    torch.manual_seed(cfg.RNG_SEED)
    model = architecture(benchmark.num_classes, cfg.MODEL).to(device)
    if path.is_file():
        load_weights(model, path)
    else:
        logger.info("training %s on %d source samples (kept in %s)", cfg.MODEL.ARCH, len(data), path)
        stream = Stream(data, cfg.SOURCE.BATCH_SIZE, cfg.RNG_SEED, device)
        train_classifier(model, stream, cfg.SOURCE.EPOCHS, cfg.SOURCE.LR, benchmark.augment)
        with atomic_path(path) as temporary:
            save_file(model.state_dict(), temporary, metadata={"recipe": json.dumps(recipe, sort_keys=True)})
    return LoadedModel.of(model, str(path))


def train_classifier(
    model: nn.Module, stream: Stream, epochs: int, lr: float, augment: Callable[[Tensor], Tensor]
) -> None:
    """Minimise the cross-entropy by SGD with momentum under one cycle of the learning rate, each batch augmented.

    Note: a batch of one sample is left out: batch normalisation can learn nothing from it.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(stream))
    model.train()
    for epoch in progress(range(epochs), epochs, "training the source model"):
        for batch in stream.reordered(epoch + 1):
            if len(batch.inputs) > 1:
                loss = F.cross_entropy(model(augment(batch.inputs)), batch.labels.to(batch.inputs.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            schedule.step()
    model.eval()
