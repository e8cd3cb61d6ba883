"""The normalisation layers of a model: which they are, what is adapted of them, whose statistics they use."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from tta_cattan.util.errors import UserError

STATISTICS = ("batch", "source", "running", "blend")

_KNOWN = (_NormBase, nn.LayerNorm, nn.GroupNorm)


def is_normalization(module: nn.Module) -> bool:
    """Tell whether a module normalises: torch's own classes and, by name and shape, timm's and the user's variants.

    Note: a class that is not torch's counts when its name says "norm" and it has a one-dimensional ``weight``
    (RMSNorm, EvoNorm, FilterResponseNorm, ...).
    """
    if isinstance(module, _KNOWN):
        return True
    weight = module._parameters.get("weight")
    return weight is not None and weight.ndim == 1 and "norm" in type(module).__name__.lower()


def normalization_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) of every normalisation layer."""
    return ((name, module) for name, module in model.named_modules() if is_normalization(module))


def affine_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[str]]:
    """Return the scale and shift parameters of the normalisation layers, and their names."""
    params, names = [], []
    for layer_name, layer in normalization_layers(model):
        for kind in ("weight", "bias"):  # weight is scale, bias is shift
            param = layer._parameters.get(kind)
            if param is not None:
                params.append(param)
                names.append(f"{layer_name}.{kind}" if layer_name else kind)
    return params, names


def require_module(model: object) -> None:
    """Raise for what is not a model that was built."""
    if not isinstance(model, nn.Module):
        kind = "a class" if isinstance(model, type) else f"a {type(model).__name__}"
        raise UserError(f"model = {str(model)[:60]!r} is {kind}: give a torch.nn.Module with its weights loaded")


def require_affine(model: nn.Module, method: str) -> None:
    """Raise for a model with nothing that ``method`` could adapt."""
    require_module(model)
    if not affine_parameters(model)[0]:
        raise UserError(
            f"{type(model).__name__} has no normalisation layer with affine parameters, and {method} adapts nothing "
            "else: use a model with BatchNorm, LayerNorm, GroupNorm or InstanceNorm, or MODEL.ADAPTATION source"
        )


def statistics_layers(model: nn.Module) -> list[_NormBase]:
    """Return the layers that can choose between batch and running statistics."""
    return [m for m in model.modules() if isinstance(m, _NormBase) and m.running_mean is not None]


def use_statistics(layers: list[_NormBase], mode: str, adapting: bool) -> None:
    """Let ``layers`` normalise by the statistics that ``mode`` names.

    - ``batch``: those of the current batch, while adapting and predicting; running statistics stay untouched.
    - ``source``: the running statistics of the source model.
    - ``running``: the batch's while adapting, which move the running ones; the running ones when predicting.
    - ``blend``: the source's, after ``blending`` has moved their input.

    Note: torch reads both ``training`` and ``track_running_stats``; in training mode without tracking it uses the
    batch and leaves the buffers alone. (An InstanceNorm that tracks statistics moves them even so; nothing reads them.)
    """
    for layer in layers:
        layer.training = mode == "batch" or (mode == "running" and adapting)
        layer.track_running_stats = mode != "batch"
