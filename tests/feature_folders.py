"""Small folders of features, as ``extract-features`` writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tta_cattan.bench.data.features import Manifest, write_shard


def manifest(name: str, n: int, dim: int, shard_size: int = 4, dtype: str = "float32", n_classes: int = 3) -> Manifest:
    return Manifest(
        domain=name,
        encoder={"arch": "timm/test_vit", "sha256": "b" * 64},
        data={"sha256": name},
        n=n,
        dim=dim,
        dtype=dtype,
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
        write_shard(folder, description, position, rows[chosen].astype(description.dtype), labels[chosen])
    return rows, labels
