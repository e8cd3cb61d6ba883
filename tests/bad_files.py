"""Files that somebody might hand us: damaged, foreign, or made to do harm."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tta_cattan.alignment import Subspace
from tta_cattan.bench.models.networks import SmallResNet

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


def subspace(
    path: Path, dim: int = FEATURES, d: int = 8, dtype: torch.dtype = torch.float32, **changes: object
) -> Path:
    """Write a subspace file; the changes are made to the Subspace before it is saved."""
    parts = {
        "basis": torch.eye(dim, d),
        "eigenvalues": torch.arange(d, 0, -1.0),
        "mean": torch.zeros(dim),
        "count": 100,
        "centered": True,
        "provenance": {},
    }
    Subspace(**{**parts, **changes}).save(path, dtype)
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


def cifar_c(root: Path, rows: np.ndarray | bytes | None = None, labels: np.ndarray | bytes | None = None) -> Path:
    """Write CIFAR-10-C with fog alone, 12 images at severity 5; an array or bytes replace either file."""
    folder = root / "CIFAR-10-C"
    folder.mkdir()
    if rows is None:
        whole = np.lib.format.open_memmap(folder / "fog.npy", "w+", np.uint8, (50000, 32, 32, 3))  # sparse on the disk
        whole[40000:40012] = 7
    for name, content in (("fog.npy", rows), ("labels.npy", np.arange(12) % 10 if labels is None else labels)):
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        elif content is not None:
            np.save(folder / name, content, allow_pickle=True)
    return root


def npy_header(shape: str, dtype: str = "|u1") -> bytes:
    """Return the header of an .npy file, whatever it claims."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz_bytes(**arrays: np.ndarray) -> bytes:
    """Return the bytes of an .npz file."""
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def weights(path: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """Write the weights of small_resnet after a change."""
    state = SmallResNet(10).state_dict()
    change(state)
    return saved(path, state)


def png(path: Path, width: int, height: int) -> Path:
    """Write a PNG of one colour, small on the disk and of any size when decoded."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((width + 7) // 8 + 1) * 8, 9)
    return text(path, b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


def fifo(path: Path) -> Path:
    """Make a named pipe, on which a reader waits for ever."""
    os.mkfifo(path)
    return path
