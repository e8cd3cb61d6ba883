"""Arrays and images in memory, from ``.npy`` and ``.npz`` files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from tta_cattan.util.door import checked_array, checked_labels, open_npy, regular_file
from tta_cattan.util.errors import UserError, first_line


def to_tensor(images: np.ndarray) -> Tensor:
    """Return uint8 images (N x H x W x 3) as floats in [0, 1] (N x 3 x H x W)."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float().div_(255).contiguous()


def read_npz(path: str | Path, names: Sequence[str]) -> list[np.ndarray]:
    """Return the named arrays of an ``.npz`` file; only these are read."""
    try:
        with np.load(regular_file(path), allow_pickle=False) as file:
            return [file[name] for name in names]
    except UserError:
        raise
    except Exception as error:  # damaged bytes make numpy and zipfile fail in any way, with MemoryError too
        raise UserError(
            f"{path} is not an .npz file with the arrays {', '.join(names)} ({first_line(error)}): get it again"
        ) from error


def check_images(path: str | Path, images: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
    """Refuse anything but RGB images (uint8, N x H x W x 3) with N labels."""
    remedy = "write x (uint8, N x H x W x 3) and y (N integers) with numpy.savez"
    checked_array(f"x in {path}", images, "uint8", (None, None, None, 3), remedy=remedy)
    checked_labels(f"y in {path}", labels, len(images), num_classes, remedy)


def load_npz(path: str | Path, num_classes: int) -> TensorDataset:
    """Return the images and labels of an ``.npz`` file with ``x`` (uint8, N x H x W x 3) and ``y``."""
    images, labels = read_npz(path, ("x", "y"))
    check_images(path, images, labels, num_classes)
    return TensorDataset(to_tensor(images), torch.from_numpy(labels).long())


def identity_of_rows(path: Path, rows: slice, more: Sequence[str] = ()) -> str:
    """Return 12 hexadecimal digits of every byte of ``rows`` of an ``.npy`` file, of their form, and of ``more``."""
    array = open_npy(path)[rows]
    digest = hashlib.sha256(f"{array.dtype};{array.shape};{';'.join(more)};".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:12]
