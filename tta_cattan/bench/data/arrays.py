"""Arrays and images in memory, from ``.npy`` and ``.npz`` files."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from tta_cattan.util.errors import UserError
from tta_cattan.util.files import evenly


def to_tensor(images: np.ndarray) -> Tensor:
    """Return uint8 images (N x H x W x 3) as floats in [0, 1] (N x 3 x H x W)."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float().div_(255).contiguous()


def read_npz(path: str | Path, names: Sequence[str]) -> list[np.ndarray]:
    """Return the named arrays of an ``.npz`` file; only these are read."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return [file[name] for name in names]
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not an .npz file with the arrays {', '.join(names)} ({error})") from error


def load_npz(path: str | Path) -> TensorDataset:
    """Return the images and labels of an ``.npz`` file with ``x`` (uint8, N x H x W x 3) and ``y``."""
    images, labels = read_npz(path, ("x", "y"))
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or len(images) != len(labels):
        raise UserError(
            f"{path}: x is {images.dtype} of shape {images.shape} with {len(labels)} labels; "
            "it must be uint8, N x H x W x 3, with N labels in y"
        )
    return TensorDataset(to_tensor(images), torch.from_numpy(labels).long())


def identity_of_rows(path: Path, rows: slice, more: Sequence[str] = ()) -> str:
    """Return 12 hexadecimal digits of the shape of an ``.npy`` file, of 32 rows among ``rows``, and of ``more``."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is not an .npy file ({error}): get it again") from error
    digest = hashlib.sha256(f"{array.dtype};{array.shape};{';'.join(more)};".encode())
    for row in evenly(array[rows], 32):
        digest.update(np.ascontiguousarray(row).data)
    return digest.hexdigest()[:12]
