"""Files that somebody might hand us: damaged, foreign, or made to do harm."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from tta_cattan.alignment import Subspace

FEATURES = 64  # of small_resnet


class Payload:
    """Pickled, it creates a file where it is loaded: the proof that code has run."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return (os.mkdir, (str(self.proof),))


def text(path: Path, content: str | bytes) -> Path:
    """Write a file as it is."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def malicious(path: Path, proof: Path, legacy: bool = False) -> Path:
    """Write a checkpoint whose pickle runs code, in torch's zip format or as a plain pickle."""
    if legacy:
        return text(path, pickle.dumps({"state_dict": Payload(proof)}))
    torch.save({"state_dict": Payload(proof)}, path)
    return path


def truncated(path: Path) -> Path:
    """Cut a file in half."""
    return text(path, path.read_bytes()[: path.stat().st_size // 2])


def saved(path: Path, content: object) -> Path:
    """Write with torch.save."""
    torch.save(content, path)
    return path


def tensors(path: Path, metadata: dict[str, str] | None = None, **content: torch.Tensor) -> Path:
    """Write a safetensors file."""
    save_file(content or {"x": torch.zeros(1)}, path, metadata=metadata)
    return path


def subspace(path: Path, dim: int = FEATURES, d: int = 8, **changes: object) -> Path:
    """Write a subspace file; the changes are made to the Subspace before it is saved."""
    parts = {
        "basis": torch.eye(dim, d),
        "eigenvalues": torch.arange(d, 0, -1.0),
        "mean": torch.zeros(dim),
        "count": 100,
        "centered": True,
        "provenance": {},
    }
    Subspace(**{**parts, **changes}).save(path)
    return path


def with_header(path: Path, **changes: str) -> Path:
    """Write a subspace file with other words in its header."""
    header = {
        "format": "tta-cattan-subspace-2",
        "count": "100",
        "centered": "true",
        "layer": "null",
        "provenance": "{}",
    } | changes
    content = {"basis": torch.eye(FEATURES, 8), "eigenvalues": torch.ones(8)}
    save_file(content, path, metadata=header)
    return path


def npz(path: Path, **arrays: np.ndarray) -> Path:
    """Write an .npz file, objects included."""
    np.savez(path, **arrays)
    return path


def huge(path: Path, size: int) -> Path:
    """Write a file that is large without taking any space."""
    with open(path, "wb") as file:
        file.truncate(size)
    return path
