"""Small folders of features, as ``extract-features`` writes them."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from tta_cattan.bench.data.features import Manifest, write_shard


@cache
def encoder_weights(name: str, seed: int = 0) -> str:
    """Return a checkpoint of a network of timm with random weights and no classifier."""
    import timm

    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    torch.manual_seed(seed)
    path = f"{folder.name}/weights.safetensors"
    save_file(timm.create_model(name, num_classes=0).state_dict(), path)
    return path


def manifest(name: str, n: int, dim: int, shard_size: int = 4, n_classes: int = 3) -> Manifest:
    return Manifest(
        domain=name,
        encoder={"arch": "timm/test_vit", "sha256": "b" * 64},
        data={"sha256": name},
        n=n,
        dim=dim,
        shard_size=shard_size,
        classes=["ant", "bee", "cat"] if n_classes == 3 else [f"class {i}" for i in range(n_classes)],
        versions={},
    )


def write_domain(root: Path, name: str, n: int, seed: int = 0, dim: int = 6, **cut) -> tuple[np.ndarray, list[int]]:
    """Write n random rows with labels in turn, and return both."""
    rows = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return write_rows(root, manifest(name, n, dim, **cut), rows, [i % 3 for i in range(n)])


def write_rows(root: Path, description: Manifest, rows: np.ndarray, labels: list[int]) -> tuple[np.ndarray, list[int]]:
    """Write the rows in the shards that the manifest describes, and return rows and labels."""
    folder = root / description.domain
    description.write(folder)
    for position, part in enumerate(description.shards()):
        chosen = slice(part.start, part.stop)
        write_shard(folder, description, position, rows[chosen], labels[chosen])
    return rows, labels
