"""Run a frozen encoder over the domains of a benchmark: in shards, distributed, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset
from yacs.config import CfgNode

from tta_cattan import __version__
from tta_cattan.bench import Domain
from tta_cattan.bench.data import Benchmark, Stream
from tta_cattan.bench.data.features import MANIFEST, Manifest, shard_is_complete, write_shard
from tta_cattan.bench.data.image_files import ImageList
from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.networks import inner_network
from tta_cattan.bench.models.zoo import (
    ARCHITECTURES,
    LoadedModel,
    check_arch,
    is_library_name,
    placed,
    resolve_device,
    without_head,
)
from tta_cattan.bench.source.distributed import ALONE, Workers
from tta_cattan.util.errors import UserError, first_line
from tta_cattan.util.files import content_hashes, sha256_tensors, sha256_text
from tta_cattan.util.progress import progress

# MAE's checkpoints hold a decoder besides the encoder.
_DECODER = ("decoder_", "mask_token")


class Share(NamedTuple):
    """One process's work on a domain: shards written and kept, images encoded, seconds."""

    made: int
    kept: int
    images: int
    seconds: float


def load_encoder(cfg: CfgNode) -> LoadedModel:
    """Return ``MODEL.ARCH`` without its classifier, for images in [0, 1].

    Its weights are those of ``MODEL.CKPT_PATH`` or, without one, those that timm or torchvision fetch. Its features are
    the input of its classifier: for MAE's transformers, the class token.
    """
    arch, path = cfg.MODEL.ARCH, cfg.MODEL.CKPT_PATH
    check_arch(arch, None)
    own = arch in ARCHITECTURES and ARCHITECTURES.get(arch).mean  # of images
    if not is_library_name(arch) and not (own and path):
        raise UserError(
            f"MODEL.ARCH = {arch!r} is not an encoder: give timm/NAME, torchvision/NAME or, with MODEL.CKPT_PATH, "
            "resnet50_v1"
        )
    model, head = without_head(arch, pretrained=not path)
    if path:
        load_weights(inner_network(model), path, ignored=(*_DECODER, *(f"{name}." for name in head)))
    return LoadedModel.of(placed(model, cfg.DEVICE), path or f"the weights of {arch}")


@torch.no_grad()
def feature_dim(encoder: LoadedModel, image_size: int) -> int:
    """Return the dimension of the encoder's features; refuse an image size that it does not take."""
    device = next(encoder.model.parameters()).device
    try:
        features = encoder.model(torch.zeros(1, 3, image_size, image_size, device=device))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"DATA.IMAGE_SIZE = {image_size}: the encoder does not take images of this side ({first_line(error)}); set "
            "DATA.IMAGE_SIZE to the side that it was trained with"
        ) from error
    if features.ndim != 2:
        raise UserError(
            f"the encoder returns features of shape {tuple(features.shape)}, not one vector per image: choose another "
            "MODEL.ARCH"
        )
    return features.shape[1]


def extract_domain(
    cfg: CfgNode,
    benchmark: Benchmark,
    domain: Domain,
    encoder: LoadedModel,
    out: Path,
    shard_size: int = 4096,
    workers: Workers = ALONE,
) -> Share:
    """Write this process's share of a domain's features to ``out/<domain>``; complete shards are kept.

    Note: a shard's batches do not depend on the number of processes, so neither do its bytes.
    """
    dataset = benchmark.target(domain)
    folder = out / domain.label
    manifest = Manifest(
        domain=domain.label,
        encoder={
            "arch": cfg.MODEL.ARCH,
            "sha256": encoder.sha256,
            "image_size": cfg.DATA.IMAGE_SIZE,
            "mixed_precision": cfg.MIXED_PRECISION,
        },
        data=describe_inputs(dataset),
        n=len(dataset),
        dim=feature_dim(encoder, cfg.DATA.IMAGE_SIZE),
        shard_size=shard_size,
        classes=benchmark.class_names(),
        versions={"tta-cattan": __version__, "torch": torch.__version__, "numpy": np.__version__},
    )
    if (folder / MANIFEST).is_file():
        manifest.require_same(folder, Manifest.read(folder))
    else:
        manifest.write(folder)
    shards = list(enumerate(manifest.shards()))[workers.rank :: workers.count]
    missing = [(position, rows) for position, rows in shards if not shard_is_complete(folder, manifest, position)]
    images = sum(len(rows) for _, rows in missing)
    started = time.perf_counter()
    with progress(None, images, f"features of {domain.label}") as bar:
        for position, rows in missing:
            features, labels = encode(cfg, encoder, Subset(dataset, rows), bar.update)
            if not np.isfinite(features).all():
                raise UserError(
                    f"the features of {domain.label} hold NaN or Inf in the rows {rows.start} to {rows.stop - 1}: "
                    "check the weights and MIXED_PRECISION"
                )
            write_shard(folder, manifest, position, features, labels)
    return Share(len(missing), len(shards) - len(missing), images, time.perf_counter() - started)


@torch.no_grad()
def encode(
    cfg: CfgNode, encoder: LoadedModel, dataset: Dataset, done: Callable[[int], object]
) -> tuple[np.ndarray, Sequence[int]]:
    """Return the features (float32) and labels of a data set, in order; call ``done`` with the size of each batch."""
    device = resolve_device(cfg.DEVICE)
    features, labels = [], []
    for batch in Stream(dataset, cfg.TEST.BATCH_SIZE, None, device, cfg.TEST.NUM_WORKERS):
        with torch.autocast(device.type, torch.bfloat16, enabled=cfg.MIXED_PRECISION):
            features.append(encoder.model(batch.inputs).float().cpu())
        labels += batch.labels.tolist()
        done(len(batch.labels))
    return torch.cat(features).numpy(), labels


def describe_inputs(dataset: Dataset) -> dict[str, str]:
    """Return a hash of the content: names, bytes and labels of files, or the arrays themselves."""
    if isinstance(dataset, TensorDataset):
        return {"sha256": sha256_tensors(dict(zip("xy", dataset.tensors, strict=True)))}
    if not isinstance(dataset, ImageList):
        raise UserError(f"features are extracted from images, and this benchmark has {type(dataset).__name__}")
    # The folders above a class folder may move.
    hashes = content_hashes([path for path, _ in dataset.samples])
    named = zip(dataset.samples, hashes, strict=True)
    lines = [f"{path.parent.name}/{path.name} {content} {label}" for (path, label), content in named]
    return {"files_sha256": sha256_text("\n".join(lines))}
