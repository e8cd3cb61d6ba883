"""The source model of a run: loaded by name, or trained on the benchmark's source data and kept."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.models.architectures import Architecture, find_architecture
from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.zoo import LoadedModel, load_model, resolve_device
from tta_cattan.bench.source.recipe import Recipe
from tta_cattan.bench.source.training import SourceStreams, train_classifier
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path, sha256_file, sha256_text

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)


def source_model(cfg: CfgNode, benchmark: Benchmark) -> LoadedModel:
    """Return the source model of a run: loaded by name, or the one trained by the config's recipe.

    Note: what takes a minute is trained on the spot; what takes longer is asked for, with the command.
    """
    architecture = _trained_architecture(cfg)
    if architecture is None:
        return load_model(cfg, benchmark.num_classes, benchmark.family)
    require_trained(cfg, benchmark)
    return train_source(cfg, benchmark)


def require_trained(cfg: CfgNode, benchmark: Benchmark) -> None:
    """Refuse to go on without a source model that only ``train-source`` or ``pairs`` makes."""
    architecture = _trained_architecture(cfg)
    if architecture is None or architecture.trained_here or (path := checkpoint_path(cfg, benchmark)).is_file():
        return
    raise UserError(
        f"there is no source model at {path}: train it with `tta-cattan train-source --cfg FILE DATA.SOURCE "
        f"{cfg.DATA.SOURCE!r}` and the same SOURCE keys, or set MODEL.CKPT_PATH{_other_recipes(path, cfg, benchmark)}"
    )


def ensure_trained(cfg: CfgNode, benchmark: Benchmark) -> None:
    """Train the source model where it is one that is trained and its file is not there."""
    if _trained_architecture(cfg) is not None and not checkpoint_path(cfg, benchmark).is_file():
        train_source(cfg, benchmark)


def train_source(cfg: CfgNode, benchmark: Benchmark) -> LoadedModel:
    """Return the network ``MODEL.ARCH`` trained on the benchmark's source data, from its file if that is there.

    Note: the file's name holds a fingerprint of all that decides its weights, so a changed recipe trains anew.
    """
    architecture = _trained_architecture(cfg)
    if architecture is None:
        raise UserError(
            f"MODEL.ARCH = {cfg.MODEL.ARCH!r}{' with MODEL.CKPT_PATH' if cfg.MODEL.CKPT_PATH else ''} has its weights "
            "already; a network that is trained here is e.g. 'shot/torchvision/resnet50' or 'small_cnn'"
        )
    path, recipe, device = checkpoint_path(cfg, benchmark), Recipe.of(cfg), resolve_device(cfg.DEVICE)
    torch.manual_seed(cfg.RNG_SEED)
    model = architecture(benchmark.num_classes, cfg.MODEL)
    if path.is_file():
        load_weights(model, path)
        return LoadedModel.of(model.to(device), str(path))
    architecture.initialise(model, cfg.SOURCE.INIT)
    streams = SourceStreams.of(benchmark, recipe, device, cfg.TEST.NUM_WORKERS)
    logger.info("training %s on %d source samples (kept in %s)", cfg.MODEL.ARCH, len(streams.training.dataset), path)
    identity = describe_training(cfg, benchmark)
    note = path.with_name(f".{path.name}.partial")
    accuracy = train_classifier(model.to(device), streams, recipe, note, identity)
    metadata = {"recipe": json.dumps(identity, sort_keys=True)}
    if accuracy is not None:
        metadata["validation_accuracy"] = repr(accuracy)
    with atomic_path(path) as temporary:
        save_file(model.state_dict(), temporary, metadata=metadata)
    note.unlink(missing_ok=True)
    return LoadedModel.of(model, str(path))


def checkpoint_path(cfg: CfgNode, benchmark: Benchmark) -> Path:
    """Return where the trained source model lies: ``CKPT_DIR/<benchmark>/<source>-<arch>-<fingerprint>``."""
    stamp = sha256_text(json.dumps(describe_training(cfg, benchmark), sort_keys=True))[:12]
    return Path(cfg.CKPT_DIR) / benchmark.name / f"{_stem(cfg, benchmark)}-{stamp}.safetensors"


def describe_training(cfg: CfgNode, benchmark: Benchmark) -> dict[str, Any]:
    """Return all that decides the weights of a trained source model."""
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
    """Return the accuracy on held-out source data that a trained model's file tells, if it does."""
    told = _metadata(Path(path)).get("validation_accuracy")
    return None if told is None else float(told)


def _trained_architecture(cfg: CfgNode) -> Architecture | None:
    """Return the architecture where it is one that is trained on source data and no checkpoint replaces that."""
    found = None if cfg.MODEL.CKPT_PATH else find_architecture(cfg.MODEL.ARCH)
    return found if found is not None and (found.trained_here or found.trained_apart) else None


def _stem(cfg: CfgNode, benchmark: Benchmark) -> str:
    name = f"{benchmark.describe_source().get('name', 'source')}-{cfg.MODEL.ARCH}"
    return name.replace("/", "_").replace(" ", "_")


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        return {}


def _other_recipes(path: Path, cfg: CfgNode, benchmark: Benchmark) -> str:
    """Return what a model of the same source and architecture was trained otherwise by, if there is one."""
    wanted = describe_training(cfg, benchmark)
    for other in sorted(path.parent.glob(f"{_stem(cfg, benchmark)}-*.safetensors")):
        found = json.loads(_metadata(other).get("recipe", "{}"))
        for key, value in wanted.items():
            if found.get(key, value) != value:
                return f" ({other} was trained with {key} = {found[key]!r}, and this config has {value!r})"
    return ""
