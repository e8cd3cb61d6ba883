"""Finding the linear layer that a model ends in: torchvision's, timm's, RobustBench's and the user's own."""

from __future__ import annotations

import collections
import copy

import pytest
import torch
import torchvision
from small_networks import ConvNet, build, images, network, run, source_subspace, target_batches
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from tta_cattan import CATTAn, UserError, load_cfg, setup_model
from tta_cattan.methods import Shot
from tta_cattan.network.layers import effective_linear, find_classifier, iterate_features


class ScaledAfterwards(ConvNet):
    """Something follows the linear layer."""

    def forward(self, x):
        return 2 * super().forward(x)


class FlipAveraged(ConvNet):
    """The head is called twice."""

    def forward(self, x):
        return (super().forward(x) + super().forward(x.flip(-1))) / 2


class Normalise(nn.Module):
    def forward(self, x):
        return (x - 0.5) / 0.2


def small_vit():
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=16, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=7
    )


TORCHVISION = {
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=7), "fc"),
    "vgg11_bn": (lambda: torchvision.models.vgg11_bn(num_classes=7), "classifier.6"),
    "mobilenet_v3_small": (lambda: torchvision.models.mobilenet_v3_small(num_classes=7), "classifier.3"),
    "vit": (small_vit, "heads.head"),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    make, expected = TORCHVISION[name]
    with torch.device("meta"):  # the structure is enough, and VGG has 130 million weights
        model = make()
    assert find_classifier(model) == expected
    assert find_classifier(model, num_classes=7) == expected


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "vit"])
def test_torchvision_adapts(name):
    torch.manual_seed(0)
    model = TORCHVISION[name][0]()
    nn.init.normal_(model.get_submodule(TORCHVISION[name][1]).weight)  # torchvision's ViT starts with zeros
    method = CATTAn(model, d=5, statistics="source")
    x = torch.rand(8, 3, 32, 32)
    method.prepare([(torch.arange(8), x)])
    assert method(x).shape == (8, 7)
    torch.testing.assert_close(method.fold()(x), method.predict(x), rtol=1e-4, atol=1e-4)


TIMM = {
    "resnet10t": ("fc", {}),
    "convnext_atto": ("head.fc", {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}),
    "vit_tiny_patch16_224": ("head", {"depth": 1, "img_size": 32}),
}


@pytest.mark.parametrize("name", TIMM)
@pytest.mark.parametrize("wrapped", [False, True])
def test_timm(name, wrapped):
    timm = pytest.importorskip("timm")
    expected, options = TIMM[name]
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=7, **options)
    if wrapped:
        model = nn.Sequential(collections.OrderedDict(normalize=Normalise(), model=model))
        expected = f"model.{expected}"
    assert find_classifier(model) == expected
    method = CATTAn(model, d=5, statistics="source")
    x = torch.rand(8, 3, 32, 32)
    assert method(x).shape == (8, 7)
    torch.testing.assert_close(method.fold()(x), method.predict(x), rtol=1e-4, atol=1e-4)


def test_a_distilled_timm_model_is_refused_unless_the_layer_is_named():
    timm = pytest.importorskip("timm")
    model = timm.create_model("deit_tiny_distilled_patch16_224", pretrained=False, depth=1, img_size=32)
    with pytest.raises(UserError, match=r"has 2 classifiers \(a distilled model\): .*MODEL\.CLASSIFIER"):
        find_classifier(model)
    assert find_classifier(model, "head") == "head"
    with pytest.raises(UserError, match="is not the last step"):
        CATTAn(model, d=5, classifier="head")(torch.rand(4, 3, 32, 32))


def test_a_robustbench_like_wrapper():
    net = network()
    model = nn.Sequential(collections.OrderedDict(normalize=Normalise(), model=net))
    assert find_classifier(model) == "model.fc"
    method = CATTAn(model, d=5, statistics="source")
    assert run(method, "online").shape == (40, 5)
    assert "model.fc.phi" in method.collect_params()[1]


def old_style(linear):
    return weight_norm(linear)


def new_style(linear):
    return parametrizations.weight_norm(linear)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("style", [old_style, new_style])
