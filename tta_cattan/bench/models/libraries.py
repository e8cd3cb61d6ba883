"""Networks of torchvision and timm by name, as ``torchvision/NAME`` and ``timm/NAME``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from types import ModuleType

from torch import nn

from tta_cattan.bench.models.input_normalization import IMAGENET_MEAN, IMAGENET_STD, with_normalization
from tta_cattan.util.errors import UserError, first_line, nearest
from tta_cattan.util.upstream import import_torchvision

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
