"""BatchNorm layers: finding them, replacing their forward, and merging a linear map into them."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

# Layers that a map can be merged into; a class with its own forward may do more than multiply by its weights.
LINEAR_MAPS = {nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward}
_SMALL_MAP = 196  # most positions for which `_pointwise` uses a 1x1 convolution


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the BatchNorm layers that keep running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def own_forward(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the forward of a layer's class, even if ``replaced_forward`` has replaced it."""
    return type(layer).forward.__get__(layer)


@contextmanager
def replaced_forward(
    layers: Mapping[str, _BatchNorm], forward: Callable[[str, _BatchNorm, Tensor], Tensor]
) -> Iterator[None]:
    """Replace the forward of the layers with ``forward(name, layer, x)`` inside the block."""
    for name, layer in layers.items():
        layer.forward = lambda x, name=name, layer=layer: forward(name, layer, x)
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.forward


def joint_map(layer: _BatchNorm, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight (C x C) and bias of the single linear map that equals ``x T + b`` followed by the layer."""
    mean, std = layer.running_mean, (layer.running_var + layer.eps).sqrt()
    ratio = (1 if layer.weight is None else layer.weight) / std
    return (first * ratio).T, (second - mean) * ratio + (0 if layer.bias is None else layer.bias)


def normalized(layer: _BatchNorm, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return a layer's output for ``x T + b`` (``first``, ``second``), or with these as mean and variance if vectors.

    Note: for torch's own classes the map and the layer are fused; others, which may do more, get the mapped input.
    """
    plain = type(layer).forward is _BatchNorm.forward
    if first.ndim == 1:
        mean, std = layer.running_mean, (layer.running_var + layer.eps).sqrt()
        scale, shift = (layer.weight, layer.bias) if plain else (std, mean)
        out = F.batch_norm(x, first.to(mean), second.to(mean), scale, shift, False, 0.0, layer.eps)
    else:
        weight, bias = joint_map(layer, first, second) if plain else (first.T, second)
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        out = F.linear(x, weight, bias) if x.ndim == 2 else _pointwise(x, weight, bias)
    return out if plain else own_forward(layer)(out)


def _pointwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear map to the channels at every position.

    Note: both branches compute the same; on the CPU a 1x1 convolution, which copies its input into its own layout, is
    up to twenty times as fast for small feature maps and half as fast for large ones.
    """
    flat = x.flatten(2)
    if flat.shape[2] <= _SMALL_MAP:
        mapped = F.conv1d(flat, weight[..., None], bias)
    else:
        mapped = torch.baddbmm(bias[None, :, None], weight.expand(len(x), -1, -1), flat)
    return mapped.unflatten(2, x.shape[2:])


def sizes_behind(conv: _ConvNd, x: Tensor) -> list[int]:
    """Return the spatial sizes of a convolution's output for ``x``."""
    kernel = [dilation * (size - 1) for dilation, size in zip(conv.dilation, conv.kernel_size, strict=True)]
    sides = {"same": kernel, "valid": [0] * len(kernel)}
    padding = sides[conv.padding] if isinstance(conv.padding, str) else [2 * side for side in conv.padding]
    whole = [size + pad - taken for size, pad, taken in zip(x.shape[2:], padding, kernel, strict=True)]
    return [-(-size // step) for size, step in zip(whole, conv.stride, strict=True)]


class Uses(TorchFunctionMode):
    """Finds the layers whose output goes into a BatchNorm and nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[int, tuple[Any, str]] = {}  # output tensors, by id, and the layers they come from
        self._calls: Counter[str] = Counter()  # number of calls of those layers
        self._taken: dict[str, list[str]] = defaultdict(list)  # by BatchNorm, the layers its inputs come from
        self._shared: set[str] = set()  # layers whose output something else uses

    def given(self, name: str, output: Tensor) -> None:
        """Record the output of a layer."""
        self._calls[name] += 1
        self._given[id(output)] = weakref.ref(output), name

    def take(self, name: str, x: Tensor) -> None:
        """Record the input of a BatchNorm."""
        self._taken[name].append(self._giver(x))

    def producers(self) -> dict[str, str]:
        """Return the layer that feeds each BatchNorm, if it feeds nothing else and both are called once."""
        once = {name: givers[0] for name, givers in self._taken.items() if len(givers) == 1}
        takers = Counter(by for givers in self._taken.values() for by in givers)
        return {
            name: by
            for name, by in once.items()
            if by and by not in self._shared and takers[by] == self._calls[by] == 1
        }

    def _giver(self, x: Any) -> str:
        made, by = self._given.get(id(x), (None, ""))
        return by if made is not None and made() is x else ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "__get__":  # reading an attribute such as the shape is not a use
            for value in (*args, *(kwargs or {}).values()):
                self._shared |= {self._giver(v) for v in (value if isinstance(value, (list, tuple)) else (value,))}
        return found
