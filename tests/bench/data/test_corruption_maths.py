"""Blurs, weather and digital corruptions against their formulas and independent computations."""

from __future__ import annotations

import colorsys
import math
from io import BytesIO

import numpy as np
import pytest
from pictures import at, flat, mean_squared_error, scene
from PIL import Image
from scipy import ndimage

from tta_cattan.bench.data.corruptions import SEVERITIES, corrupt_batch, functions
from tta_cattan.bench.data.corruptions.functions import (
    _water_shading,
    canny,
    disk_kernel,
    equalise,
    grow_texture,
    plasma_fractal,
    streak,
    zoom_centre,
)
from tta_cattan.bench.data.corruptions.strengths import STRENGTHS

TABLES = ("cifar", "imagenet")
BLURS = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur")


@pytest.mark.parametrize("name", BLURS)
@pytest.mark.parametrize("table", TABLES)
def test_blurs_leave_a_flat_image_as_it_is(name: str, table: str) -> None:
    image = np.empty((64, 64, 3), dtype=np.uint8)
    image[:] = (255, 128, 1)
    for severity in SEVERITIES:
        np.testing.assert_array_equal(at(image, name, severity, table), image)


@pytest.mark.parametrize(
    "radius, alias_blur", STRENGTHS["cifar"]["defocus_blur"] + STRENGTHS["imagenet"]["defocus_blur"]
)
def test_defocus_kernel_sums_to_one_and_is_symmetric(radius: float, alias_blur: float) -> None:
    kernel = disk_kernel(radius, alias_blur)
    assert kernel.sum() == pytest.approx(1, abs=1e-12)
    assert kernel.min() >= 0
    np.testing.assert_allclose(kernel, kernel.T, atol=1e-15)
    np.testing.assert_allclose(kernel, kernel[::-1], atol=1e-15)


def test_defocus_turns_a_point_into_its_kernel() -> None:
    image = np.zeros((64, 64, 3), dtype=np.uint8)
    image[30, 20] = 255
    blurred = at(image, "defocus_blur", 1, "imagenet")[..., 0]
    assert (blurred > 1).sum() == sum(y * y + x * x <= 9 for y in range(-3, 4) for x in range(-3, 4))
    assert blurred[30, 20] == blurred[33, 20] == blurred[30, 17] > 0
    assert blurred[34, 20] == 0


def test_streak_is_half_of_a_gaussian_along_its_direction() -> None:
    point = np.zeros((21, 21))
    point[10, 15] = 1
    weights = np.array([math.exp(-(i**2) / 8) for i in range(9)])
    expected = np.zeros((21, 21))
    expected[10, 15:6:-1] = weights / weights.sum()
    np.testing.assert_allclose(streak(point, radius=4, sigma=2, angle=0), expected, atol=1e-15)
    np.testing.assert_allclose(streak(point.T, radius=4, sigma=2, angle=90), expected.T, atol=1e-15)


