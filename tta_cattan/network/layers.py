"""Finding layers of a network and recording what passes through them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.hooks import RemovableHandle

from tta_cattan.util.batches import refusing_one_image
from tta_cattan.util.errors import UserError, nearest

_SET_KEY = "name the linear layer with classifier= (MODEL.CLASSIFIER)"
_OTHER_HEADS = (
    "for another head (cosine, 1x1 convolution, CLIP) align at an inner layer: layer=NAME with "
    "source_subspace=fit_source(net, loader, layer=NAME) and classes=False"
)
_OTHER_METHODS = "choose a method that needs none (MODEL.ADAPTATION tent, tent_plus, norm, ip)"


def find_classifier(model: nn.Module, name: str = "", num_classes: int | None = None) -> str:
    """Return the dotted name of the final linear layer of ``model``.

    ``name`` takes precedence, then timm's ``get_classifier``, then the last linear layer in registration order (with
    ``num_classes`` outputs, if given).
    """
    # MultiheadAttention keeps its projection in a linear layer whose forward is never called.
    linears = {
        n: m
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear) and not isinstance(m, NonDynamicallyQuantizableLinear)
    }
    if name:
        if name not in linears:
            known = ", ".join(list(linears)[-8:])
            raise UserError(
                f"MODEL.CLASSIFIER = {name!r} is not a linear layer of {type(model).__name__} (classifier=)."
                f"{nearest(name, linears)} Its last linear layers: {known or 'none'}; {_OTHER_HEADS}"
            )
        return name
    declared = _declared_classifier(model, linears)
    if declared is not None:
        return declared
    fitting = [n for n, m in linears.items() if num_classes is None or m.out_features == num_classes]
    if not fitting:
        wanted = "" if num_classes is None else f" with {num_classes} outputs"
        raise UserError(
            f"{type(model).__name__} has no linear layer{wanted}: alignment needs a classifier that ends in one "
            f"(torch.nn.Linear, weight-normalised or not): {_SET_KEY}; {_OTHER_HEADS}; or {_OTHER_METHODS}"
        )
    return fitting[-1]


def _declared_classifier(model: nn.Module, linears: dict[str, nn.Linear]) -> str | None:
    """Return the layer that a timm model (or one inside a wrapper) declares as its classifier, if it is linear."""
    for module in model.modules():
        getter = getattr(module, "get_classifier", None)
        if not callable(getter):
            continue
        head = getter()
        if isinstance(head, (tuple, list)):
            raise UserError(
                f"{type(module).__name__} has {len(head)} classifiers (a distilled model): {_SET_KEY}, use the variant "
                f"without distillation, or {_OTHER_METHODS}"
            )
        return next((n for n, m in linears.items() if m is head), None)
    return None


def effective_linear(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight and bias that a linear layer or convolution applies, after any weight normalisation."""
    weight = module.weight
    for hook in module._forward_pre_hooks.values():
        # The hook of torch.nn.utils.weight_norm updates `weight` only at the next forward.
        if hasattr(hook, "compute_weight"):
            weight = hook.compute_weight(module)
    bias = None if module.bias is None else module.bias.detach()
    weight = weight.detach()
    if not isinstance(module, nn.Linear):
        return weight, bias
    with torch.no_grad():
        probe = torch.linspace(-1, 1, 2 * module.in_features).to(weight).reshape(2, -1)
        if not torch.allclose(module(probe), F.linear(probe, weight, bias), rtol=1e-3, atol=1e-3):
            raise UserError(
                f"{type(module).__name__} is not a plain linear layer (its output is not x W^T + b), so no alignment "
                f"can go through it: {_SET_KEY} where it is another one; {_OTHER_HEADS}; or {_OTHER_METHODS}"
            )
    return weight, bias


def replace_module(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """Replace the submodule ``name`` of ``model`` with ``new``; return the model (or ``new`` if ``name`` is empty)."""
    if not name:
        return new
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)
    return model


