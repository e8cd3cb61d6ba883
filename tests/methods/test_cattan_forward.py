"""CATTAn-F: the domains it tells apart, what it leaves alone, rubbish, and the network it folds into."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from small_networks import ConvNet, assert_same_state, build, images, network, snapshot, target_batches
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from tta_cattan import CATTAnForward, CATTAnPlus, Tent, UserError, fit_source_moments
from tta_cattan.alignment.domains import skew_of
from tta_cattan.alignment.recolouring import projected
from tta_cattan.alignment.source_moments import SourceMoments
from tta_cattan.bench.models.networks import shot_head
from tta_cattan.network.layers import hooked

SHIFTS = {"bright": (1.0, 1.5), "dark": (1.0, -1.5), "flat": (0.2, 0.0), "strong": (3.0, -1.0)}


def shifted(name, seed, n=16):
    scale, offset = SHIFTS[name]
    return scale * images(n, seed) + offset


def moments(method):
    """Return the first layer's moments of the domain at hand."""
    return method.target.domain.moments["norm1"]


def assert_source(method, net=None, seed=900):
    x = images(32, seed)
    assert torch.equal(method.predict(x), (network() if net is None else net)(x).detach())


def test_source_images_pass_unchanged_and_leave_nothing():
    method, net = build("cattan_forward"), network()
    for seed in range(3, 9):
        x = images(16, seed)
        assert torch.equal(method(x), net(x).detach())
    assert method.target.domains == [] and method.describe()["source_moments"] == "data"


@pytest.mark.parametrize("batch_size", [16, 4, 1])
def test_domains_that_recur_are_known_again_and_the_source_stays_the_source(batch_size):
    method, net = build("cattan_forward"), network()
    seen = []
    for cycle in range(3):
        for number, name in enumerate(("bright", "dark")):
            for x in shifted(name, 50 * cycle + number, 32).split(batch_size):
                assert torch.isfinite(method(x)).all()
            seen.append(method.target.domain.signature.clone())
    x = shifted("bright", 77)
    assert (method.predict(x) - net(x)).abs().max() > 1e-2
    assert len(method.target.domains) <= 3, "what recurs is not new"
    assert (seen[4] - seen[0]).norm() < 0.3 * (seen[4] - seen[1]).norm()
    assert_source(method)


def test_alignment_gives_the_layers_the_moments_of_the_source():
    net = network()
    method = build("cattan_forward", net, scale=1e-6)
    for seed in range(12):
        method(shifted("strong", seed, 32))
    seen, x = [], shifted("strong", 99, 256)
    plain = method.fold()
    plain.norm1.register_forward_hook(lambda _, args, out: seen.append(out))
    plain(x)
    found, wanted = seen[0], network().norm1(network().conv1(images(256, 98)))
    unaligned = network().norm1(network().conv1(x))

    def error(values):
        rows, others = (v.transpose(0, 1).flatten(1) for v in (values, wanted))
        return (torch.cov(rows) - torch.cov(others)).norm() + (rows.mean(1) - others.mean(1)).norm()

    assert error(found) < 0.2 * error(unaligned)


def test_a_domain_beyond_the_last_slot_takes_the_place_of_the_oldest():
    method = build("cattan_forward", slots=2)
    for name in ("bright", "flat", "strong"):
        method(shifted(name, 1))
    first, second = (domain.signature for domain in method.target.domains)
    assert len(method.target.domains) == 2
    probe = build("cattan_forward")
    probe(shifted("flat", 1)), probe(shifted("strong", 1))
    assert torch.equal(first, probe.target.domains[0].signature)
    assert torch.equal(second, probe.target.domains[1].signature)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_images_that_are_not_finite_touch_nothing(bad):
    method, clean = build("cattan_forward"), build("cattan_forward")
    for seed in range(4):
        x = shifted("bright", seed)
        spoilt = torch.cat([x[:5], torch.full_like(x[:1], bad), x[5:]])
        found, expected = method(spoilt), clean(x)
        assert found[5].isnan().all()
        torch.testing.assert_close(torch.cat([found[:5], found[6:]]), expected, atol=1e-5, rtol=0)
    assert method(torch.full_like(x, bad)).shape == expected.shape
    torch.testing.assert_close(moments(method).cov, moments(clean).cov, atol=1e-6, rtol=1e-5)
    assert method.describe()["skipped_steps"] == 5
    assert_source(method)


