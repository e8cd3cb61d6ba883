"""Batches of one, empty batches, NaN: defined behaviour for every method."""

from __future__ import annotations

import pytest
import torch
from small_networks import ADAPTING, METHODS, N_CLASSES, adam, build, images, network, run, snapshot, target_batches
from torch import nn

from tta_cattan import UserError
from tta_cattan.methods import ADAPTATION_REGISTRY

PROTOCOLS = ("offline", "online")
each_method = pytest.mark.parametrize("name", METHODS)
each_adapting = pytest.mark.parametrize("name", ADAPTING)
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
each_statistics = pytest.mark.parametrize("statistics", ["batch", "source", "running", "blend"])


class WithBatchNorm1d(nn.Module):
    """Ends like SHOT's network: features, BatchNorm1d, classifier."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm2d = nn.Conv2d(3, 12, 3, 2, 1), nn.BatchNorm2d(12)
        self.norm1d, self.fc = nn.BatchNorm1d(12), nn.Linear(12, N_CLASSES)

    def features(self, x):
        return self.norm1d(self.norm2d(self.conv(x)).relu().mean((2, 3)))

    def forward(self, x):
        return self.fc(self.features(x))


@pytest.fixture(params=["BatchNorm2d", "BatchNorm1d"])
def net(request):
    if request.param == "BatchNorm2d":
        return network()
    torch.manual_seed(0)
    return WithBatchNorm1d().eval()


@each_method
@each_statistics
def test_one_sample(name, statistics, net):
    method = build(name, net, statistics=statistics)
    for x in images(3, 5).split(1):
        assert method(x).shape == method.predict(x).shape == (1, N_CLASSES)
    assert all(torch.isfinite(v).all() for v in snapshot(method).values())
    if name in ADAPTING:
        affine = method.collect_params()[0][0]
        assert not torch.equal(affine, build(name, net).collect_params()[0][0])
        assert method.safety.skipped_steps == 0


def test_one_sample_without_statistics_gets_those_of_the_source():
    torch.manual_seed(0)
    net, x = WithBatchNorm1d().eval(), images(1, 5)
    expected = net(x)
    assert torch.equal(build("tent", net).predict(x), expected)
    # With spatial extent one sample has statistics of its own.
    assert not torch.equal(build("tent", network()).predict(x), network()(x))


@each_method
@each_protocol
def test_a_last_batch_of_one(name, protocol, net):
    method = build(name, net)
    logits = run(method, protocol, target_batches(17, 8))
    assert torch.isfinite(logits).all() and len(logits) == (17 if protocol == "online" else 51)


@each_method
def test_an_empty_batch_is_refused(name):
    method = build(name)
    before = snapshot(method)
    with pytest.raises(UserError, match="an empty batch was given"):
        method(torch.empty(0, 3, 8, 8))
    assert all(torch.equal(before[k], v) for k, v in snapshot(method).items())


@each_adapting
@each_protocol
@each_statistics
@pytest.mark.parametrize("place", [0, 2])
def test_a_step_on_nan_is_skipped_and_counted(name, protocol, statistics, place):
    clean, method = target_batches(), build(name, statistics=statistics)
    batches = [(i, x.clone()) for i, x in clean]
    batches[place][1][1, 0, 2, 2] = float("nan")
    if protocol == "offline":
        method.prepare(clean)
        method.start_epoch(clean)
    for step, (indices, x) in enumerate(batches):
        before = snapshot(method) if step else None
        logits = method(x, indices if protocol == "offline" else None)
        assert method.safety.skipped_steps == (1 if step >= place else 0)
        if step == place:
            assert torch.isnan(logits).any()
            if before is not None:
                assert all(torch.equal(before[k], v) for k, v in snapshot(method).items())
        else:
            assert torch.isfinite(logits).all()
    assert all(torch.isfinite(v).all() for v in snapshot(method).values())
    assert method.describe()["skipped_steps"] == 1

    # What follows is what would have followed without the batch; only SHOT's centroids take its finite samples.
    if name == "shot" and statistics == "source":
        return
    other = build(name, statistics=statistics)
    if protocol == "offline":
        other.prepare(clean)
        other.start_epoch(clean)
    for indices, x in clean[:place] + clean[place + 1 :]:
        other(x, indices if protocol == "offline" else None)
    assert torch.equal(other.predict(clean[0][1]), method.predict(clean[0][1]))


def test_shot_labels_the_other_batches_in_spite_of_nan():
    clean = target_batches()
    spoilt = [(i, x.clone()) for i, x in clean]
    spoilt[1][1][0] = float("nan")
    method, other = build("shot"), build("shot")
    method.start_epoch(spoilt)
    other.start_epoch([clean[0], *clean[2:]])
    assert all(method.target.known[i] == label for i, label in other.target.known.items())


def test_cattan_refuses_a_target_set_with_nan():
    batches = target_batches()
    batches[3][1][0] = float("nan")
    with pytest.raises(UserError, match=r"features of sample 24 hold NaN or Inf"):
        build("cattan").prepare(batches)


@pytest.mark.parametrize("name", ["tent", "tent_plus", "shot", "ip", "cattan"])
def test_a_model_without_normalisation_is_refused(name):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    with pytest.raises(UserError, match="Sequential has no normalisation layer with affine parameters"):
        ADAPTATION_REGISTRY.get(name)(net)


@pytest.mark.parametrize("name", ["source", "norm"])
def test_a_model_without_normalisation_is_enough_for(name):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    x = images(4, 1)
    expected = net(x)
    method = ADAPTATION_REGISTRY.get(name)(net, optimizer=adam())
    assert torch.equal(method(x), expected)
    method.reset()
    assert torch.equal(method.fold()(x), expected)
