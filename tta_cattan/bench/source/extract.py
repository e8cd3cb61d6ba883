"""Running an encoder over the domains of a benchmark: in shards, distributed, resumable."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from tta_cattan import __version__
from tta_cattan.bench.data import Benchmark, Stream
from tta_cattan.bench.data.features import MANIFEST, Manifest, shard_is_complete, write_shard
from tta_cattan.bench.data.image_files import ImageList
from tta_cattan.bench.domain import Domain
from tta_cattan.bench.models.encoder import feature_dim
from tta_cattan.bench.models.zoo import LoadedModel, resolve_device
from tta_cattan.bench.source.distributed import ALONE, Workers
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import content_hashes, sha256_tensors, sha256_text
from tta_cattan.util.progress import progress

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cut:
    """How features are stored: rows per shard and their type."""

    shard_size: int = 4096
    dtype: str = "float32"


@dataclass(frozen=True)
class Share:
    """What one process did of a domain."""

    made: int
    kept: int
    images: int
    seconds: float


def extract_domain(
    cfg: CfgNode,
    benchmark: Benchmark,
    domain: Domain,
    encoder: LoadedModel,
    pool: str,
    out: Path,
    cut: Cut = Cut(),
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
            "pool": pool,
            "image_size": cfg.DATA.IMAGE_SIZE,
            "mixed_precision": cfg.MIXED_PRECISION,
        },
        data=describe_inputs(dataset),
        n=len(dataset),
        dim=feature_dim(encoder, cfg.DATA.IMAGE_SIZE),
        dtype=cut.dtype,
        shard_size=cut.shard_size,
        classes=benchmark.class_names(),
        versions={"tta-cattan": __version__, "torch": torch.__version__, "numpy": np.__version__},
    )
    if (folder / MANIFEST).is_file():
        manifest.require_same(folder, Manifest.read(folder))
    else:
        manifest.write(folder)
    shards = list(enumerate(manifest.shards()))[workers.rank :: workers.count]
    missing = [(position, rows) for position, rows in shards if not shard_is_complete(folder, manifest, position)]
    started = time.perf_counter()
    for position, rows in progress(missing, len(missing), f"features of {domain.label}"):
        features, labels = encode(cfg, encoder, Subset(dataset, rows))
        with np.errstate(over="ignore"):  # found below
            features = features.astype(cut.dtype)
        if not np.isfinite(features).all():
            raise UserError(
                f"the features of {domain.label} hold NaN or Inf in the rows {rows.start} to {rows.stop - 1}: check "
                "the weights, MIXED_PRECISION and the data type"
            )
        write_shard(folder, manifest, position, features, labels)
    images = sum(len(rows) for _, rows in missing)
    return Share(len(missing), len(shards) - len(missing), images, time.perf_counter() - started)


@torch.no_grad()
def encode(cfg: CfgNode, encoder: LoadedModel, dataset: Dataset) -> tuple[np.ndarray, Sequence[int]]:
    """Return the features (float32) and labels of a data set, in its order."""
    device = resolve_device(cfg.DEVICE)
    features, labels = [], []
    for batch in Stream(dataset, cfg.TEST.BATCH_SIZE, None, device, cfg.TEST.NUM_WORKERS):
        with torch.autocast(device.type, torch.bfloat16, enabled=cfg.MIXED_PRECISION):
            features.append(encoder.model(batch.inputs).float().cpu())
        labels += batch.labels.tolist()
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
