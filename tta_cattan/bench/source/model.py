"""The source model of a run: loaded by name, or trained on the benchmark's source data and cached in CKPT_DIR."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.zoo import Architecture, LoadedModel, find_architecture, load_model, resolve_device
from tta_cattan.bench.source.training import Recipe, SourceStreams, train_classifier
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path, sha256_file, sha256_text

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)


def source_model(cfg: CfgNode, benchmark: Benchmark) -> LoadedModel:
    """Return the source model of a run: loaded by name, or the one trained by the config's recipe.

    Note: a network that takes a minute is trained on the spot; for others the user is told the command.
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
        f"{cfg.DATA.SOURCE!r}` and the same SOURCE keys, or set MODEL.CKPT_PATH{_other_recipes(path, cfg, benchmark)}"
    )


def ensure_trained(cfg: CfgNode, benchmark: Benchmark) -> None:
    """Train the source model if it is one that is trained here and its file does not exist."""
    if _trained_architecture(cfg) is not None and not trained_path(cfg, benchmark).is_file():
        train_source(cfg, benchmark)


def train_source(cfg: CfgNode, benchmark: Benchmark) -> LoadedModel:
    """Return the network ``MODEL.ARCH`` trained on the benchmark's source data, from its file if that exists.

    Note: the file's name holds a fingerprint of all that determines its weights, so a changed recipe trains again; the
    file itself holds their hash, so changed weights are noticed.
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
        loaded = LoadedModel.of(model.to(device), str(path))
        if loaded.sha256 != _metadata(path).get("sha256"):
            raise UserError(f"{path} was changed after training: delete it to train again")
        return loaded
    architecture.initialise(model, cfg.SOURCE.INIT)
    streams = SourceStreams.of(benchmark, recipe, device, cfg.TEST.NUM_WORKERS)
    logger.info("training %s on %d source samples (saved as %s)", cfg.MODEL.ARCH, len(streams.training.dataset), path)
    identity = describe_training(cfg, benchmark)
    checkpoint = path.with_name(f".{path.name}.checkpoint")
    accuracy = train_classifier(model.to(device), streams, recipe, checkpoint, identity)
    trained = LoadedModel.of(model, str(path))
    metadata = {"recipe": json.dumps(identity, sort_keys=True), "sha256": trained.sha256}
    if accuracy is not None:
        metadata["validation_accuracy"] = repr(accuracy)
    with atomic_path(path) as temporary:
        save_file(model.state_dict(), temporary, metadata=metadata)
    checkpoint.unlink(missing_ok=True)
    return trained


def trained_path(cfg: CfgNode, benchmark: Benchmark) -> Path:
    """Return the file of the trained source model: ``CKPT_DIR/<benchmark>/<source>-<arch>-<fingerprint>``."""
    stamp = sha256_text(json.dumps(describe_training(cfg, benchmark), sort_keys=True))[:12]
    return Path(cfg.CKPT_DIR) / benchmark.name / f"{_stem(cfg, benchmark)}-{stamp}.safetensors"


def describe_training(cfg: CfgNode, benchmark: Benchmark) -> dict[str, Any]:
    """Return all that determines the weights of a trained source model."""
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
    """Return the accuracy on held-out source data that a trained model's file records, if it does."""
    recorded = _metadata(Path(path)).get("validation_accuracy")
    return None if recorded is None else float(recorded)


def _trained_architecture(cfg: CfgNode) -> Architecture | None:
    """Return the architecture if it is trained on source data and no checkpoint replaces its weights."""
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
    """Return how the recipe of an existing model of the same source and architecture differs, if there is one."""
    wanted = describe_training(cfg, benchmark)
    for other in sorted(path.parent.glob(f"{_stem(cfg, benchmark)}-*.safetensors")):
        with suppress(ValueError, AttributeError, RecursionError):  # a damaged neighbour says nothing
            found = json.loads(_metadata(other).get("recipe", "{}"))
            for key, value in wanted.items():
                if found.get(key, value) != value:
                    return f" ({other} was trained with {key} = {found[key]!r}, and this config has {value!r})"
    return ""
