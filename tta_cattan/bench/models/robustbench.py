"""RobustBench's zoo of corruption models, with its files read safely."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tta_cattan.bench.models.checkpoints import checked_weight, read_checkpoint
from tta_cattan.bench.models.networks import IMAGENET_MEAN, IMAGENET_STD, with_normalization
from tta_cattan.util.errors import UserError
from tta_cattan.util.upstream import import_robustbench, import_torchvision

logger = logging.getLogger(__name__)

THREAT = "corruptions"
_COUNTER = "num_batches_tracked"


def robustbench_names(family: str | None) -> list[str]:
    """Return the names of RobustBench's corruption models for ``family`` (None: no model)."""
    return list(_entries(family)) if family else []


def load_from_robustbench(name: str, family: str, ckpt_dir: str) -> tuple[nn.Module, str]:
    """Return a model of the zoo and where its weights came from: ``CKPT_DIR/<family>/corruptions/<name>.pt``.

    Note: the file is read with ``weights_only=True`` first, so that RobustBench's own ``torch.load`` sees only
    tensors.
    """
    path = Path(ckpt_dir) / family / THREAT / f"{name}.pt"
    contents = {}
    for gdrive_id, file in [] if _is_torchvisions(name, family) else _files(_entries(family)[name]["gdrive_id"], path):
        if not file.is_file():
            _download(name, gdrive_id, file)
        contents[file] = read_checkpoint(file)
    model = _load(name, family, ckpt_dir, path)
    if path in contents:
        _check_complete(model, contents[path], path)
    return model, str(path) if path in contents else f"RobustBench's {name}"


def untrained_of_robustbench(name: str, family: str | None) -> nn.Module | None:
    """Return a model of the zoo with random weights; None if RobustBench only builds it together with its weights."""
    if _is_torchvisions(name, family):
        resnet50 = import_torchvision("torchvision.models").resnet50(weights=None)
        return with_normalization(resnet50, IMAGENET_MEAN, IMAGENET_STD)
    entry = _entries(family).get(name) if family else None
    return entry["model"]() if entry and callable(entry["model"]) and entry["gdrive_id"] is not None else None


def _is_torchvisions(name: str, family: str | None) -> bool:
    """Return whether this is ``Standard_R50``, whose weights RobustBench gets from torchvision."""
    return family == "imagenet" and name.startswith("Standard")


def _files(gdrive_id: str | list[str] | None, path: Path) -> list[tuple[str, Path]]:
    """Return (Google Drive id, file) of each checkpoint of a model; an ensemble has several, timm's have none."""
    if isinstance(gdrive_id, str):
        return [(gdrive_id, path)]
    return [(one, Path(f"{path}_m{number}.pt")) for number, one in enumerate(gdrive_id or ())]


def _check_complete(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse a model that did not get all its weights from the checkpoint, or weights that are not finite numbers.

    Note: RobustBench ignores missing keys if the normaliser's are among them, and would use random weights.
    """
    given = {_bare(name): tensor for name, tensor in tensors.items()}
    for name, like in model.state_dict().items():
        if _bare(name) in given and given[_bare(name)].shape == like.shape:
            checked_weight(name, given[_bare(name)], like, path)
    missing = [
        name
        for name in model.state_dict()
        if _bare(name) not in given and name.rpartition(".")[2] not in ("mean", "std", "mu", "sigma", _COUNTER)
    ]
    if missing:
        raise UserError(
            f"checkpoint {path} is of another architecture: it lacks {missing[0]!r} and {len(missing) - 1} more; "
            "delete it and get it again"
        )


def _bare(name: str) -> str:
    """Return a weight's name without the prefixes that wrappers give it."""
    while name.startswith(("module.", "model.")):
        name = name.partition(".")[2]
    return name


def _entries(family: str) -> dict[str, Any]:
    zoo = import_robustbench("robustbench.model_zoo").model_dicts
    enums = import_robustbench("robustbench.model_zoo.enums")
    return zoo[enums.BenchmarkDataset(family)][enums.ThreatModel(THREAT)]


def _load(name: str, family: str, ckpt_dir: str, path: Path) -> nn.Module:
    try:
        return import_robustbench("robustbench.utils").load_model(name, ckpt_dir, family, THREAT)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        reason = " ".join((str(error) or type(error).__name__).split())[:200]
        if "loading state_dict" in reason and path.is_file():
            reason = f"{path} is of another architecture: {reason}"
        raise UserError(
            f"RobustBench could not load {name!r} ({reason}): put its checkpoint at {path}, or set MODEL.CKPT_PATH"
        ) from error


def _download(name: str, gdrive_id: str, path: Path) -> None:
    """Download a file with RobustBench's own downloader, and keep it only if it is a checkpoint."""
    logger.info("downloading the checkpoint of %s (Google Drive id %s) to %s", name, gdrive_id, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".download")
    advice = f"get the file with Google Drive id {gdrive_id} in a browser and put it at {path}, or set MODEL.CKPT_PATH"
    try:
        import_robustbench("robustbench.utils").download_gdrive_new(gdrive_id, fresh)
        read_checkpoint(fresh)
        fresh.replace(path)
    except UserError as error:
        raise UserError(f"the download of {name} did not give a checkpoint ({error}); {advice}") from error
    except Exception as error:  # the downloader raises errors of its own
        raise UserError(f"{name} could not be downloaded ({type(error).__name__}); {advice}") from error
    finally:
        fresh.unlink(missing_ok=True)
