"""The Python interface as people use it: loaders, heads, precisions, modes, wrapping twice, outputs of other kinds."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from small_networks import (
    ADAPTING,
    FEATURES,
    FROZEN,
    METHODS,
    N_CLASSES,
    ConvNet,
    assert_same_state,
    build,
    images,
    network,
    run,
    snapshot,
    source_subspace,
    target_batches,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tta_cattan import CATTAn, CATTAnPlus, Subspace, UserError, fit_source, fit_source_moments, fit_subspace
from tta_cattan.methods import ADAPTATION_REGISTRY, Tent

each_method = pytest.mark.parametrize("name", METHODS)


@each_method
def test_a_network_and_a_learning_rate_are_enough(name):
    method = ADAPTATION_REGISTRY.get(name)(network(), lr=0.01)
    assert method(images(8, 1)).shape == (8, N_CLASSES)
    assert method.optimizer is None or method.optimizer.param_groups[0]["lr"] == 0.01


@each_method
def test_a_second_wrap_says_that_the_network_is_wrapped_already(name):
    net = network()
    method = ADAPTATION_REGISTRY.get(name)(net)
    before = snapshot(net)
    for again in (net, method, nn.Sequential(nn.Identity(), net), net.norm1):
        with pytest.raises(UserError, match="is wrapped already, by"):
            Tent(again)
    assert_same_state(before, snapshot(net))


@each_method
def test_a_refused_constructor_has_changed_nothing(name):
    net = network().train()
    before, types = snapshot(net), [type(m) for m in net.modules()]
    for options in ({"lr": -1}, {"steps": 0}, {"statistics": "none"}, {"optimizer": 3}, {"no_such": 1}):
        with pytest.raises(UserError):
            ADAPTATION_REGISTRY.get(name)(net, **options)
    assert_same_state(before, snapshot(net))
    assert types == [type(m) for m in net.modules()] and net.training
    assert all(param.requires_grad for param in net.parameters())
    ADAPTATION_REGISTRY.get(name)(net)  # nor is it marked as wrapped


LOADERS = {
    "images": lambda x: list(x.split(8)),
    "a DataLoader": lambda x: DataLoader(TensorDataset(x, torch.arange(len(x)) % 3), 8),
    "tuples with labels": lambda x: [(part, torch.zeros(len(part), dtype=torch.long)) for part in x.split(8)],
    "indices": lambda x: list(zip(torch.arange(len(x)).split(8), x.split(8), strict=True)),
    "a generator": lambda x: (part for part in x.split(8)),
}


@pytest.mark.parametrize("form", LOADERS)
@pytest.mark.parametrize("name", ["cattan", "cattan_plus"])
def test_prepare_takes_what_people_have(form, name):
    x = torch.cat([x for _, x in target_batches()])
    expected, method = build(name), build(name)
    expected.prepare(target_batches())
    method.prepare(LOADERS[form](x))
    assert torch.equal(method.predict(x), expected.predict(x))
    method.prepare(batches=LOADERS[form](x))
    assert torch.equal(method.predict(x), expected.predict(x))
    if form == "a generator" and method.classes:
        with pytest.raises(UserError, match="an iterator gives them once"):
            method.finish(LOADERS[form](x))
    else:
        method.finish(LOADERS[form](x))
    assert torch.isfinite(method.predict(x[:8])).all()


def test_a_batch_of_another_form_is_refused():
    method = build("cattan")
    x = images(8, 1)
    for batch, words in (
        ({"images": x}, "holds a dict"),
        (([1, 2], x), "holds a list"),
        ((), "holds a tuple"),
        ((torch.arange(8), torch.arange(8)), "begins with 8 integers and no inputs follow"),
        ((torch.arange(7), x), "begins with 7 integers"),
        (torch.arange(8), "begins with 8 integers"),
        ((x * 255).byte(), "uint8.*/ 255"),
    ):
        with pytest.raises(UserError, match=words):
            method.prepare([batch])
    with pytest.raises(UserError, match="a loader has the type int"):
        method.prepare(3)
    with pytest.raises(UserError, match="0 sample"):
        method.prepare([])
    with pytest.raises(UserError, match=r"\(indices, images\)"):
        build("shot").start_epoch([x])
    for verb in (method, method.predict):
        with pytest.raises(UserError, match="uint8"):
            verb((x * 255).byte())
        with pytest.raises(UserError, match="an empty batch"):
            verb(x[:0])
        with pytest.raises(UserError, match="has the type ndarray"):
            verb(x.numpy())


def fails(_, args):
    assert args[0].ndim == 4, "expected 4 dimensions"  # as timm's layers say it


@pytest.mark.parametrize("channels", [1, 3])
@each_method
def test_one_image_is_no_batch(name, channels):
    net = network()
    if channels == 1:  # the image looks like a batch of one
        net.conv1 = nn.Conv2d(1, 6, 3, 2, 1)
    image, method = images(1, 1)[0, :channels], ADAPTATION_REGISTRY.get(name)(copy.deepcopy(net))
    for verb in (method, method.predict):
        with pytest.raises(UserError, match=rf"shape \({channels}, 8, 8\).*x\[None\]"):
            verb(image)
    with pytest.raises(UserError, match=r"x\[None\]"):
        ADAPTATION_REGISTRY.get(name)(copy.deepcopy(net), mirror=True)(image)
    with pytest.raises(UserError, match=r"x\[None\]"):
        fit_source(net, [image])
    method.model.register_forward_pre_hook(fails)
    with pytest.raises(UserError, match=r"expected 4 dimensions.*x\[None\]"):
        method(image)
    assert method(image[None]).shape == (1, N_CLASSES)


@pytest.mark.parametrize("layer", [None, "conv2"])
def test_fit_source_is_a_fit_to_what_the_network_makes_of_the_images(layer):
    net = network().train()
    loader = DataLoader(TensorDataset(images(60, 1), torch.zeros(60)), 16)
    found = fit_source(net, loader, layer=layer, d=4)
    assert net.training and all(param.requires_grad for param in net.parameters())
    net.eval()
    with torch.no_grad():
        x = images(60, 1)
        z = net.conv2(net.norm1(net.conv1(x)).relu()).movedim(1, -1).flatten(0, 2) if layer else net.features(x)
    expected = fit_subspace(z, 4)
    torch.testing.assert_close(found.basis.abs(), expected.basis.abs(), rtol=1e-3, atol=1e-4)
    assert found.count == expected.count and found.layer == (layer or "") and found.centered
    assert CATTAn(net, source_subspace=found, layer=layer or "", d=4)(images(8, 2)).shape == (8, N_CLASSES)


@pytest.mark.parametrize("form", LOADERS)
def test_the_moments_take_what_people_have(form):
    net, x = network().train(), images(60, 1)
    found = fit_source_moments(net, LOADERS[form](x))
    assert net.training and found.count == 60
    assert repr(found) == "SourceMoments(2 layers, 2 with a covariance, 60 images)"
    net.eval()
    assert CATTAnPlus(net, source_moments=found)(images(8, 2)).shape == (8, N_CLASSES)


def test_what_is_known_of_another_source_is_refused():
    moments, subspace = fit_source_moments(network(), [images(60, 1)]), fit_source(network(), [images(60, 1)])
    with pytest.raises(UserError, match=r"source moments: made for the model \w{12}, and this model is \w{12}"):
        CATTAnPlus(network(seed=1), source_moments=moments)
    with pytest.raises(UserError, match=r"CATTAn\+ takes source_moments=fit_source_moments\(net, loader\)"):
        CATTAnPlus(network(), source_subspace=subspace)
    with pytest.raises(UserError, match="source_subspace is"):
        CATTAn(network(), source_subspace=moments)


def test_the_subspace_of_another_network_is_refused():
    found = fit_source(network(), [images(60, 1)])
    other = network(seed=1)
    with pytest.raises(UserError, match=r"subspace: made for the model \w{12}, and this model is \w{12}.*fit_source"):
        CATTAn(other, source_subspace=found)
    assert isinstance(other.fc, nn.Linear)
    CATTAn(nn.Sequential(nn.Identity(), network()), source_subspace=found)  # a wrapper is the same network


def test_a_subspace_prints_as_one_line(tmp_path):
    found = fit_source(network(), [images(60, 1)], d=4)
    found.save(tmp_path / "s.safetensors")
    line = "Subspace(4 directions of 12 features, 60 samples, centred, layer 'input of the classifier')"
    assert repr(found) == str(Subspace.load(tmp_path / "s.safetensors")) == line


@each_method
def test_paused_predicts_and_leaves_no_trace(name):
    method, x = build(name, episodic=True), images(8, 1)
    method(x)
    before = snapshot(method)
    expected = method.predict(x)
    with method.paused(), method.paused():
        assert torch.equal(method(x), expected)
        assert torch.equal(method.forward_and_adapt(x), expected)
    assert_same_state(before, snapshot(method))
    method(x)
    if name in ADAPTING:
        assert not torch.equal(method.predict(images(8, 2)), build(name).predict(images(8, 2)))


@each_method
@pytest.mark.parametrize("protocol", ["offline", "online"])
def test_inference_mode_adapts_as_ever_and_spoils_nothing(name, protocol):
    expected = build(name)
    first, second = run(expected, protocol), run(expected, protocol)
    method = build(name)
    with torch.inference_mode():
        batches = [(i, x.clone()) for i, x in target_batches()]  # inference tensors
        assert torch.equal(run(method, protocol, batches), first)
        method.state_dict()
    assert torch.equal(run(method, protocol, batches), second)
    with torch.inference_mode():
        method.reset()
    assert torch.equal(run(method, protocol), first)


def test_a_network_made_under_inference_mode_is_refused():
    with torch.inference_mode():
        inside = ConvNet()
        with pytest.raises(UserError, match="inference_mode"):
            Tent(network())
    with pytest.raises(UserError, match="inference_mode"):
        Tent(inside)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_method
def test_half_precision_is_refused_where_updates_would_be_lost(name, dtype):
    net = network().to(dtype)
    if name not in FROZEN:
        with pytest.raises(UserError, match=rf"is {str(dtype)[6:]}, too coarse.*\.float\(\).*mixed_precision=True"):
            ADAPTATION_REGISTRY.get(name)(net)
    else:
        assert ADAPTATION_REGISTRY.get(name)(net)(images(8, 1).to(dtype)).dtype == torch.float32


@each_method
def test_channels_last_gives_the_same(name):
    method, expected = build(name, network().to(memory_format=torch.channels_last)), build(name)
    for seed in range(3):
        x = images(8, seed)
        logits = method(x.to(memory_format=torch.channels_last))
        torch.testing.assert_close(logits, expected(x), rtol=1e-3, atol=1e-4)


def test_compiled_and_parallel_networks():
    with pytest.raises(UserError, match=r"before torch\.compile"):
        Tent(torch.compile(network(), backend="eager"))
    many = nn.DataParallel(network())
    many.device_ids = [0, 1]
    with pytest.raises(UserError, match=r"give its \.module"):
        Tent(many)
    method = build("tent")
    with pytest.raises(UserError, match="would adapt copies"):
        method._replicate_for_data_parallel()


class Other(ConvNet):
    """A network that returns what it is told to make of its logits."""

    def __init__(self, returns):
        super().__init__()
        self.returns = returns

    def forward(self, x):
        return self.returns(super().forward(x))


OUTPUTS = {
    "a dictionary": (lambda y: {"out": y}, "type dict"),
    "a tuple": (lambda y: (y, y), "type tuple"),
    "maps": (lambda y: y[:, :, None, None].expand(-1, -1, 4, 4), r"shape \(8, 5, 4, 4\)"),
    "one number each": (lambda y: y[:, 0], r"shape \(8,\)"),
    "fewer rows": (lambda y: y[:4], r"shape \(4, 5\)"),
}


@pytest.mark.parametrize("kind", OUTPUTS)
@each_method
def test_what_is_not_logits_is_refused_in_one_line(name, kind):
    returns, words = OUTPUTS[kind]
    method = ADAPTATION_REGISTRY.get(name)(Other(returns))
    for verb in (method.predict, method):
        with pytest.raises(UserError, match=rf"of {words}: logits of shape \(8, classes\) are needed") as caught:
            verb(images(8, 1))
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=rf"of {words}: logits of shape"):
        fit_source(Other(returns), [images(8, 1)])


class Cosine(nn.Module):
    """``s cos(z, w_c)``, as in few-shot and open-set recognition."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(N_CLASSES, FEATURES))

    def forward(self, z):
        return 16 * F.linear(F.normalize(z), F.normalize(self.weight))


