"""The catalogue of mistakes in Python calls: one line that names the thing and the value, and nothing changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tta_cattan import (
    ADAPTATION_REGISTRY,
    CATTAn,
    CATTAnPlus,
    Subspace,
    UserError,
    fit_source_moments,
    fit_subspace,
    load_cfg,
    select_dimension,
    setup_model,
)
from tta_cattan.methods import IP, CATTAnForward, Norm, Shot, Source, Tent

FEATURES = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
IMAGES = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SUBSPACE = fit_subspace(FEATURES)


def network(*last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *last)


def net() -> nn.Module:
    return network(nn.Linear(8, 4))


class TwoHeads(nn.Module):
    """A model whose output is the sum of two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.other = nn.BatchNorm1d(8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.one(self.norm(x)) + self.other(x)


def config(*pairs: Any):
    return load_cfg(None, list(pairs))


def cattan(**options: Any) -> Callable[[], Any]:
    return lambda: CATTAn(net(), **options)


def tent(**options: Any) -> Callable[[], Any]:
    return lambda: Tent(net(), **options)


class InADictionary(nn.Module):
    """Returns more than logits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x):
        return {"logits": self.net(x)}


CALLS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    # models
    "a name for a model": (lambda: Tent("resnet18"), ["model = 'resnet18' is a str", "torch.nn.Module"]),
    "a class for a model": (lambda: Norm(nn.Linear), ["is a class", "torch.nn.Module"]),
    "no model": (lambda: CATTAn(None), ["model = 'None' is a NoneType"]),
    "no model for IP": (lambda: IP(None), ["model = 'None' is a NoneType"]),
    "a state dict for a model": (lambda: Source({}), ["model = '{}' is a dict"]),
    "no classifier": (lambda: CATTAn(network()), ["Sequential has no linear layer", "torch.nn.Linear"]),
    "no classifier for SHOT": (lambda: Shot(network()), ["Sequential has no linear layer"]),
    "no normalisation": (
        lambda: CATTAn(nn.Sequential(nn.Flatten(), nn.Linear(8, 4))),
        ["no normalisation layer", "MODEL.ADAPTATION source"],
    ),
    "no images for IP": (lambda: IP(TwoHeads()), ["TwoHeads has no 2-d convolution"]),
    "a layer that is not there": (cattan(classifier="5"), ["MODEL.CLASSIFIER = '5'", "last linear layers: 4"]),
    "another number of classes": (cattan(num_classes=10), ["no linear layer with 10 outputs"]),
    "a linear layer that is not the last step": (
        lambda: CATTAn(TwoHeads())(torch.rand(6, 8)), ["'other' is not the last step", "MODEL.CLASSIFIER"],
    ),
    "one image that is no batch": (lambda: Tent(net())(IMAGES[0]), ["inputs of shape (3, 8, 8)", "x[None]"]),
    "one image for CATTAn+": (lambda: CATTAnPlus(net())(IMAGES[0]), ["inputs of shape (3, 8, 8)", "x[None]"]),
    "one image for moments": (lambda: fit_source_moments(net(), [IMAGES[0]]), ["of shape (3, 8, 8)", "x[None]"]),
    "a dictionary for moments": (
        lambda: fit_source_moments(InADictionary(), [IMAGES]), ["of type dict", "logits of shape"],
    ),
    "Nesterov without momentum": (tent(optimizer="SGD", sgd_momentum=0.0), ["momentum 0", "set nesterov=False"]),
    "Nesterov with dampening": (tent(optimizer="SGD", dampening=0.5), ["dampening 0.5", "set nesterov=False"]),
    # the source subspace and d
    "features for a subspace": (cattan(source_subspace=FEATURES), ["is Tensor", "fit_subspace(features)"]),
    "a path for a subspace": (cattan(source_subspace="w.safetensors"), ["str 'w.safetensors'", "Subspace.load"]),
    "a subspace of other features": (
        cattan(source_subspace=fit_subspace(FEATURES[:, :7])), ["of 7 features", "takes 8", "fit-source"],
    ),
    "an uncentred subspace": (
        cattan(source_subspace=fit_subspace(FEATURES, center=False)), ["CENTERING = 'pca'", "is uncentred"],
    ),
    "shift without a mean": (
        cattan(source_subspace=SUBSPACE.without_mean(), centering="shift"), ["needs the mean source feature"],
    ),
    "shift from the row space": (cattan(centering="shift"), ["needs the mean source feature"]),
    "too many directions": (cattan(source_subspace=SUBSPACE, d=9), ["CATTAN.D = 9", "holds 8 directions"]),
    "less than no direction": (cattan(source_subspace=SUBSPACE, d=-1), ["d = -1", "must be >= 0"]),
    "half a direction": (cattan(source_subspace=SUBSPACE, d=2.5), ["d = 2.5", "an integer"]),
    "a word for d": (cattan(d="4"), ["d = '4'", "an integer"]),
    "more directions than features": (lambda: CATTAn(net(), d=99)(IMAGES), ["d = 99", "1..8"]),
    # options
    "a centring that is none": (cattan(centering="PCA"), ["centering = 'PCA'", "'pca', 'none', 'shift'"]),
    "a reduction that is none": (cattan(align_reduction="max"), ["align_reduction = 'max'", "'sum', 'mean'"]),
    "a balance that is none": (cattan(class_balance="ce"), ["class_balance = 'ce'", "'sum', 'mean', 'entropy'"]),
    "a confidence that is none": (cattan(confidence="x"), ["confidence = 'x'", "'hlr', 'slr', 'entropy'"]),
    "statistics that are none": (tent(statistics="bach"), ["statistics = 'bach'", "Did you mean 'batch'?"]),
    "no step": (tent(steps=0), ["steps = 0", "must be >= 1"]),
    "half a step": (tent(steps=1.5), ["steps = 1.5", "an integer"]),
    "a word for steps": (tent(steps="2"), ["steps = '2'", "an integer"]),
    "momentum above one": (tent(statistics_momentum=3.0), ["statistics_momentum = 3.0", "[0, 1]"]),
    "kappa above one": (lambda: IP(net(), kappa=2.0), ["kappa = 2.0", "[0, 1)"]),
    "an optimiser that is there": (
        lambda: Tent(net(), optimizer=torch.optim.SGD(net().parameters(), lr=0.1)), ["SGD", "functools.partial"],
    ),
    "an optimiser that is none": (tent(optimizer="Adan"), ["'Adan'", "Did you mean 'Adam'?"]),
    "text for a switch": (tent(episodic="False"), ["episodic = 'False'", "true or false"]),
    "text for a switch of CATTAn+": (lambda: CATTAnPlus(net(), mirror="no"), ["mirror = 'no'", "true or false"]),
    "a weight that is not a number": (cattan(lambda_lr=float("nan")), ["lambda_lr = nan", "finite"]),
    "a negative rate": (cattan(phi_lr=-1), ["phi_lr = -1", "must be >= 0"]),
    "no memory in CATTAn-F": (lambda: CATTAnForward(net(), memory=0), ["memory = 0", "must be >= 1"]),
    "no slot in CATTAn+": (lambda: CATTAnPlus(net(), slots=0), ["slots = 0", "must be >= 1"]),
    "no distance in CATTAn+": (lambda: CATTAnPlus(net(), near=math.nan), ["near = nan", "must be finite"]),
    "an option of CATTAn for CATTAn-F": (lambda: CATTAnForward(net(), phi_lr=1.0), ["has no option 'phi_lr'"]),
    "an integer that fits no machine": (tent(steps=10**30), ["steps = 1000", "must fit 64 bits"]),
    "a decay above one": (cattan(decay=5), ["decay = 5", "(0, 1]"]),
    "an option that is none": (tent(learning_rate=1.0), ["Tent has no option 'learning_rate'"]),
    "a layer that is none": (cattan(layer="9"), ["layer = '9'", "0, 1, 2, 3, 4"]),
    "a layer that no linear layer follows": (cattan(layer="4"), ["no linear layer follows '4'", "source_subspace"]),
    "a factory of nothing": (tent(optimizer=lambda params: None), ["function", "functools.partial"]),
    "a safety that is none": (tent(on_collapse="rest"), ["on_collapse = 'rest'", "Did you mean 'reset'?"]),
    "a transformation that fits nowhere": (lambda: IP(net(), width=10**9), ["width = 1000000000", "[1, 1024]"]),
    # batches
    "an empty batch": (lambda: Tent(net())(IMAGES[:0]), ["an empty batch"]),
    "an array for a batch": (lambda: Tent(net())(IMAGES.numpy()), ["a batch has the type ndarray", "torch.as_tensor"]),
    "a trace of a method": (lambda: torch.jit.trace(Norm(net()), IMAGES), ["Norm cannot be traced", "Trace fold()"]),
    "no batches": (lambda: CATTAn(net(), source_subspace=SUBSPACE, d=2).prepare([]), ["0 sample(s)"]),
    "too few samples": (
        lambda: CATTAn(net(), source_subspace=SUBSPACE, d=7).prepare([(torch.arange(2), IMAGES[:2])]),
        ["d = 7", "2 samples", "lower d"],
    ),
    # subspaces
    "one feature vector": (lambda: fit_subspace(FEATURES[0]), ["shape (8,)", "(n, D)"]),
    "features in nested lists": (lambda: fit_subspace(FEATURES.tolist()), ["features are list", "tensor (n, D)"]),
    "no features": (lambda: fit_subspace([]), ["no features", "empty"]),
    "one sample": (lambda: fit_subspace(FEATURES[:1]), ["1 sample(s)", "at least 2"]),
    "features with NaN": (lambda: fit_subspace(FEATURES / 0 * 0), ["sample 0", "NaN or Inf"]),
    "features of two widths": (lambda: fit_subspace([FEATURES, FEATURES[:, :7]]), ["(50, 7)", "(n, 8)"]),
    "features that are all the same": (lambda: fit_subspace(torch.ones(9, 8)), ["all 9 samples", "the same"]),
    "more directions than samples allow": (lambda: fit_subspace(FEATURES, d=9), ["d = 9", "1..8"]),
    "a subspace file that is not there": (lambda: Subspace.load("nowhere"), ["nowhere does not exist", "fit-source"]),
    "a truncation that adds": (lambda: SUBSPACE.truncate(20), ["d = 20", "1..8"]),
    "the rule without samples": (
        lambda: select_dimension(SUBSPACE.eigenvalues, SUBSPACE.eigenvalues, 0), ["n_target = 0"],
    ),
    "the rule with one eigenvalue": (
        lambda: select_dimension(SUBSPACE.eigenvalues[:1], SUBSPACE.eigenvalues, 9), ["only 1 is there", "CATTAN.D"],
    ),
    "a rule that nothing satisfies": (
        lambda: select_dimension(SUBSPACE.eigenvalues, SUBSPACE.eigenvalues, 9, epsilon=1e-9), ["CATTAN.EPSILON"],
    ),
    # configs and registries
    "an unknown method": (
        lambda: setup_model(net(), config("MODEL.ADAPTATION", "cattann")), ["'cattann'", "Did you mean 'cattan'?"],
    ),
    "no config": (lambda: setup_model(net(), None), ["cfg is a NoneType", "load_cfg"]),
    "a path for a config": (lambda: setup_model(net(), "tent.yaml"), ["cfg is a str", "load_cfg"]),
    "CATTAn without a subspace": (
        lambda: setup_model(net(), config("MODEL.ADAPTATION", "cattan")), ["needs a source subspace", "'classifier'"],
    ),
    "a key without its value": (lambda: config("CATTAN.D"), ["['CATTAN.D']", "pairs KEY VALUE"]),
    "no name of a method": (lambda: ADAPTATION_REGISTRY.get(None), ["unknown adaptation method None"]),
    "a name that is taken": (lambda: ADAPTATION_REGISTRY.register("tent")(Norm), ["'tent' is already registered"]),
    "a mirror image to fold": (lambda: CATTAnPlus(net(), mirror=True).fold(), ["cannot be folded", "mirror=True"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_mistake_is_one_line(name):
    call, expected = CALLS[name]
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for part in expected:
        assert part in message


def test_a_failed_call_leaves_the_model_as_it_was():
    model = net().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError):
        CATTAn(model, source_subspace=fit_subspace(FEATURES[:, :7]), d=3)
    assert model.training and isinstance(model[-1], nn.Linear) and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_optimiser_refuses_its_own_options():
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        Tent(net(), optimizer=partial(torch.optim.SGD, lr=-1))
