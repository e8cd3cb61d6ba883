"""What every method can have: the mirror image, and the target's classes."""

from __future__ import annotations

import pytest
import torch
from small_networks import ADAPTING, METHODS, N_CLASSES, build, images, network, run, target_batches

from tta_cattan.alignment import classes, fit_class_structure, fit_subspace, may_be_balanced
from tta_cattan.network.inputs import with_mirror_images
from tta_cattan.util.errors import UserError

each_method = pytest.mark.parametrize("name", METHODS)


@each_method
def test_the_mirror_makes_one_prediction_of_two_views(name):
    method, plain = (build(name, mirror=mirror, lr=0.0) for mirror in (True, False))
    for each in (method, plain):
        each.statistics = "source" if name == "source" else "batch"
    x = images(8, 5)
    both = plain.predict(torch.cat([x, torch.from_numpy(x.numpy()[..., ::-1].copy())])).double().softmax(1)
    mean = (both[:8] + both[8:]) / 2
    torch.testing.assert_close(method.predict(x).double().exp(), mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(method.predict(x.flip(-1)), method.predict(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match=r"cannot be folded"):
        method.fold()


@pytest.mark.parametrize("name", [name for name in ADAPTING if name != "ip"])  # whose convolutions see left and right
@pytest.mark.parametrize("protocol", ["offline", "online"])
def test_adaptation_sees_the_mean_of_both_views(name, protocol):
    def adapted(flip):
        method = build(name, mirror=True, lr=0.02)
        batches = [(indices, x.flip(-1) if flip else x) for indices, x in target_batches()]
        return run(method, protocol, batches)

    torch.testing.assert_close(adapted(False), adapted(True), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("mirror", [True, False])
def test_one_image_is_normalised_by_the_sources_statistics(mirror):
    x = images(1, 5)
    method, source = (build("tent", mirror=mirror, lr=0.0, statistics=mode) for mode in ("blend", "source"))
    torch.testing.assert_close(method.predict(x), source.predict(x), rtol=0, atol=0)
    torch.testing.assert_close(method(x), source(x), rtol=0, atol=0)
    assert not torch.equal(method.predict(images(2, 5)), source.predict(images(2, 5))), "two have their own"


def test_what_is_no_image_is_not_mirrored():
    with pytest.raises(UserError, match=r"shape \(4, 7\).*MIRROR False"):
        with_mirror_images(torch.zeros(4, 7))


def adapted(name, **options):
    """Return a method after the offline protocol."""
    method = build(name, **options)
    run(method, "offline")
    return method


@each_method
@pytest.mark.parametrize("mirror", [True, False])
def test_in_the_end_predictions_know_the_targets_classes(name, mirror):
    change = 0.0 if name == "source" else 0.05  # nothing changes in the source model
    method = adapted(name, mirror=mirror, classes=True, class_change=change)
    plain = adapted(name, mirror=mirror, classes=False, class_change=change)
    plain.classifier = "fc"
    seen = [plain.logits_and_head_input(x, adapting=False) for _, x in target_batches()]
    logits, features = torch.cat([y for y, _ in seen]), torch.cat([z for _, z in seen])
    basis = fit_subspace(features, min(64, len(features) - 1, features.shape[1])).basis
    source = build("source", mirror=mirror)
    before = torch.cat([source.predict(x) for _, x in target_batches()])
    changed = (before.argmax(1) != logits.argmax(1)).double().mean().item()
    assert method.describe()["changed"] == changed
    rho = len(logits) / (len(logits) + 10 * N_CLASSES) * (changed**2 / (changed**2 + change**2) if change else 1.0)
    level = 0.5 * rho if may_be_balanced(logits) else 0.0
    weight, offset, temperature = fit_class_structure(features @ basis, logits, rho, 0.3, level)
    expected = temperature * (logits + features @ basis @ weight + offset)
    found = torch.cat([method.predict(x) for _, x in target_batches()])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert changed == 0 or not torch.allclose(found, logits, atol=1e-3)


@each_method
def test_the_targets_classes_go_with_reset_and_travel_with_the_state(name):
    method, x = adapted(name, classes=True), images(8, 5)
    with_classes = method.predict(x)
    fresh = build(name, classes=True)
    fresh.load_state_dict(method.state_dict(), strict=True)
    torch.testing.assert_close(fresh.predict(x), with_classes, rtol=0, atol=0)
    fresh.load_state_dict(build(name, classes=True).state_dict(), strict=True)
    assert fresh.target.classes is None
    method.reset()
    torch.testing.assert_close(method.predict(x), build(name).predict(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["source", "tent", "shot", "cattan", "cattan_plus"])
def test_the_classes_fold_into_the_classifier(name):
    method = adapted(name, classes=True, statistics="source", class_change=0.0)
    plain = method.fold()
    assert type(plain) is type(network()) and method.target.classes is not None
    for _, x in target_batches(seed=8):
        torch.testing.assert_close(plain(x), method.predict(x), rtol=1e-3, atol=1e-3)


def test_what_is_not_finite_has_no_say_in_the_classes():
    method, batches = adapted("tent", classes=True, statistics="source"), target_batches()
    expected = method.target.classes.weight.clone()
    spoilt = images(1, 9).fill_(float("nan"))
    method.finish([*batches, (torch.tensor([len(batches)]), spoilt)])
    torch.testing.assert_close(method.target.classes.weight, expected, rtol=1e-4, atol=1e-5)
    method.finish([(torch.tensor([0]), spoilt)])
    assert method.target.classes is None


def test_where_nothing_changed_the_classes_are_not_heard():
    method = adapted("tent", lr=0.0, classes=True, statistics="source")
    assert method.describe()["changed"] == 0.0
    for _, x in target_batches():
        torch.testing.assert_close(method.predict(x), method.infer(x, adapting=False))


def test_what_comes_after_the_first_samples_is_projected(monkeypatch):
    monkeypatch.setattr(classes, "FITTED_TO", 16)
    torch.manual_seed(0)
    logits, features = torch.randn(40, 3), torch.randn(40, 6)
    monkeypatch.setattr(classes, "DIRECTIONS", 2)
    samples = classes.TargetSamples()
    for part in torch.arange(40).split(8):
        samples.add(logits[part], features[part])
    basis = fit_subspace(features[:16], 2).basis
    torch.testing.assert_close(samples.coordinates(), features @ basis, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(samples.logits(), logits, rtol=0, atol=0)


@each_method
def test_as_source_it_is_the_source_model_and_then_itself_again(name):
    method, x = adapted(name), images(8, 5)
    own = method.predict(x)
    with method.as_source():
        torch.testing.assert_close(method.predict(x), build("source").predict(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(method.predict(x), own, rtol=0, atol=0)
