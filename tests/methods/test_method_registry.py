"""Methods by name: those of the house and those of others."""

from __future__ import annotations

import pytest
import torch
from small_networks import METHODS, images, network

from tta_cattan import ADAPTATION_REGISTRY, AdaptationMethod, UserError, load_cfg, setup_model
from tta_cattan.util.registry import Registry


@pytest.fixture
def registry(monkeypatch):
    """The registry of methods, as it was after the test."""
    monkeypatch.setattr(ADAPTATION_REGISTRY, "_entries", dict(ADAPTATION_REGISTRY._entries))
    return ADAPTATION_REGISTRY


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD"])
def test_setup_model_builds_every_method(name, optimizer):
    overrides = ["MODEL.ADAPTATION", name.upper(), "OPTIM.METHOD", optimizer, "OPTIM.LR", 0.02, "OPTIM.STEPS", 2]
    overrides += ["CATTAN.SOURCE_BASIS", "classifier", "CATTAN.D", 4, "BN.STATISTICS", "running", "BN.MOM", 0.25]
    overrides += ["CATTAN_FORWARD.SOURCE_MOMENTS", "none"]
    method = setup_model(network(), load_cfg(None, overrides), num_classes=5)
    assert type(method) is ADAPTATION_REGISTRY.get(name)
    assert method(images(8, 1)).shape == (8, 5)
    assert method.steps == 2
    if method.optimizer is not None:
        assert type(method.optimizer).__name__ == optimizer
        assert method.optimizer.param_groups[0]["lr"] == 0.02
        assert method.statistics == "running"
        assert {layer.momentum for layer in method.statistics_layers} == {0.25}


def test_a_third_party_method_is_set_up_by_its_name(registry):
    @registry.register("squared")
    class Squared(AdaptationMethod):
        def loss(self, logits):
            return logits.square().mean()

    method = setup_model(network(), load_cfg(None, ["MODEL.ADAPTATION", "squared", "OPTIM.LR", 0.01]))
    x = images(16, 1)
    first = method(x).square().mean()
    for _ in range(10):
        last = method(x).square().mean()
    assert isinstance(method, Squared) and last < first
    assert "squared" in registry.registered_names()


def test_the_class_gives_the_name_where_none_is_given(registry):
    @registry.register()
    class MyMethod(AdaptationMethod):
        pass

    assert registry.get("mymethod") is registry.get("MyMethod") is MyMethod


def test_a_method_without_a_loss_says_so(registry):
    with pytest.raises(NotImplementedError, match="AdaptationMethod updates parameters but has no loss"):
        AdaptationMethod(network())(torch.rand(4, 3, 8, 8))


def test_a_taken_name_is_refused_and_the_same_object_twice_is_not(registry):
    with pytest.raises(UserError, match="adaptation method 'tent' is already registered"):

        @registry.register("Tent")
        class Other(AdaptationMethod):
            pass

    tent = registry.get("tent")
    assert registry.register("tent")(tent) is tent


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match=r"unknown adaptation method 'catan'\. Did you mean 'cattan'\?.*tent_plus"):
        setup_model(network(), load_cfg(None, ["MODEL.ADAPTATION", "catan"]))
    with pytest.raises(UserError, match=r"unknown thing 'xyz'\. Registered: $"):
        Registry("thing").get("xyz")