def find_layer(model: nn.Module, name: str) -> nn.Module:
    """Return the submodule ``name``; if there is none, raise an error that lists the top-level modules."""
    modules = dict(model.named_modules())
    if not name or name not in modules:
        children = ", ".join(name for name, _ in model.named_children())
        raise UserError(
            f"layer = {name!r} is not a module of {type(model).__name__}.{nearest(name, modules)} At its top it has "
            f"{children or 'none'}"
        )
    return modules[name]


def following_linear(model: nn.Module, name: str) -> str | None:
    """Return the name of the first linear layer or 1x1 convolution registered after the module ``name``, if any."""
    behind = False
    for other, module in model.named_modules():
        if other == name:
            behind = True
        elif behind and not other.startswith(f"{name}.") and _is_pointwise(module):
            return other
    return None


def _is_pointwise(module: nn.Module) -> bool:
    """Return whether a module is a linear map of the channels at each position."""
    if isinstance(module, nn.Linear):
        return not isinstance(module, NonDynamicallyQuantizableLinear)
    return (
        isinstance(module, (nn.Conv1d, nn.Conv2d))
        and set(module.kernel_size) == {1}
        and set(module.padding) == {0}
        and module.groups == 1
    )


@contextmanager
def receives(model: nn.Module, name: str, follower: str) -> Iterator[list[bool]]:
    """Yield a list that is non-empty after a forward pass in which ``follower`` received the output of ``name``."""
    outputs: list[Tensor] = []
    connected: list[bool] = []

    def compare(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if (
            outputs
            and args[0].numel() == outputs[-1].numel()
            and same_numbers(args[0].flatten(), outputs[-1].flatten())
        ):
            connected.append(True)

    handles = [
        model.get_submodule(name).register_forward_hook(lambda _, args, output: outputs.append(output)),
        model.get_submodule(follower).register_forward_pre_hook(compare),
    ]
    with hooked(handles):
        yield connected


@torch.no_grad()
def compose_linear(module: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return the linear layer or 1x1 convolution that equals ``z -> module(z weight^T + bias)``."""
    own, own_bias = effective_linear(module)
    rows = own.flatten(1).to(weight)
    shift = None if bias is None else rows @ bias
    shift = own_bias if shift is None else shift if own_bias is None else own_bias + shift
    shift = None if shift is None else shift.to(own)
    return with_weight(module, (rows @ weight).reshape(own.shape).to(own), shift)


def frozen_copy(module: nn.Module) -> nn.Module:
    """Return a copy that takes no gradients and shares the memory of the parameters."""
    memo: dict[int, Any] = {id(param): nn.Parameter(param.detach(), False) for param in module.parameters()}
    # Old-style weight normalisation stores the computed weight as an attribute, and torch cannot copy computed tensors.
    memo |= {id(value): value.detach() for value in vars(module).values() if isinstance(value, Tensor)}
    return copy.deepcopy(module, memo)


@torch.no_grad()
def with_weight(module: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return a frozen copy of a linear layer or convolution that applies ``weight`` and ``bias`` instead of its own.

    Note: weight normalisation is kept, so that the state dict has the same names.
    """
    new = copy.deepcopy(module).to(weight).requires_grad_(False).eval()
    old_style = [hook for hook in new._forward_pre_hooks.values() if hasattr(hook, "compute_weight")]
    if is_parametrized(new, "weight"):
        new.weight = weight
    elif old_style:
        new.weight_v.copy_(weight)
        new.weight_g.copy_(torch.norm_except_dim(weight, 2, old_style[0].dim))
        new.weight = old_style[0].compute_weight(new)
    else:
        new.weight.copy_(weight)
    if bias is not None:
        new.bias.copy_(bias)
    return new


class Call(NamedTuple):
    """The input and output of one call of a layer."""

    features: Tensor
    output: Tensor


@contextmanager
def keeping_modes(*models: nn.Module | None) -> Iterator[None]:
    """Restore the training or evaluation mode of every module when the block ends."""
    modes = {module: module.training for model in models if model is not None for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove the hooks when the block ends."""
    handles = list(handles)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def watched(layer: nn.Module) -> Iterator[list[Call]]:
    """Record the calls of ``layer`` made inside the block."""
    calls: list[Call] = []
    with hooked(
        [layer.register_forward_hook(lambda _, args, output: calls.append(Call(args[0] if args else None, output)))]
    ):
        yield calls


def only_call(calls: list[Call], name: str, logits: Tensor | None = None) -> Call:
    """Return the only call of a layer in a forward pass; the classifier's output must equal the ``logits``."""
    problem = None
    if len(calls) != 1:
        problem = f"was called {len(calls)} times in one forward pass"
    elif logits is not None and calls[0].features.ndim != 2:
        problem = f"receives features of shape {tuple(calls[0].features.shape)}, not (batch, D)"
    elif logits is not None and not same_numbers(calls[0].output, logits):
        problem = "is not the last step: the model's output differs from it"
    if problem is None:
        return calls[0]
    if logits is None:
        raise UserError(f"the layer {name!r} {problem}: name another layer (layer=)")
    remedy = f"{_SET_KEY}; {_OTHER_HEADS}; or {_OTHER_METHODS}"
    raise UserError(f"the linear layer {name!r} {problem}, so it is not the model's classifier: {remedy}")


def require_logits(output: object, n: int) -> None:
    """Reject a network whose output is not N x C logits."""
    if isinstance(output, Tensor) and output.ndim == 2 and len(output) == n:
        return
    found = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"type {type(output).__name__}"
    raise UserError(
        f"the network's output for {n} samples is of {found}: logits of shape ({n}, classes) are needed; wrap the "
        "network in a module that returns them alone"
    )


def same_numbers(logits: Tensor, output: Tensor) -> bool:
    """Return whether two tensors hold the same numbers (NaN included), whatever their precision."""
    if logits.shape != output.shape:
        return False
    same_memory = logits.data_ptr() == output.data_ptr() and logits.stride() == output.stride()
    return same_memory or torch.allclose(logits.to(output.dtype), output, 0, 0, equal_nan=True)


def channel_place(z: Tensor, dim: int | None = None) -> int:
    """Return the dimension of the D channels in a layer's output, which has two to five dimensions.

    Note: in a 3-d output the channels are the last dimension, as in transformers, unless only the second has D entries.
    """
    if not isinstance(z, Tensor):
        raise UserError(f"the layer to align gives a {type(z).__name__}, not a tensor: name another layer")
    for place in {2: (1,), 3: (2, 1), 4: (1,), 5: (1,)}.get(z.ndim, ()):
        if dim is None or z.shape[place] == dim:
            return place
    raise UserError(
        f"the layer to align gives an output of shape {tuple(z.shape)}, and the subspace is of {dim} features: it "
        "belongs to another layer or model"
    )


@torch.no_grad()
def iterate_features(
    model: nn.Module, classifier: str, inputs: Iterable[Tensor], layer: str = "", dim: int | None = None
) -> Iterator[Tensor]:
    """Yield the features (n x D) of each batch of inputs, with the model in evaluation mode.

    The features are the input of ``classifier``, or the output of ``layer``, whose positions count as samples.
    """
    model.eval()
    place = find_layer(model, layer) if layer else model.get_submodule(classifier)
    for x in inputs:
        with watched(place) as calls, refusing_one_image(x):
            output = model(x)
        if layer:
            z = only_call(calls, layer).output
            yield z.movedim(channel_place(z, dim), -1).flatten(0, -2)
        else:
            require_logits(output, len(x))
            yield only_call(calls, classifier, output).features


def list_layers(model: nn.Module, x: Tensor) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return (name, type, output shape) of every module that can be aligned: called once, with a tensor as output."""
    modules = {name: module for name, module in model.named_modules() if name}
    with ExitStack() as stack, torch.no_grad():
        calls = {name: stack.enter_context(watched(module)) for name, module in modules.items()}
        model.eval()(x)
    outputs = {name: seen[0].output for name, seen in calls.items() if len(seen) == 1}
    return [
        (name, type(modules[name]).__name__, tuple(z.shape))
        for name, z in outputs.items()
        if isinstance(z, Tensor) and 2 <= z.ndim <= 5 and len(z) == len(x)
    ]