def test_one_huge_image_does_not_reach_the_others():
    method, clean = build("cattan_forward"), build("cattan_forward")
    for seed in range(4):
        x = shifted("bright", seed)
        found = method(torch.cat([x, 1e6 * x[:1]]))
        torch.testing.assert_close(found[:-1], clean(x), atol=1e-5, rtol=0)
    torch.testing.assert_close(moments(method).cov, moments(clean).cov, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "rubbish",
    [
        lambda x: 1e6 * x,
        lambda x: 1e30 * x,
        lambda x: torch.full_like(x, 0.3),
        lambda x: 5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)),
    ],
    ids=["huge", "beyond float32's squares", "constant", "noise"],
)
def test_rubbish_between_leaves_known_domains_and_the_source_alone(rubbish):
    method, clean = build("cattan_forward"), build("cattan_forward")
    x = shifted("bright", 1)
    for one in (method, clean):
        one(x)
    for seed in range(10):
        method(rubbish(images(16, seed)))
    later = shifted("bright", 2)
    torch.testing.assert_close(method(later), clean(later), atol=1e-4, rtol=0)
    assert all(torch.isfinite(m.cov).all() for d in method.target.domains for m in d.moments.values())
    assert_source(method)


def test_predicting_changes_nothing_and_the_same_batch_counts_once():
    method = build("cattan_forward", steps=3)
    x = shifted("bright", 1)
    method(x)
    assert moments(method) is not None and method.target.domain.count == 16
    before = copy.deepcopy(method.target.domain)
    for name in SHIFTS:
        method.predict(shifted(name, 5))
    assert len(method.target.domains) == 1
    assert torch.equal(before.moments["norm2"].cov, method.target.domain.moments["norm2"].cov)


@pytest.mark.parametrize("source", ["data", "running statistics"])
@pytest.mark.parametrize("bias", [True, False])
def test_folds_into_the_source_architecture(source, bias):
    net = network()
    if not bias:
        net.conv2 = nn.Conv2d(6, 12, 3, 2, 1, bias=False)
    given = {} if source == "data" else {"source_moments": None}
    method = build("cattan_forward", net, **given)
    for seed in range(3):
        method(shifted("bright", seed))
    plain, x = method.fold(), shifted("bright", 9)
    assert type(plain) is ConvNet and plain.state_dict().keys() == net.state_dict().keys()
    torch.testing.assert_close(plain(x), method.predict(x), atol=1e-5, rtol=0)
    assert (plain(x) - net(x)).abs().max() > 1e-2
    singles = torch.cat([plain(one) for one in x.split(1)])
    torch.testing.assert_close(singles, plain(x), atol=1e-5, rtol=0)
    assert method.describe()["source_moments"] == source


