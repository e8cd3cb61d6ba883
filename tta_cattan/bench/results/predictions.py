"""The predictions of a cell, image by image, in a small file beside the results."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tta_cattan.bench.results.identity import canonical_json
from tta_cattan.util.door import checked_array
from tta_cattan.util.files import atomic_path, sha256_text

if TYPE_CHECKING:
    from tta_cattan.bench.results.store import Cell

logger = logging.getLogger(__name__)

PREDICTIONS_FOLDER = "predictions"
CHECKPOINTS_FOLDER = "unfinished"
COLUMNS = ("index", "prediction", "confidence", "label")
_MAX_BYTES = 1 << 30
_ROUNDING = 1e-5  # of a probability in float32


def predictions_path(folder: str | os.PathLike[str], cell: Cell, fingerprint: str) -> Path:
    """Return the path of a cell's predictions."""
    return Path(folder) / PREDICTIONS_FOLDER / f"{_file_name(cell, fingerprint)}.safetensors"


def checkpoint_path(folder: str | os.PathLike[str], cell: Cell, fingerprint: str) -> Path:
    """Return the path of an unfinished cell's checkpoint."""
    return Path(folder) / CHECKPOINTS_FOLDER / f"{_file_name(cell, fingerprint)}.pt"


def _file_name(cell: Cell, fingerprint: str) -> str:
    """Return a readable name with a unique hash."""
    name = re.sub(r"[^A-Za-z0-9_+.=-]+", "_", f"{cell.label}-{cell.target.label}-{cell.seed}")[:80]
    digest = sha256_text(canonical_json({**asdict(cell), "fingerprint": fingerprint}))[:16]
    return f"{name}-{digest}"


def write_predictions(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write ``columns`` atomically."""
    from safetensors.numpy import save_file

    with atomic_path(path) as temporary:
        save_file(dict(columns), temporary)


def read_predictions(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the columns of a file, or None if it does not exist or, with a warning, is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES:,} bytes")
        columns = load_file(path)
        n = columns["index"].shape[0]
        for name, low in (("index", 0), ("prediction", -1), ("label", 0)):
            checked_array(name, columns[name], "integer", (n,), low)
        checked_array("confidence", columns["confidence"], "real", (n,), 0, 1 + _ROUNDING)
    except (SafetensorError, OSError, KeyError, IndexError, ValueError) as error:
        logger.warning("%s is not a predictions file (%s) and is ignored; delete it to silence this", path, error)
        return None
    return {name: columns[name] for name in COLUMNS}