@pytest.mark.parametrize("size, factor", [(32, 1.0), (32, 1.07), (32, 2.25), (224, 1.12), (50, 4.5)])
def test_zoom_equals_that_of_scipy(size: int, factor: float) -> None:
    plane = np.random.default_rng(0).random((size, size + 6))
    crops = [math.ceil(side / factor) for side in plane.shape]
    y, x = ((side - crop) // 2 for side, crop in zip(plane.shape, crops, strict=True))
    zoomed = ndimage.zoom(plane[y : y + crops[0], x : x + crops[1]], factor, order=1)
    y, x = ((large - side) // 2 for large, side in zip(zoomed.shape, plane.shape, strict=True))
    expected = zoomed[y : y + plane.shape[0], x : x + plane.shape[1]]
    np.testing.assert_allclose(zoom_centre(plane, factor), expected, atol=1e-12)


def test_glass_blur_moves_pixels_within_reach_only() -> None:
    # At this severity the Gaussian is narrower than a pixel and only the wandering is left.
    row = np.arange(64, dtype=np.uint8)
    image = np.repeat(np.broadcast_to(row, (64, 64))[..., None], 3, axis=2).copy()
    moved = at(image, "glass_blur", 1, "cifar").astype(int)
    assert np.abs(moved - image).max() >= 1
    np.testing.assert_array_equal(moved[:2], image[:2])
    np.testing.assert_array_equal(moved[:, :2], image[:, :2])
    shares = [np.mean(moved[2:, 2:] - image[2:, 2:] == shift) for shift in (-1, 0)]
    assert shares[0] > 0.3 and shares[1] > 0.1


@pytest.mark.parametrize("decay", [1.4, 3.0])
def test_plasma_fills_the_unit_interval_with_noise_that_decays_from_scale_to_scale(decay: float) -> None:
    land = plasma_fractal(256, decay, np.random.default_rng(0))
    assert land.min() == 0 and land.max() == 1

    def surprise(step: int) -> float:
        """Return how far the centres of squares are from the mean of their corners."""
        corners = land[::step, ::step]
        mean = sum(np.roll(corners, (-down, -right), axis=(0, 1)) for down in (0, 1) for right in (0, 1)) / 4
        return float(np.std(land[step // 2 :: step, step // 2 :: step] - mean))

    assert surprise(4) / surprise(2) == pytest.approx(decay**2, rel=0.03)


def test_fog_keeps_the_range_of_the_image() -> None:
    # On a side that is a power of two the whole landscape is seen, from its lowest point to its highest.
    foggy = at(flat(200, 64), "fog", 3, "imagenet")
    assert foggy.max() == 200
    assert foggy.min() == pytest.approx(200 * (200 / 255) / (200 / 255 + 2.5), abs=1)


def test_snow_whitens_and_falls() -> None:
    snowy = at(flat(60), "snow", 3, "imagenet")
    background = 0.7 * 60 + 0.3 * (1.5 * 60 + 127.5)
    assert snowy.min() == pytest.approx(background, abs=2)
    assert snowy.mean() > background + 3
    np.testing.assert_array_equal(snowy, snowy[::-1, ::-1])


def test_grown_frost_is_bluish_white_and_added_with_its_weights() -> None:
    black = corrupt_batch(np.stack([flat(0, 64)] * 100), "frost", 3, strengths="imagenet") / (0.7 * 255)
    assert black.mean() == pytest.approx(0.63, abs=0.05)
    assert 0.06 < black.mean(axis=-1).std(axis=(1, 2)).mean() < 0.12
    red, green, blue = black.mean(axis=(0, 1, 2))
    assert red < green < blue
    grey = at(flat(50, 64), "frost", 3, "imagenet")
    np.testing.assert_allclose(grey, 50 * 0.7 + black[0] * 0.7 * 255, atol=1.01)


def test_frost_grown_for_small_images_is_the_large_texture_sampled() -> None:
    def roughness(textures: list[np.ndarray]) -> float:
        return float(np.mean([np.abs(np.diff(texture.mean(axis=-1), axis=0)).mean() for texture in textures]))

    rng = np.random.default_rng(0)
    sampled = [grow_texture((160, 160), 1.0, rng)[2::5, 2::5] for _ in range(60)]
    small = [grow_texture((32, 32), 0.2, rng) for _ in range(60)]
    assert roughness(small) == pytest.approx(roughness(sampled), rel=0.12)


def test_brightness_and_saturate_equal_the_standard_library_in_hsv() -> None:
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    image[0, :4] = [[0, 0, 0], [77, 77, 77], [255, 255, 255], [255, 0, 0]]
    for severity in SEVERITIES:
        shift = STRENGTHS["imagenet"]["brightness"][severity - 1][0]
        gain, offset = STRENGTHS["imagenet"]["saturate"][severity - 1]
        lighter, stronger = np.empty(image.shape), np.empty(image.shape)
        for index in np.ndindex(16, 16):
            h, s, v = colorsys.rgb_to_hsv(*(image[index] / 255))
            lighter[index] = colorsys.hsv_to_rgb(h, s, min(v + shift, 1))
            stronger[index] = colorsys.hsv_to_rgb(h, min(max(gain * s + offset, 0), 1), v)
        np.testing.assert_array_equal(at(image, "brightness", severity, "imagenet"), np.floor(lighter * 255 + 1e-6))
        np.testing.assert_array_equal(at(image, "saturate", severity, "imagenet"), np.floor(stronger * 255 + 1e-6))


def test_contrast_shrinks_towards_the_mean_of_each_channel() -> None:
    image = scene(32)
    mean = image.reshape(-1, 3).mean(axis=0)
    np.testing.assert_allclose(at(image, "contrast", 2, "cifar"), 0.5 * image + 0.5 * mean - 0.5, atol=0.51)


def test_pixelate_of_half_the_size_is_the_mean_of_blocks() -> None:
    image = scene(32)
    blocks = image.reshape(16, 2, 16, 2, 3).mean(axis=(1, 3))
    expected = blocks.repeat(2, axis=0).repeat(2, axis=1)
    np.testing.assert_allclose(at(image, "pixelate", 2, "imagenet"), expected, atol=1)


def test_jpeg_compression_is_a_file_of_that_quality() -> None:
    image = scene(32)
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=40)
    np.testing.assert_array_equal(at(image, "jpeg_compression", 5, "cifar"), np.asarray(Image.open(file)))


def test_elastic_transform_without_corner_shift_or_field_is_the_identity() -> None:
    image = scene(32)
    function = functions.elastic_transform
    np.testing.assert_allclose(function(image / 255, np.random.default_rng(0), 0, 1, 0), image / 255, atol=1e-12)


def test_elastic_field_has_the_size_of_smoothed_noise() -> None:
    # On a ramp, brightness tells the column that a pixel came from.
    ramp = np.broadcast_to(np.arange(200.0)[None, :, None], (200, 200, 3))
    function = functions.elastic_transform
    moved = np.stack([function(ramp, np.random.default_rng(seed), 20, 3, 0) for seed in range(6)])
    shift = (moved - ramp)[:, 20:-20, 20:-20, 0]
    assert shift.std() == pytest.approx(20 / math.sqrt(3) / (2 * 3 * math.sqrt(math.pi)), rel=0.06)


def test_elastic_transform_moves_pixels_and_makes_no_new_colours() -> None:
    image = scene(64)
    warped = at(image, "elastic_transform", 5, "imagenet")
    assert mean_squared_error(warped, image) > 20
    for channel in range(3):
        assert warped[..., channel].min() >= image[..., channel].min()
        assert warped[..., channel].max() <= image[..., channel].max()


def test_spatter_of_mud_covers_with_brown_and_water_only_adds_light() -> None:
    image = scene(64)
    muddy = at(image, "spatter", 5, "imagenet")
    covered = np.any(muddy != image, axis=-1)
    assert 0.05 < covered.mean() < 0.9
    brown = np.array([63, 42, 20])
    assert np.all(np.abs(muddy - brown)[covered] <= 0.2 * np.abs(image - brown)[covered] + 1)
    wet = at(image, "spatter", 2, "imagenet").astype(int)
    assert np.all(wet >= image) and np.any(wet > image + 20)


def test_water_is_shaded_from_the_distance_to_its_outline() -> None:
    liquid = ndimage.gaussian_filter(np.random.default_rng(0).normal(0.65, 0.3, (64, 64)), 2)
    liquid[liquid < 0.68] = 0
    depth = (liquid * 255).astype(np.uint8)

    def window_sum(plane: np.ndarray, weights: np.ndarray) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(plane, 1, mode="reflect"), (3, 3))
        return (windows * weights).sum(axis=(2, 3))

    outline = np.argwhere(canny(depth, 50, 150))
    squares = ((np.argwhere(depth >= 0)[:, None] - outline[None]) ** 2).sum(axis=-1).min(axis=1)
    distance = np.minimum(np.sqrt(squares), 20).reshape(64, 64)
    height = equalise((window_sum(distance, np.ones((3, 3))) / 9).astype(np.uint8)).astype(int)
    lit = np.clip(window_sum(height, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])), 0, 255)
    expected = depth * np.round(window_sum(lit, np.ones((3, 3))) / 9)
    np.testing.assert_allclose(_water_shading(liquid), expected / expected.max(), atol=1e-12)


def test_canny_finds_the_outline_of_a_square_and_nothing_in_a_plain() -> None:
    square = np.zeros((20, 20), dtype=np.uint8)
    square[5:15, 5:15] = 200
    edges = canny(square, 50, 150)
    assert edges[4:6, 8].sum() == 1 and edges[8, 14:16].sum() == 1
    assert not edges[7:13, 7:13].any() and not edges[:3].any()
    assert not canny(square // 50, 50, 150).any()


def test_equalise_spreads_levels_evenly() -> None:
    image = np.repeat(np.array([10, 20, 30, 40, 50, 60], dtype=np.uint8), 4).reshape(4, 6)
    np.testing.assert_array_equal(np.unique(equalise(image)), [0, 51, 102, 153, 204, 255])
    np.testing.assert_array_equal(equalise(flat(7)[..., 0]), flat(7)[..., 0])
