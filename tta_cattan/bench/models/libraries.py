"""Networks of other libraries: ``torchvision/NAME``, ``timm/NAME``, and RobustBench's zoo read safely."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from tta_cattan.bench.models.checkpoints import checked_weight, read_checkpoint
from tta_cattan.bench.models.networks import IMAGENET_MEAN, IMAGENET_STD, with_normalization
from tta_cattan.util.errors import UserError, first_line, nearest
from tta_cattan.util.upstream import import_robustbench, import_torchvision

logger = logging.getLogger(__name__)


def is_library_name(arch: str) -> bool:
    """Tell whether a name asks for a network of torchvision or timm."""
    library, _, name = arch.partition("/")
    return library in ("torchvision", "timm") and bool(name)


def check_library_name(arch: str) -> None:
    """Refuse a name that the library does not have."""
    library, _, name = arch.partition("/")
    known = _torchvision_names() if library == "torchvision" else _timm_names()
    if name.split(".")[0] not in known:
        raise UserError(f"MODEL.ARCH = {arch!r}: {library} has no model {name!r}.{nearest(name, known)}")


def has_library_name(arch: str) -> bool:
    """Tell whether a library that is installed has the model."""
    try:
        check_library_name(arch)
    except UserError:
        return False
    return True


def load_from_library(arch: str, num_classes: int | None, pretrained: bool) -> nn.Module:
    """Return a library's network for images in [0, 1]; ``num_classes`` None: the library's number.

    ``torchvision/resnet50.IMAGENET1K_V1`` and ``timm/resnet50.tv_in1k`` choose one of several weights.

    Note: pretrained weights are downloaded where the library has not cached them; nothing else is.
    """
    library, _, name = arch.partition("/")
    return (_from_torchvision if library == "torchvision" else _from_timm)(name, num_classes, pretrained)


def _torchvision_names() -> list[str]:
    return import_torchvision("torchvision.models").list_models(module=import_torchvision("torchvision.models"))


def _timm_names() -> list[str]:
    return import_timm().list_models()


def import_timm() -> ModuleType:
    """Return timm, or say how to install it."""
    import_torchvision()  # timm imports it, and fails obscurely where the pair does not match
    try:
        import timm
    except ModuleNotFoundError as error:
        raise UserError("timm is not installed: `pip install 'tta-cattan[timm]'`") from error
    return timm


def _from_torchvision(name: str, num_classes: int | None, pretrained: bool) -> nn.Module:
    models = import_torchvision("torchvision.models")
    name, _, tag = name.partition(".")
    if not pretrained:
        classes = {} if num_classes is None else {"num_classes": num_classes}
        return with_normalization(models.get_model(name, weights=None, **classes), IMAGENET_MEAN, IMAGENET_STD)
    known = models.get_model_weights(name)
    if tag and tag not in known.__members__:
        raise UserError(f"torchvision has no weights {tag!r} of {name}: it has {', '.join(known.__members__)}")
    weights = known[tag] if tag else known.DEFAULT
    _same_classes(f"torchvision/{name}", len(weights.meta["categories"]), num_classes)
    model = downloaded(f"torchvision's {name}", partial(models.get_model, name, weights=weights))
    transform = weights.transforms()
    return with_normalization(model, transform.mean, transform.std)


def _from_timm(name: str, num_classes: int | None, pretrained: bool) -> nn.Module:
    timm = import_timm()
    known = timm.get_pretrained_cfg(name) if pretrained else None
    if known is not None:
        _same_classes(f"timm/{name}", known.num_classes, num_classes)
    classes = {} if num_classes is None else {"num_classes": num_classes}
    build = partial(timm.create_model, name, pretrained=pretrained, **classes)
    model = downloaded(f"timm's {name}", build) if pretrained else build()
    return with_normalization(model, model.default_cfg["mean"], model.default_cfg["std"])


def _same_classes(arch: str, has: int, wanted: int | None) -> None:
    """Refuse pretrained weights of another number of classes: a library would give the model a random classifier."""
    if wanted is not None and has != wanted:
        raise UserError(
            f"MODEL.ARCH = {arch!r}: its pretrained weights have {has} classes and the data set has {wanted}; set "
            "MODEL.CKPT_PATH to weights for this data set"
        )


def downloaded(what: str, build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model whose weights a library fetches; a failed download is a one-line error."""
    logger.info("loading the weights of %s (downloaded where they are not cached)", what)
    try:
        return build()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the weights of {what} could not be loaded ({first_line(error)}): get them on a machine with a network "
            "and set MODEL.CKPT_PATH to the file"
        ) from error


THREAT = "corruptions"
_COUNTER = "num_batches_tracked"


def robustbench_names(family: str | None) -> list[str]:
    """Return the names of RobustBench's corruption models for ``family`` (None: no model)."""
    if family is None:
        return []
    return list(_entries(family))


def checkpoint_path(name: str, family: str, ckpt_dir: str) -> Path:
    """Return where RobustBench keeps a checkpoint: ``CKPT_DIR/<family>/corruptions/<name>.pt``."""
    return Path(ckpt_dir) / family / THREAT / f"{name}.pt"


def load_from_robustbench(name: str, family: str | None, ckpt_dir: str, replaced: str) -> tuple[nn.Module, str]:
    """Return a model of the zoo and where its weights came from; ``replaced``: another file brings the weights.

    Note: the file is read with ``weights_only=True`` first, so that RobustBench's own ``torch.load`` meets nothing but
    tensors.
    """
    if family is None:
        raise UserError(
            f"MODEL.ARCH = {name!r} is RobustBench's, which has no models for this data set: use another model"
        )
    standard = family == "imagenet" and name.startswith("Standard")
    if replaced:
        bare = untrained_of_robustbench(name, family)
        if bare is None:
            raise UserError(f"MODEL.CKPT_PATH cannot replace the weights of {name!r}: use its timm/NAME instead")
        return bare, replaced
    entry = _entries(family)[name]
    path = checkpoint_path(name, family, ckpt_dir)
    contents = {}
    for gdrive_id, file in [] if standard else _files(entry["gdrive_id"], path):
        if not file.is_file():
            _download(name, gdrive_id, file)
        contents[file] = read_checkpoint(file)
    model = _load(name, family, ckpt_dir, path)
    if path in contents:
        _check_complete(model, contents[path], path)
    return model, str(path) if path in contents else f"RobustBench's {name}"


def untrained_of_robustbench(name: str, family: str | None) -> nn.Module | None:
    """Return a model of the zoo with random weights; None where RobustBench builds it with its weights only."""
    if family == "imagenet" and name.startswith("Standard"):
        return _bare_resnet50()
    entry = _entries(family).get(name) if family else None
    return entry["model"]() if entry and callable(entry["model"]) and entry["gdrive_id"] is not None else None


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


def _bare_resnet50() -> nn.Module:
    """Return the network of ``Standard_R50``, which RobustBench cannot build without downloading its weights."""
    return with_normalization(
        import_torchvision("torchvision.models").resnet50(weights=None), IMAGENET_MEAN, IMAGENET_STD
    )


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
    """Fetch a checkpoint with RobustBench's own downloader, and keep it only if it is one."""
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
