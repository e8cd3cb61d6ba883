"""PointNet with self-adaptive nodes: its layers, its invariances, and every method that can adapt it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from small_networks import adam
from torch import nn

from tta_cattan.alignment import fit_subspace
from tta_cattan.bench.models.pointnet import AdaptiveNodes, PointNet, ball_query, farthest_points
from tta_cattan.bench.models.zoo import ARCHITECTURES
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.network.layers import find_classifier, iterate_features

METHODS = ("source", "norm", "tent", "tent_plus", "shot", "cattan")


def clouds(batch, n=24, seed=0):
    return 0.4 * torch.randn(batch, 3, n, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def trained():
    """Return a network whose statistics and matrices are not the initial ones."""
    torch.manual_seed(0)
    net = ARCHITECTURES.get("pointnet")(10)
    with torch.no_grad():
        for transform in (net.input_transform, net.feature_transform):
            transform.matrix.weight.normal_(0, 0.02)
        net.train()
        net(clouds(16, seed=1))
    return net.eval().requires_grad_(False)


def build(name, net, **options):
    if name == "cattan":
        (features,) = iterate_features(net, "fc", [clouds(12, seed=3)])
        options = {"source_subspace": fit_subspace(features), "d": 6, **options}
    if name not in ("source", "norm"):
        options = {"optimizer": adam(1e-2), **options}
    return ADAPTATION_REGISTRY.get(name)(copy.deepcopy(net), **options)


@pytest.mark.parametrize("n", [16, 33, 200])
def test_it_takes_any_number_of_points(trained, n):
    (features,) = iterate_features(trained, "fc", [clouds(2, n)])
    assert features.shape == (2, 1024) and trained(clouds(2, n)).shape == (2, 10)


def test_it_has_the_layers_that_were_added():
    net = PointNet()
    extra = [layer for name, layer in net.named_children() if "norm" in name]
    assert [type(layer) for layer in extra] == [nn.BatchNorm2d] * 4 + [nn.BatchNorm1d]
    assert [layer.num_features for layer in extra] == [64, 64, 128, 1024, 1024]
    assert find_classifier(net, num_classes=10) == find_classifier(net) == "fc"


def test_the_order_of_the_points_does_not_matter(trained):
    x = clouds(3, 80)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(trained(x), trained(x[:, :, order]), rtol=1e-3, atol=1e-3)


def test_the_nodes_move_as_the_formula_says():
    torch.manual_seed(2)
    module = AdaptiveNodes(5, nodes=4, neighbours=6, radius=0.5)
    points, x = clouds(2, 20).mT, torch.randn(2, 5, 20, 1)
    seeds = farthest_points(points, 4)
    groups = ball_query(points, torch.stack([p[s] for p, s in zip(points, seeds, strict=True)]), 0.5, 6)
    weight = module.offset.weight.detach().numpy()[:, :, 0, 0]
    for b in range(2):
        p, f = points[b].numpy(), x[b, :, :, 0].T.numpy()
        for node, seed in enumerate(seeds[b].tolist()):
            moves = [np.tanh(weight @ (f[i] - f[seed])) * (p[i] - p[seed]) for i in groups[b, node].tolist()]
            found = module.place(x, points)[b, node].detach().numpy()
            np.testing.assert_allclose(found, p[seed] + np.mean(moves, 0), atol=1e-6)


def test_every_parameter_learns():
    torch.manual_seed(0)
    net = PointNet().train()
    for transform in (net.input_transform, net.feature_transform):
        nn.init.normal_(transform.matrix.weight, std=0.02)
    nn.functional.cross_entropy(net(clouds(4)), torch.arange(4)).backward()
    # The bias of a linear map before batch normalisation has no effect and, but for rounding, no gradient.
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    assert net.adaptive_nodes.offset.weight.grad.abs().max() > 0


@pytest.mark.parametrize(("name", "statistics"), [*((name, "batch") for name in METHODS), ("cattan", "running")])
def test_every_method_runs_resets_and_folds(trained, name, statistics):
    batches = [(torch.arange(i, i + 6), 1.4 * clouds(6, seed=10 + i)) for i in (0, 6)]
    method = build(name, trained, statistics=statistics)
    before = {key: value.clone() for key, value in method.model.state_dict().items()}
    first = copy.deepcopy(method)
    for run in (method, first):
        run.prepare(batches)
        run.start_epoch(batches)
        for indices, x in batches:
            run(x, indices)
    logits = method.predict(batches[0][1])
    assert torch.equal(logits, first.predict(batches[0][1])), "a copy does the same"
    plain = method.fold()
    assert type(plain) is PointNet and type(plain.fc) is nn.Linear
    x = batches[0][1]
    torch.testing.assert_close(plain(x[:1]), plain(x)[:1], rtol=1e-3, atol=1e-3)
    if statistics == "running":
        torch.testing.assert_close(plain(x), logits, rtol=1e-3, atol=1e-3)
    method.reset()
    after = method.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_both_kinds_of_batch_normalisation_adapt(trained):
    method = build("cattan", trained)
    method.prepare([(torch.arange(8), clouds(8, seed=4))])
    names = method.collect_params()[1]
    kinds = {name: type(method.model.get_submodule(name.rpartition(".")[0])) for name in names if name != "fc.phi"}
    layers = [m for m in trained.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    assert len(names) == 2 * len(layers) + 1
    before = {name: method.model.get_parameter(name).clone() for name in kinds}
    method(clouds(8, seed=4))
    moved = {kinds[name] for name in kinds if not torch.equal(before[name], method.model.get_parameter(name))}
    assert moved == {nn.BatchNorm1d, nn.BatchNorm2d}


def test_one_cloud_alone_is_predicted(trained):
    assert build("tent", trained)(clouds(1)).isfinite().all()


def test_it_learns_in_half_precision(trained):
    net = copy.deepcopy(trained).train().requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(clouds(4))
    nn.functional.cross_entropy(logits.float(), torch.arange(4)).backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_a_gpu_gives_the_same_logits(trained):
    x = clouds(4, 100)
    found = copy.deepcopy(trained).cuda()(x.cuda()).cpu()
    torch.testing.assert_close(found, trained(x), rtol=1e-2, atol=1e-2)
