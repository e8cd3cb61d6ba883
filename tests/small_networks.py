"""Small networks, data and methods that several tests share."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import nn

from tta_cattan.alignment import fit_source_moments, fit_subspace
from tta_cattan.methods import ADAPTATION_REGISTRY

N_CLASSES = 5
FEATURES = 12
FROZEN = ("source", "norm", "cattan_forward")  # no parameter is updated
ADAPTING = ("tent", "tent_plus", "shot", "ip", "cattan")
METHODS = (*FROZEN, *ADAPTING, "cattan_plus")  # which updates parameters offline only


class ConvNet(nn.Module):
    """Two convolutions with a normalisation layer each, global average, linear classifier."""

    def __init__(self, norm=nn.BatchNorm2d, bias=True):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, 2, 1), norm(6)
        self.conv2, self.norm2 = nn.Conv2d(6, FEATURES, 3, 2, 1), norm(FEATURES)
        self.dropout = nn.Dropout(0.5)  # would make predictions random in training mode
        self.fc = nn.Linear(FEATURES, N_CLASSES, bias=bias)

    def features(self, x):
        x = self.norm1(self.conv1(x)).relu()
        return self.norm2(self.conv2(x)).relu().mean((2, 3))

    def forward(self, x):
        return self.fc(self.dropout(self.features(x)))


def network(norm=nn.BatchNorm2d, bias=True, seed=0):
    """Return a network with statistics and affines that are not the initial ones, in evaluation mode."""
    torch.manual_seed(seed)
    net = ConvNet(norm, bias)
    with torch.no_grad():
        net.train()
        for _ in range(3):
            net(images(32, seed + 1))
        for layer in (net.norm1, net.norm2):
            for param in layer.parameters():
                param.add_(0.3 * torch.randn_like(param))
        net.fc.weight.mul_(4)
    return net.eval()


def images(n, seed, size=8):
    """Return n random images with structure: each is a colour plus a ramp plus noise."""
    generator = torch.Generator().manual_seed(seed)
    colour = torch.rand(n, 3, 1, 1, generator=generator)
    ramp = torch.linspace(-1, 1, size) * torch.randn(n, 1, 1, 1, generator=generator)
    return colour + 0.3 * ramp + 0.1 * torch.randn(n, 3, size, size, generator=generator)


def target_batches(n=40, batch_size=8, seed=7):
    """Return (indices, inputs) of target data, shifted against the source."""
    x = 1.3 * images(n, seed) + 0.2
    return list(zip(torch.arange(n).split(batch_size), x.split(batch_size), strict=True))


@torch.no_grad()
def many_classes():
    """Return a network that, normalised by the batch, predicts all of its classes."""
    net = network()
    net.fc.bias -= build("norm", network()).predict(target_batches(64, 64)[0][1]).mean(0)
    return net


@torch.no_grad()
def source_subspace(net, centering="pca", d=8):
    """Return the subspace of the features of source data."""
    inputs = images(200, 3).to(net.fc.weight.dtype)
    return fit_subspace(net.features(inputs), d, center=centering != "none")


def adam(lr=1e-3):
    """Return a factory of torch's own Adam."""
    return partial(torch.optim.Adam, lr=lr)


def build(name, net=None, lr=1e-2, **options):
    """Return a method on a copy of ``net``, its random parts seeded."""
    net = copy.deepcopy(network() if net is None else net)
    if name == "cattan" and "source_subspace" not in options:
        options = {"source_subspace": source_subspace(net, options.get("centering", "pca")), "d": 6, **options}
    if name in ("cattan_forward", "cattan_plus") and "source_moments" not in options:
        inputs = images(200, 3).to(net.fc.weight.dtype)
        options = {"source_moments": fit_source_moments(net, inputs.split(50)), **options}
    torch.manual_seed(11)
    return ADAPTATION_REGISTRY.get(name)(net, **{"optimizer": adam(lr), **options})


def run(method, protocol, batches=None, epochs=2):
    """Return all logits that a method gives under a protocol, in order."""
    batches = target_batches() if batches is None else batches
    if protocol == "online":
        return torch.cat([method(x) for _, x in batches])
    method.prepare(batches)
    logits = []
    for _ in range(epochs):
        method.start_epoch(batches)
        logits += [method(x, indices) for indices, x in batches]
    method.finish(batches)
    return torch.cat([*logits, *(method.predict(x) for _, x in batches)])


def snapshot(module):
    """Return a copy of a module's state."""
    state = module.state_dict()
    return {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}


def assert_same_state(state, other):
    """Fail unless two states have the same keys and, bit for bit, the same values."""
    assert state.keys() == other.keys()
    different = [name for name in state if not torch.equal(state[name], other[name])]
    assert not different