@pytest.mark.parametrize("name", ["cattan", "shot", "tent"])
def test_weight_normalised_heads(style, name):
    net, x = network(), target_batches()[0][1]
    plain = copy.deepcopy(net)
    style(net.fc)
    with torch.no_grad():  # another scale than at the start: the weight has to be computed anew
        scale = net.fc.weight_g if style is old_style else net.fc.parametrizations.weight.original0
        scale.mul_(3)
        plain.fc.weight.mul_(3)
    assert find_classifier(net) == "fc"
    weight, bias = effective_linear(net.fc)
    torch.testing.assert_close(weight, plain.fc.weight)
    torch.testing.assert_close(bias, plain.fc.bias)
    options = {"source_subspace": source_subspace(plain), "d": 6} if name == "cattan" else {}
    options["statistics"] = "source"
    net.requires_grad_(False)(x)  # torch cannot copy the old style before a pass without gradients
    for protocol in ("offline", "online"):
        ours, expected = build(name, net, **options), build(name, plain, **options)
        logits = run(ours, protocol)
        torch.testing.assert_close(logits, run(expected, protocol), rtol=0, atol=1e-3)
        torch.testing.assert_close(ours.fold()(x), ours.predict(x), rtol=0, atol=1e-5)
    net.load_state_dict(ours.fold().state_dict(), strict=True)
    torch.testing.assert_close(net(x), ours.predict(x), rtol=0, atol=1e-5)


def test_a_linear_layer_with_another_function_is_refused():
    class Cosine(nn.Linear):
        def forward(self, x):
            return super().forward(nn.functional.normalize(x, dim=1))

    net = network()
    net.fc = Cosine(12, 5)
    with pytest.raises(UserError, match="Cosine is not a plain linear layer"):
        CATTAn(net, d=5)


def test_the_last_layer_with_the_wanted_outputs():
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3))
    assert find_classifier(net) == "2"
    assert find_classifier(net, num_classes=5) == "1"
    with pytest.raises(UserError, match="no linear layer with 9 outputs"):
        find_classifier(net, num_classes=9)


def test_attention_projections_are_not_classifiers():
    class Attentive(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 5)
            self.attention = nn.MultiheadAttention(8, 2)

    assert find_classifier(Attentive()) == "head"


def test_by_name_from_the_config():
    class HeadFirst(nn.Module):
        """Its classifier is registered before another linear layer."""

        def __init__(self):
            super().__init__()
            self.classifier = nn.Linear(12, 5)
            self.body = ConvNet()
            self.body.fc = nn.Linear(12, 12)

        def forward(self, x):
            return self.classifier(self.body(x).relu())

    overrides = ["MODEL.ADAPTATION", "cattan", "CATTAN.SOURCE_BASIS", "classifier", "CATTAN.D", 4]
    x = images(8, 1)
    with pytest.raises(UserError, match=r"'body\.fc' is not the last step.*MODEL\.CLASSIFIER"):
        setup_model(HeadFirst(), load_cfg(None, overrides))(x)
    method = setup_model(HeadFirst(), load_cfg(None, [*overrides, "MODEL.CLASSIFIER", "classifier"]))
    assert method(x).shape == (8, 5) and method.classifier == "classifier"


def test_a_wrong_name_suggests_the_nearest():
    with pytest.raises(UserError, match=r"CLASSIFIER = 'fcc' is not a linear layer of ConvNet \(classifier=\)\."):
        find_classifier(network(), "fcc")
    with pytest.raises(UserError, match=r"MODEL\.CLASSIFIER = 'conv1' is not a linear layer"):
        find_classifier(network(), "conv1")


def test_a_convolutional_head_is_refused():
    with torch.device("meta"):
        model = torchvision.models.squeezenet1_1()
    with pytest.raises(
        UserError, match="SqueezeNet has no linear layer: alignment needs a classifier that ends in one"
    ):
        find_classifier(model)


@pytest.mark.parametrize("protocol", ["offline", "online"])
@pytest.mark.parametrize("method", [CATTAn, Shot])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ScaledAfterwards, "is not the last step"),
        (FlipAveraged, "was called 2 times in one forward pass"),
    ],
)
def test_a_model_that_is_not_head_of_features_is_refused_at_its_first_pass(kind, words, method, protocol):
    torch.manual_seed(0)
    adapted = method(kind(), **({"d": 4} if method is CATTAn else {}))
    with pytest.raises(UserError, match=f"the (linear )?layer 'fc' {words}"):
        run(adapted, protocol)


def test_iterate_features_gives_what_the_head_receives():
    net = network()
    batches = [x for _, x in target_batches()]
    for x, features in zip(batches, iterate_features(net, "fc", batches), strict=True):
        assert torch.equal(features, net.features(x))
        assert not features.requires_grad
    with pytest.raises(UserError, match="is not the last step"):
        list(iterate_features(ScaledAfterwards(), "fc", batches))