class ClipLike(ConvNet):
    """Images and names of classes in one space: a linear projection, then cosines to fixed vectors."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(FEATURES, FEATURES, bias=False)
        self.register_buffer("text", F.normalize(torch.randn(N_CLASSES, FEATURES)))

    def forward(self, x):
        return 10 * F.normalize(super().forward(x)) @ self.text.T


def cosine():
    net = ConvNet()
    net.fc = Cosine()
    return net


def convolution():
    """A 1x1 convolution before the global mean."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, N_CLASSES, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


HEADS = {"cosine": (cosine, "norm2"), "convolution": (convolution, "2"), "CLIP": (ClipLike, "norm2")}


@pytest.mark.parametrize("kind", HEADS)
def test_other_heads_are_refused_with_a_remedy_that_works(kind):
    torch.manual_seed(0)
    make, layer = HEADS[kind]
    net, x = make().eval(), images(8, 1)
    with pytest.raises(UserError, match=r"classifier=.*layer=NAME with source_subspace=fit_source\("):
        CATTAn(copy.deepcopy(net))(x)
    if kind != "CLIP":  # its projection is a linear layer
        with pytest.raises(UserError, match=r"^classes=False \(CLASSES.USE False\) needs no linear classifier"):
            CATTAnPlus(copy.deepcopy(net))
    assert CATTAnPlus(copy.deepcopy(net), classes=False)(x).shape == (8, N_CLASSES)
    subspace = fit_source(net, [images(64, 2)], layer=layer)
    adapted = CATTAn(copy.deepcopy(net), layer=layer, source_subspace=subspace)
    assert adapted(x).shape == (8, N_CLASSES)


def test_source_subspace_of_the_paper_still_fits_by_hand():
    net = network()
    assert CATTAn(net, source_subspace=source_subspace(net), d=4)(images(8, 1)).shape == (8, N_CLASSES)
