"""Geometry of point clouds, parametric shapes and shifts: checked by what they must keep and what they must change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tta_cattan.bench.data.clouds import (
    JITTER,
    MOST_JITTER,
    SHAPES,
    SHIFTS,
    Shape,
    add_noise,
    bend,
    drop_side,
    jitter,
    load_clouds,
    sample_shape,
    sample_surface,
    surface,
    take_points,
    thin_out,
    tilt,
    to_batch,
    to_unit_sphere,
    turn_about_z,
    y_up_to_z_up,
)
from tta_cattan.bench.models.checkpoints import read_checkpoint
from tta_cattan.bench.models.pointnet import PlainPointNet
from tta_cattan.util.errors import UserError


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture
def points(rng):
    return to_unit_sphere(sample_shape("cone", 300, rng))


def test_the_first_points_are_taken_and_repeated_where_there_are_too_few():
    cloud = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(take_points(cloud, 2), cloud[:2])
    np.testing.assert_array_equal(take_points(cloud, 9), np.concatenate([cloud, cloud, cloud[:1]]))


def test_the_unit_sphere_holds_a_cloud_whatever_its_place_and_size(rng):
    cloud = rng.normal(size=(50, 3))
    found = to_unit_sphere(7 * cloud + np.array([100, -20, 3]))
    mean = [sum(p[axis] for p in cloud) / 50 for axis in range(3)]
    radius = max(sum((p[axis] - mean[axis]) ** 2 for axis in range(3)) ** 0.5 for p in cloud)
    np.testing.assert_allclose(found, (cloud - mean) / radius, atol=1e-12)


def test_up_is_z_after_the_turn_and_left_and_right_are_not_exchanged():
    turn = y_up_to_z_up(np.eye(3)).T  # where the axes go, as columns
    np.testing.assert_array_equal(turn @ [0, 1, 0], [0, 0, 1])
    assert np.linalg.det(turn) == pytest.approx(1)
    # The public loader multiplies by this matrix, for an angle of -90 degrees.
    angle = -np.pi / 2
    public = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
    cloud = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(y_up_to_z_up(cloud), cloud @ public, atol=1e-12)


def test_turning_about_z_is_a_rotation_of_its_own_for_every_cloud(points):
    torch.manual_seed(0)
    clouds = to_batch([points, points])
    turned = turn_about_z(clouds)
    for before, after in zip(clouds.double(), turned.double(), strict=True):
        # The rotation that takes one to the other, by least squares.
        matrix = torch.linalg.lstsq(before.T, after.T).solution.T
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(3).double(), atol=1e-4, rtol=0)
        torch.testing.assert_close(matrix[2], torch.tensor([0.0, 0, 1]).double(), atol=1e-4, rtol=0)
        assert torch.det(matrix) > 0
    assert (turned[0] - turned[1]).abs().max() > 0.1


def test_jitter_is_small_and_random():
    torch.manual_seed(0)
    clouds = torch.zeros(4, 3, 2000)
    steps = jitter(clouds)
    assert steps.abs().max() <= MOST_JITTER and steps.std().item() == pytest.approx(JITTER, rel=0.05)
    assert not clouds.any(), "the clouds themselves stay as they are"


@pytest.mark.parametrize(
    ("name", "distance"),
    [
        ("sphere", lambda p: np.linalg.norm(p, axis=1) - 1),
        ("box", lambda p: np.maximum(np.abs(p[:, :2]).sum(1), np.abs(p[:, 2])) - 1),
        ("spindle", lambda p: np.linalg.norm(p[:, :2], axis=1) + np.abs(p[:, 2]) - 1),
        ("torus", lambda p: np.hypot(np.linalg.norm(p[:, :2], axis=1) - 0.65, p[:, 2]) - 0.35),
    ],
)
def test_points_lie_on_the_surface(rng, name, distance):
    found = sample_surface(surface(SHAPES[name]), 500, rng)
    # Round shapes are polygons of 24 sides: 1 - cos(pi / 24) inside.
    assert np.abs(distance(found)).max() < 0.02


def test_points_are_uniform_on_the_area(rng):
    found = sample_surface(surface(Shape(SHAPES["cylinder"].profile, 200)), 20000, rng)
    caps = np.mean(np.abs(found[:, 2]) > 1 - 1e-9)  # 2 pi r^2 of 2 pi r^2 + 2 pi r h, with r = 1 and h = 2
    assert caps == pytest.approx(1 / 3, abs=0.015)
    inner = np.linalg.norm(found[np.abs(found[:, 2]) > 1 - 1e-9, :2], axis=1) < 0.5
    assert inner.mean() == pytest.approx(1 / 4, abs=0.02)


def test_there_are_ten_shapes_and_no_two_are_alike(rng):
    assert len(SHAPES) == 10
    heights = {name: np.sort(to_unit_sphere(sample_surface(surface(s), 3000, rng))[:, 2]) for name, s in SHAPES.items()}
    radii = {
        name: np.sort(np.linalg.norm(sample_surface(surface(s), 3000, rng)[:, :2], axis=1))
        for name, s in SHAPES.items()
    }
    for one in SHAPES:
        for two in SHAPES:
            if one < two:
                assert max(np.abs(p[one] - p[two]).max() for p in (heights, radii)) > 0.05, (one, two)


@pytest.mark.parametrize("severity", [1, 5])
def test_noise_has_its_strength(points, rng, severity):
    steps = add_noise(np.repeat(points, 20, 0), severity, rng) - np.repeat(points, 20, 0)
    assert steps.std() == pytest.approx(0.02 * severity, rel=0.05)


@pytest.mark.parametrize("severity", [1, 5])
def test_what_is_missing_is_one_side(points, rng, severity):
    found = drop_side(points, severity, rng)
    assert found.shape == points.shape
    known = {tuple(p) for p in points}
    left = {tuple(p) for p in found}
    assert left <= known and len(left) == round(300 * (1 - 0.1 * severity))
    gone = np.array(sorted(known - left))
    assert max(y for _, y, _ in left) <= gone[:, 1].min()


@pytest.mark.parametrize("severity", [1, 5])
def test_a_tilt_turns_the_vertical_by_its_angle(rng, severity):
    matrix = tilt(np.eye(3), severity, rng).T
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(matrix) == pytest.approx(1)
    assert np.degrees(np.arccos(matrix[2, 2])) == pytest.approx(10 * severity)


@pytest.mark.parametrize("name", SHIFTS)
def test_a_shift_is_decided_by_its_generator(points, name):
    one, two = (SHIFTS[name](points, 3, np.random.default_rng(0)) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - points).max() > 0.1 and one.shape == points.shape


@pytest.mark.parametrize("severity", [1, 5])
def test_points_are_missing_around_one_of_them(points, rng, severity):
    found = thin_out(points, severity, rng)
    left = {tuple(p) for p in found}
    assert found.shape == points.shape and left <= {tuple(p) for p in points}
    assert len(left) == 300 - round(0.18 * severity * 150)
    gone = np.array([p for p in points if tuple(p) not in left])
    assert np.linalg.norm(gone - gone.mean(0), axis=1).mean() < np.linalg.norm(points - points.mean(0), axis=1).mean()


@pytest.mark.parametrize("severity", [1, 5])
def test_a_bend_is_bounded_and_moves_neighbours_alike(points, rng, severity):
    near = points + 1e-6
    one, two = (bend(p, severity, np.random.default_rng(0)) - p for p in (points, near))
    assert 0.04 * severity < np.abs(one).max() <= 0.05 * severity
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_modelnet10_is_read_shifted_and_checked(tmp_path, rng):
    x, y = rng.normal(size=(4, 30, 3)).astype(np.float16), np.array([0, 1, 9, 3], np.uint8)
    np.savez(tmp_path / "clouds.npz", x_test=x, y_test=y)
    clouds, labels = load_clouds(tmp_path / "clouds.npz", "test", 20).tensors
    assert labels.tolist() == y.tolist()
    for cloud, points in zip(clouds, x.astype(float), strict=True):
        np.testing.assert_allclose(cloud.T, to_unit_sphere(points[:20]), atol=1e-6)
    turned, _ = load_clouds(tmp_path / "clouds.npz", "test", 20, "tilt", 2).tensors
    np.testing.assert_allclose(turned[0].T, tilt(clouds[0].T.numpy(), 2, rng), atol=1e-5)
    np.savez(tmp_path / "flat.npz", x_test=x[..., :2], y_test=y)
    with pytest.raises(UserError, match=r"x_test in .*flat\.npz"):
        load_clouds(tmp_path / "flat.npz", "test", 20)


def test_the_public_pointnet_knows_modelnet10_except_for_its_sofas(real_data):
    ten = [1, 2, 8, 12, 14, 22, 23, 30, 33, 35]  # ModelNet10's classes among ModelNet40's
    weights = read_checkpoint(real_data("modelnet10/pointnet_modelnet40.safetensors"))
    model = PlainPointNet()
    cut = {name: tensor[ten] if name.startswith("linear3") else tensor for name, tensor in weights.items()}
    model.load_state_dict(cut, strict=False)
    x, y = load_clouds(real_data("modelnet10/modelnet10_1024.npz"), "test", 512).tensors
    with torch.no_grad():
        right = model.eval()(x[::6]).argmax(1) == y[::6]
    assert right.float().mean() > 0.7 and right[y[::6] == 7].float().mean() < 0.1