class Shared(nn.Sequential):
    """What the convolution gives goes past the BatchNorm too."""

    def forward(self, x):
        x = self[0](x)
        x = x + self[2](x)
        for layer in list(self)[3:]:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("kind", "between"), [(nn.Sequential, nn.ReLU()), (nn.Sequential, nn.ReLU(inplace=True)), (Shared, nn.Identity())]
)
def test_a_layer_without_a_convolution_of_its_own_folds_only_its_variances(kind, between):
    torch.manual_seed(0)
    net = kind(
        nn.Conv2d(3, 6, 3), between, nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    ).eval()
    source = fit_source_moments(net, [images(64, 1)])
    method = CATTAnForward(copy.deepcopy(net), source_moments=source)
    assert not method.unfoldable, "only a batch shows what feeds a layer"
    method(images(64, 3))
    assert method.target.domain is None and "feeds '2' directly" in method.unfoldable
    method(shifted("strong", 1, 64))
    assert method.target.domain.maps["2"][0].ndim == 2
    with pytest.raises(UserError, match=r"feeds '2' directly.*CATTAN_FORWARD.CHANNELS 0"):
        method.fold()
    method = CATTAnForward(copy.deepcopy(net), source_moments=source, channels=0)
    method(shifted("strong", 1, 64))
    x = shifted("strong", 2)
    torch.testing.assert_close(method.fold()(x), method.predict(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_that_do_the_work_of_their_layers_give_the_same(bias, monkeypatch):
    net = network()
    if not bias:
        net.conv2 = nn.Conv2d(6, 12, 3, 2, 1, bias=False)
    method, x = build("cattan_forward", net), shifted("bright", 9, 64)
    for name in ("bright", "dark", "bright"):
        for seed in range(3):
            method(shifted(name, seed))
        merged = method.predict(x)
        assert "norm2" in method._merged
        with monkeypatch.context() as patch:
            patch.setattr(CATTAnForward, "_convolutions", lambda self: {})
            torch.testing.assert_close(merged, method.predict(x), atol=1e-5, rtol=1e-5)


class Standardized(nn.Conv2d):
    """Divides its weights by their deviation, which a map merged into them would change."""

    def forward(self, x):
        return self._conv_forward(x, self.weight / self.weight.std(), self.bias)


@pytest.mark.parametrize(
    "convolution", [nn.ConvTranspose2d(3, 8, 3, padding=1), Standardized(3, 8, 3, padding=1)], ids=["transposed", "own"]
)
def test_nothing_is_merged_into_a_layer_that_is_not_a_plain_convolution(convolution, monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(
        convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    method = CATTAnForward(net.eval(), source_moments=fit_source_moments(net, [images(64, 1)]))
    for seed in range(3):
        method(shifted("strong", seed, 64))
    assert method.target.domain.maps["1"][0].ndim == 2
    x = shifted("strong", 9, 64)
    merged = method.predict(x)
    monkeypatch.setattr(CATTAnForward, "_convolutions", lambda self: {})
    torch.testing.assert_close(merged, method.predict(x), atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match="feeds '1' directly"):
        method.fold()


@pytest.mark.parametrize("padding", ["valid", "same", 0, (2, 1)])
def test_moments_of_a_large_map_are_those_of_every_so_many_th_position(padding, monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 6, (5, 3), padding=padding), nn.BatchNorm2d(6), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    ).eval()  # fmt: skip
    source = [torch.randn(64, 3, 76, 104) for _ in range(2)]
    merging, apart = (CATTAnForward(copy.deepcopy(net), source_moments=fit_source_moments(net, source)) for _ in "ab")
    asked = []
    conv_forward = nn.Conv2d._conv_forward
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", lambda m, x, *a: asked.append(m.stride) or conv_forward(m, x, *a))
    for _ in range(3):
        x = 1.5 * torch.randn(64, 3, 76, 104) + 1
        logits = merging(x)
        with monkeypatch.context() as patch:
            patch.setattr(CATTAnForward, "_convolutions", lambda self: {})
            torch.testing.assert_close(apart(x), logits, atol=1e-4, rtol=1e-4)
    assert padding == "same" or (3, 4) in asked, "the convolution was never sparse"
    for name, moments in apart.target.domain.moments.items():
        torch.testing.assert_close(merging.target.domain.moments[name].cov, moments.cov, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(merging.target.domain.moments[name].mean, moments.mean, atol=1e-4, rtol=1e-3)


def test_domains_far_from_the_source_are_told_apart_by_their_own_spread():
    method = build("cattan_forward")
    for seed in range(4):
        method(images(16, seed) + 6)
    for seed in range(4):
        method(images(16, seed) + 8)
    assert len(method.target.domains) == 2, "half of the distance from the source would join them"
    first, second = method.target.domains
    x = images(16, 9) + 6
    method.predict(x), method(x)
    assert method.target.domain is first and first.spread < 5 and second.spread < 5


def test_the_skew_of_class_frequencies():
    assert skew_of(None) == 0.0
    assert skew_of(torch.full((10,), 50.0)) == 0.0
    assert skew_of(torch.tensor([1e6] + [0.0] * 9)) == pytest.approx(1, abs=1e-4)
    assert skew_of(torch.tensor([5e5, 5e5] + [0.0] * 8)) == pytest.approx(4 / 9, abs=1e-4)


def test_what_does_not_fit_is_refused_before_the_model_is_changed():
    net = network(nn.InstanceNorm2d)
    with pytest.raises(UserError, match="has no BatchNorm with running statistics"):
        CATTAnForward(net)
    other = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.LazyLinear(5))
    other(images(2, 0))
    source = fit_source_moments(other, [images(8, 1)])
    with pytest.raises(UserError, match="made for the model"):
        CATTAnForward(network(), source_moments=source)
    with pytest.raises(UserError, match="made for another model"):
        CATTAnForward(network(), source_moments=replace(source, provenance={}))
    with pytest.raises(UserError, match=r"source_moments is str 'auto'"):
        CATTAnForward(network(), source_moments="auto")


def test_a_target_set_beforehand():
    batches = target_batches(200, 20)
    method = build("cattan_forward")
    method.prepare(batches)
    assert method.target.domain.count == 200


def features(seed, n=64, shift=0.0):
    """Return features (n x 20) that vary in six directions, and with ``shift`` in the others too."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(9)))[0]
    inside = torch.randn(n, 6, generator=generator) * torch.tensor([4.0, 3.5, 3.0, 2.5, 2.0, 1.5])
    outside = (0.01 + shift) * torch.randn(n, 14, generator=generator) + shift
    return torch.cat([inside, outside], 1) @ directions.T + 1


def projecting(kind=CATTAnForward, **options):
    torch.manual_seed(0)
    net = shot_head(5, 20).eval()
    source = fit_source_moments(net, features(1, 512).split(128), layer="backbone")
    return net, kind(copy.deepcopy(net), source_moments=source, layer="backbone", **{"d": 6, **options})


@pytest.mark.parametrize("shape", [(7, 20), (7, 20, 3, 3), (7, 4, 20)])
def test_a_projection_keeps_what_lies_in_the_subspace_and_drops_the_rest(shape):
    z, mean = torch.randn(shape), torch.randn(20)
    basis = torch.linalg.qr(torch.randn(20, 8))[0]
    place = 2 if len(shape) == 3 else 1
    found = projected(z, basis, mean)
    rows = z.movedim(place, -1).reshape(-1, 20).double().numpy() - mean.double().numpy()
    w = basis.double().numpy()
    expected = mean.double().numpy() + rows @ w @ w.T
    assert found.shape == z.shape
    torch.testing.assert_close(
        found.movedim(place, -1).reshape(-1, 20).double(), torch.from_numpy(expected), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("protocol", ["online", "offline"])
def test_only_targets_are_projected_and_it_folds(protocol):
    net, method = projecting()
    x = features(5)
    assert torch.equal(method(x), net(x).detach()), "the source passes unchanged"
    batches = [(torch.arange(64), features(seed, shift=2.0)) for seed in range(4)]
    if protocol == "offline":
        method.prepare(batches)
    else:
        for _, x in batches:
            method(x)
    x = features(9, shift=2.0)
    seen = []
    handle = method.model.bottleneck.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    logits = method.predict(x)
    handle.remove()
    basis, mean = method.subspace
    outside = (seen[0] - mean) - (seen[0] - mean) @ basis[:, :6] @ basis[:, :6].T
    assert outside.abs().max() < 1e-4 and (x - seen[0]).abs().max() > 1
    plain = method.fold()
    assert plain.state_dict().keys() == net.state_dict().keys()
    torch.testing.assert_close(plain(x), logits, atol=1e-4, rtol=1e-4)
    other = projecting()[1]
    other.load_state_dict(method.state_dict())
    torch.testing.assert_close(other.predict(x), logits, atol=0, rtol=0)
    method.reset()
    assert torch.equal(method.predict(x), net(x).detach())


def test_the_projection_and_the_classes_of_cattan_plus_fold_together():
    _, method = projecting(CATTAnPlus, class_change=0.0)
    batches = [(torch.arange(64), features(seed, shift=2.0)) for seed in range(4)]
    method.prepare(batches)
    method.finish(batches)
    x = features(9, shift=2.0)
    assert method.target.classes is not None
    torch.testing.assert_close(method.fold()(x), method.predict(x), atol=1e-4, rtol=1e-4)


def test_a_layer_without_its_subspace_is_refused(tmp_path):
    net, method = projecting()
    source = method.source
    source.save(tmp_path / "moments.safetensors")
    read = SourceMoments.load(tmp_path / "moments.safetensors")
    assert read.subspace.layer == "backbone" and torch.equal(read.subspace.basis, source.subspace.basis)
    without = fit_source_moments(net, [features(1)])
    for given, options, text in (
        (without, {"layer": "backbone", "d": 6}, "hold none"),
        (None, {"layer": "backbone", "d": 6}, "hold none"),
        (source, {"layer": "bottleneck", "d": 6}, "hold that of 'backbone'"),
        (source, {"layer": "backbon", "d": 6}, "not a module of ShotNetwork. Did you mean"),
    ):
        with pytest.raises(UserError, match=text):
            CATTAnForward(copy.deepcopy(net), source_moments=given, **options)


def mixed_stream(batches, kinds, seed=0):
    """Yield batches of 64 whose images are of all kinds by turns, and the kinds."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(batches):
        kind = torch.randint(len(kinds), (64,), generator=generator)
        parts = torch.stack([shifted(name, 1000 + number, 64) if name else images(64, 1000 + number) for name in kinds])
        yield parts[kind, torch.arange(64)], kind


@pytest.mark.parametrize("kinds", [("bright", "dark"), ("", "strong")])
@pytest.mark.parametrize("mirror", [False, True])
def test_images_of_several_domains_in_one_batch_are_aligned_by_domain(kinds, mirror):
    method = build("cattan_forward", mirror=mirror)
    for x, _ in mixed_stream(16, kinds):
        method(x)
    mixed = [domain for domain in method.target.domains if domain.mixed]
    assert len(mixed) >= 2
    x, kind = next(mixed_stream(1, kinds, seed=7))
    found = method.predict(x)
    for number, name in enumerate(kinds):
        one = x[kind == number]
        alone, source = build("cattan_forward", mirror=mirror), build("source", mirror=mirror).predict(one)
        for seed in range(10):
            alone(shifted(name, seed, 64) if name else images(64, seed))
        expected, far = alone.predict(one), build("norm", mirror=mirror).predict(x)[kind == number]
        assert (found[kind == number] - expected).abs().mean() < 0.6 * (far - expected).abs().mean()
        if name:
            assert (found[kind == number] - expected).abs().mean() < 0.6 * (source - expected).abs().mean()


def test_a_mixture_has_no_more_domains_than_slots():
    method = build("cattan_forward", slots=2)
    for x, _ in mixed_stream(16, ("bright", "dark", "strong")):
        method(x)
        assert len(method.target.domains) <= 2


def test_a_mixture_goes_on_from_its_state_bit_for_bit():
    first, second = build("cattan_forward"), build("cattan_forward")
    batches = [x for x, _ in mixed_stream(20, ("bright", "dark", "strong"))]
    for x in batches[:15]:
        first(x)
    assert any(domain.mixed for domain in first.target.domains)
    second.load_state_dict(first.state_dict())
    for x in batches[15:]:
        assert torch.equal(first(x), second(x))


def test_domains_that_follow_each_other_are_no_mixture():
    method = build("cattan_forward")
    for name, batches in (("bright", 6), ("dark", 6), ("strong", 1), ("bright", 6), ("dark", 3), ("strong", 9)):
        for seed in range(batches):
            method(shifted(name, seed, 64))
    assert not any(domain.mixed for domain in method.target.domains)


@pytest.mark.parametrize("hook", ["reads", "replaces"])
def test_hooks_see_what_they_see_in_the_plain_network(hook):
    method, x, seen = build("cattan_forward"), shifted("bright", 9, 64), []
    for seed in range(3):
        method(shifted("bright", seed))
    expected = method.predict(x)
    assert "norm2" in method._merged
    method.network.conv2.register_forward_hook(lambda layer, args, out: seen.append(out) or out.clone())
    torch.testing.assert_close(method.predict(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen[0], nn.Conv2d.forward(method.network.conv2, seen_input(method, x)))


def seen_input(method, x):
    """Return what the second convolution takes in."""
    inputs = []
    with hooked([method.network.conv2.register_forward_pre_hook(lambda layer, args: inputs.append(args[0]))]):
        method.predict(x)
    return inputs[0]


@pytest.mark.parametrize("batch_size", [16, 1])
def test_single_images_are_predicted_in_the_domain_that_the_stream_is_in(batch_size):
    method = build("cattan_forward")
    for part in shifted("bright", 1, 64).split(batch_size):
        method(part)
    state, x = snapshot(method), shifted("bright", 9)
    singles = torch.cat([method.predict(one) for one in x.split(1)])
    torch.testing.assert_close(singles, method.predict(x), atol=1e-5, rtol=1e-5)
    with method.paused():
        torch.testing.assert_close(torch.cat([method(one) for one in x.split(1)]), singles)
    assert_same_state(state, snapshot(method))
    repeated, once = (build("cattan_forward", steps=steps) for steps in (2, 1))
    for one in shifted("bright", 1, 64).split(1):
        torch.testing.assert_close(repeated(one), once(one), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("memory", [1, 16, 100])
def test_a_memory_shorter_than_a_batch_remembers_the_batch(memory):
    method = build("cattan_forward", memory=memory)
    for seed in range(4):
        logits = method(shifted("bright", seed, 64))
    assert torch.isfinite(logits).all()
    assert all(m.cov.diagonal().min() >= 0 for m in method.target.domain.moments.values())
    fresh = build("cattan_forward")
    fresh(shifted("bright", 3, 64))
    if memory < 64:  # nothing is left of the batches before
        torch.testing.assert_close(moments(method).mean, moments(fresh).mean)


@pytest.mark.parametrize("normalise", [parametrizations.weight_norm, parametrizations.spectral_norm, weight_norm])
def test_a_convolution_whose_weight_is_computed_does_not_fold(normalise):
    net = network()
    normalise(net.conv2)
    method = CATTAnForward(net, source_moments=fit_source_moments(net, images(200, 3).split(50)))
    for seed in range(2):
        method(shifted("bright", seed))
    assert "feeds 'norm2' directly, with a weight of its own" in method.unfoldable
    with pytest.raises(UserError, match="cannot be folded"):
        method.fold()


def test_a_state_goes_into_a_model_with_the_same_moments_alone():
    method, without = build("cattan_forward"), build("cattan_forward", source_moments=None)
    method(shifted("bright", 1))
    with pytest.raises(UserError, match=r"the state is of source_moments = '[0-9a-f]+', and here it is 'none'"):
        without.load_state_dict(method.state_dict())
    again = build("cattan_forward")
    again.load_state_dict(method.state_dict())
    x = shifted("bright", 5)
    assert torch.equal(again(x), method(x))


def test_moments_move_with_the_model():
    method = build("cattan_forward").to("meta")
    assert method.source.first.mean.is_meta and all(part.is_meta for part in method.colours["norm1"])


def test_a_stream_of_rubbish_is_told_once(caplog):
    method = build("cattan_forward")
    for seed in range(3):
        method(1e6 * images(16, seed))
    assert caplog.text.count("farther from the source's than CATTAN_FORWARD.FAR = 1000") == 1


def test_what_only_aligning_methods_take_is_refused_by_the_others():
    with pytest.raises(UserError, match="TENT uses no source data: leave source_subspace out"):
        Tent(network(), source_subspace="garbage")


class Auxiliary(ConvNet):
    """Has a head that only training uses."""

    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4))


def test_layers_that_are_not_called_have_no_moments():
    torch.manual_seed(0)
    net = Auxiliary().eval()
    found = fit_source_moments(net, images(64, 3).split(16))
    assert set(found.mean) == set(found.classes) == {"norm1", "norm2"}
    method = CATTAnForward(net, source_moments=found)
    assert torch.isfinite(method(shifted("bright", 1))).all()


class Deep(nn.Module):
    """Four BatchNorms behind a 1x1 convolution, whose channels do not tell whether an image's pixels are in order."""

    def __init__(self):
        super().__init__()
        sizes = ((3, 6, 1), (6, 8, 3), (8, 8, 3), (8, 8, 3))
        self.convs = nn.ModuleList(nn.Conv2d(a, b, k, 1, k // 2) for a, b, k in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _ in sizes)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).relu()
        return self.fc(x.mean((2, 3)))


def out_of_order(x):
    places = torch.randperm(x[0, 0].numel(), generator=torch.Generator().manual_seed(0))
    return x.flatten(2)[:, :, places].view_as(x)


@pytest.fixture
def deep():
    torch.manual_seed(0)
    net = Deep().train()
    for seed in range(5):
        net(images(64, seed))
    net.fc.weight.data.mul_(100)
    return net.eval(), fit_source_moments(net, images(400, 3).split(50))


def test_what_the_first_layer_does_not_see_a_deeper_one_does(deep, tmp_path):
    net, source = deep
    assert source.second.layer == "norms.1"
    source.save(tmp_path / "m")
    method = CATTAnForward(copy.deepcopy(net), source_moments=SourceMoments.load(tmp_path / "m"))
    blind = CATTAnForward(copy.deepcopy(net), source_moments=replace(source, second=None))
    for seed in range(10, 14):
        x = out_of_order(images(32, seed))
        method(x)
        assert torch.equal(blind(x), net(x).detach())
    assert method.target.first.domains == [] and method.target.domain in method.target.second.domains
    assert method.target.domain.moments.keys() == {"norms.1", "norms.2", "norms.3"}
    aligned = method.predict(x)
    assert (aligned - net(x)).abs().max() > 5e-2
    torch.testing.assert_close(method.fold()(x), aligned, atol=1e-3, rtol=1e-3)
    x = images(32, 50)
    assert torch.equal(method.predict(x), net(x).detach()), "the source's images still pass unchanged"
    assert torch.equal(method(x), net(x).detach()) and method.target.domain is None
    method(2 * images(32, 60))
    assert len(method.target.first.domains) == 1 and method.target.domain is method.target.first.domains[0]
    method(out_of_order(images(32, 61)))
    assert method.target.domain in method.target.second.domains


def test_a_deeper_signature_of_another_model_is_refused(deep):
    net, source = deep
    for second in (replace(source.second, layer="norms.9"), replace(source.second, mean=torch.zeros(9))):
        with pytest.raises(UserError, match=r"signature of the layer 'norms\.[19]' .* made for another model"):
            CATTAnForward(net, source_moments=replace(source, second=second).without_model())


def test_a_new_domain_is_judged_by_what_the_source_model_predicts(deep):
    net, source = deep
    seen = []

    class Watching(CATTAnForward):
        def _passed(self, *args):
            passing, logits = super()._passed(*args)
            known = [domain.frequencies for domain in self.target.domains]
            seen.append((logits, [] if passing.new else known, [dict(d.moments) for d in self.target.domains]))
            return passing, logits

    method, x = Watching(copy.deepcopy(net), source_moments=source), 2 * images(32, 60)
    logits = method(x)
    assert len(seen) == 2, "a new domain takes a second pass"
    assert torch.equal(seen[0][0], net(x).detach()) and seen[0][2] == [{}], "the first pass changes nothing"
    torch.testing.assert_close(seen[1][1][0], net(x).detach().softmax(1).sum(0))
    assert torch.equal(logits, seen[1][0]) and method.target.domain.count == 32 and method.target.first.clock == 1
    torch.testing.assert_close(method.target.domain.frequencies, logits.softmax(1).sum(0))
    method(2 * images(32, 61))
    method(out_of_order(images(32, 62)))
    assert len(seen) == 5 and len(method.target.second.domains) == 1, "one pass in a known domain, two in a deeper one"
