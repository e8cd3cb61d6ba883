"""Whitening and colouring against numpy; the source's moments, and the file in which they travel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_networks import images, network
from torch import nn

from tta_cattan import SourceMoments, UserError, fit_source_moments
from tta_cattan.alignment.recolouring import (
    Moments,
    Signature,
    image_moments,
    matrix_power,
    recolouring,
    sampled,
    shift_weight,
    with_ridge,
)
from tta_cattan.network.normalization import jeffreys_divergence


def rows(n, seed, channels=5, positions=7):
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(channels, channels))
    values = np.einsum("ncp,cd->ndp", rng.normal(size=(n, channels, positions)), mixed) + rng.normal(size=(channels, 1))
    return torch.from_numpy(values).float()


def flat(values):
    """Return samples x channels in float64."""
    return values.transpose(1, 2).flatten(0, 1).double().numpy()


@pytest.mark.parametrize("full", [True, False])
def test_merged_batches_have_the_moments_of_the_whole(full):
    parts = [rows(n, seed) for seed, n in enumerate((9, 1, 30))]
    found, count = Moments.zeros(5, full, torch.device("cpu")), 0
    for part in parts:
        count += len(part)
        assert found.absorb(part, len(part) / count)
    whole = flat(torch.cat(parts))
    cov = np.cov(whole.T, bias=True)
    np.testing.assert_allclose(found.mean.numpy(), whole.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.cov.numpy(), cov if full else np.diag(cov), rtol=1e-4, atol=1e-4)


def test_the_noise_is_the_variance_over_the_images():
    x = rows(40, 3)
    found = Moments.zeros(5, True, torch.device("cpu"))
    found.absorb(x, 1.0)
    values = x.double().numpy()
    means = values.mean(2)
    squares = ((values - means.mean(0)[:, None]) ** 2).mean(2)
    np.testing.assert_allclose(found.mean_noise.numpy(), means.var(0), rtol=1e-4)
    np.testing.assert_allclose(found.var_noise.numpy(), squares.var(0), rtol=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e12])
def test_what_cannot_be_squared_twice_is_left_out(bad):
    found = Moments.zeros(5, True, torch.device("cpu"))
    found.absorb(rows(8, 1), 1.0)
    before, spoilt = found.cov, rows(8, 2)
    spoilt[3] = bad
    assert not found.absorb(spoilt, 0.5)
    assert found.cov is before


def test_recolouring_gives_the_moments_of_the_source():
    target, source = Moments.zeros(5, True, torch.device("cpu")), Moments.zeros(5, True, torch.device("cpu"))
    x, y = rows(4000, 1), rows(4000, 2)
    target.absorb(x, 1.0), source.absorb(y, 1.0)
    colour = matrix_power(with_ridge(source.cov), 0.5)
    linear, shift = recolouring(target, source.mean, source.cov, colour, 1.0, 1e9)
    moved = flat(x) @ linear.double().numpy() + shift.double().numpy()
    # T^T (V + r I) T = C + r' I exactly; the ridges are half a per cent of the mean variance.
    v, c = np.cov(flat(x).T, bias=True), np.cov(flat(y).T, bias=True)
    ridge = lambda m: m + 0.005 * np.trace(m) / 5 * np.eye(5)  # noqa: E731
    t = linear.double().numpy()
    np.testing.assert_allclose(t.T @ ridge(v) @ t, ridge(c), atol=1e-3 * np.trace(c))
    np.testing.assert_allclose(moved.mean(0), flat(y).mean(0), atol=1e-3)
    linear, shift = recolouring(target, source.mean, source.cov, colour, 0.0, 1e9)
    torch.testing.assert_close(linear, torch.eye(5), atol=1e-4, rtol=0)
    torch.testing.assert_close(shift, torch.zeros(5), atol=1e-4, rtol=0)


def test_the_weight_is_nothing_at_the_source_and_nears_one_far_away():
    found = Moments.zeros(5, False, torch.device("cpu"))
    found.absorb(rows(200, 1), 1.0)
    assert shift_weight(found, found.mean, found.var, 200, 0.0, 0.02) == 0
    mean, var = found.mean + 1, 2 * found.var
    distance = jeffreys_divergence(found.mean, found.var, mean, var).item()
    quiet = Moments(found.mean, found.cov, torch.zeros(5), torch.zeros(5))
    assert shift_weight(quiet, mean, var, 200, 0.0, 0.02) == pytest.approx(distance / (distance + 0.02), rel=1e-3)
    assert shift_weight(quiet, mean, var, 200, 0.1, 0.02) == pytest.approx(
        (distance - 0.1) / (distance + 0.02), rel=1e-3
    )
    assert shift_weight(found, mean, var, 200, 0.0, 0.02) < shift_weight(quiet, mean, var, 200, 0.0, 0.02)
    assert shift_weight(quiet, mean, var, 200, 1e9, 0.02) == 0


def test_positions_are_sampled_evenly():
    x = torch.randn(2, 3, 64, 20)
    assert torch.equal(sampled(x), x[:, :, ::4, ::2].flatten(2))
    assert sampled(torch.randn(2, 3)).shape == (2, 3, 1) and sampled(torch.randn(2, 3, 1024)).shape == (2, 3, 256)
    means, variances = image_moments(x.flatten(2))
    torch.testing.assert_close(means, x.mean((2, 3)))
    torch.testing.assert_close(variances, x.flatten(2).var(2, correction=0), atol=1e-5, rtol=1e-4)


def fitted():
    return fit_source_moments(network(), images(200, 3).split(50), provenance={"data": "ramps"})


def test_the_source_is_measured_where_the_layers_take_it_in():
    net, x = network(), images(200, 3)
    found = fitted()
    wanted = flat(net.conv1(x).detach().flatten(2))
    np.testing.assert_allclose(found.mean["norm1"], wanted.mean(0), atol=1e-4)
    np.testing.assert_allclose(found.cov["norm1"], np.cov(wanted.T, bias=True), atol=1e-4)
    assert found.count == 200 and found.classes.keys() == {"norm1", "norm2"} and len(found.first.mean) == 12
    few = fit_source_moments(network(), [x], channels=6)
    assert few.cov.keys() == {"norm1"} and few.classes.keys() == {"norm1", "norm2"}


def test_a_file_and_back(tmp_path):
    source = fitted()
    source.save(tmp_path / "m.safetensors")
    other = SourceMoments.load(tmp_path / "m.safetensors")
    assert (other.count, other.provenance) == (200, {"data": "ramps"})
    assert source.tensors().keys() == other.tensors().keys()
    assert all(torch.equal(value, other.tensors()[name]) for name, value in source.tensors().items())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t, h: t.pop("first.whitener"), "is damaged"),
        (lambda t, h: t.update({"cov.norm1": torch.eye(3)}), "do not fit each other"),
        (lambda t, h: t.update({"mean.norm1": torch.full((6,), float("nan"))}), "holds NaN or Inf"),
        (lambda t, h: t.update({"other": torch.eye(3)}), "is damaged"),
        (lambda t, h: t["cov.norm1"].neg_(), "do not fit each other"),
        (lambda t, h: h.update(count="-1"), "its count is -1"),
        (lambda t, h: h.update(format="tta-cattan-subspace-2"), "but not a moments file"),
    ],
)
def test_a_spoilt_file_is_refused(tmp_path, spoil, words):
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = tmp_path / "m.safetensors"
    fitted().save(path)
    with safe_open(path, framework="pt") as file:
        tensors, header = {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118
    spoil(tensors, header)
    save_file(tensors, path, metadata=header)
    with pytest.raises(UserError, match=words):
        SourceMoments.load(path)


def test_source_data_that_cannot_serve_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        SourceMoments.load(tmp_path / "none")
    (tmp_path / "text").write_text("no")
    with pytest.raises(UserError, match="is not a moments file"):
        SourceMoments.load(tmp_path / "text")
    with pytest.raises(UserError, match="hold NaN or Inf"):
        fit_source_moments(network(), [torch.full((4, 3, 8, 8), float("nan"))])
    with pytest.raises(UserError, match="source images given: 1;"):
        fit_source_moments(network(), [images(1, 0)])
    with pytest.raises(UserError, match="no BatchNorm"):
        fit_source_moments(nn.Sequential(nn.Conv2d(3, 3, 1)), [images(4, 0)])


def test_the_whitening_of_signatures_does_not_depend_on_their_units():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6)) + 3
    cov = np.cov(rows.T)
    wanted = np.linalg.inv(cov + 1e-3 * np.diag(np.diag(cov)))
    found = Signature.of(torch.from_numpy(rows).float())
    precision = (found.whitener @ found.whitener.T).numpy()
    np.testing.assert_allclose(precision, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
    units = np.array([300.0, 300.0, 300.0, 1.0, 1.0, 0.01])  # pixels times 255 beside log standard deviations
    other = Signature.of(torch.from_numpy(rows * units).float())
    scaled = (other.whitener @ other.whitener.T).numpy() * np.outer(units, units)
    np.testing.assert_allclose(scaled, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


def test_a_signature_keeps_the_main_directions_of_many():
    rng = np.random.default_rng(1)
    rows = torch.from_numpy(rng.normal(size=(900, 70)) @ rng.normal(size=(70, 100))).float()
    found = Signature.of(rows)
    coordinates = found.coordinates(rows)
    assert coordinates.shape == (900, 64)
    np.testing.assert_allclose(np.cov(coordinates.numpy().T), np.eye(64), atol=0.02)
    np.testing.assert_allclose(coordinates.mean(0), 0, atol=1e-3)
    values = np.linalg.eigvalsh(np.corrcoef(rows.numpy().T))[-64:]
    scaled = found.whitener.double() * rows.double().std(0)[:, None]
    np.testing.assert_allclose(np.sort(1 / scaled.square().sum(0).numpy()), values + 1e-3, rtol=1e-3)
