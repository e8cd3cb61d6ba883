"""Corruptions as a whole: names, determinism, severities, noise statistics, mistakes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from pictures import at, flat, mean_squared_error, scene

from tta_cattan.bench.data.corruptions import (
    COMMON,
    EXTRA,
    SEVERITIES,
    corrupt_batch,
    corruption,
    image_rng,
)
from tta_cattan.bench.data.corruptions.strengths import STRENGTHS
from tta_cattan.util.errors import UserError

ALL = COMMON + EXTRA
TABLES = ("cifar", "imagenet")
# By design the others change in kind, not only in strength, from some severity to the next: less displacement but
# rougher, less colour then more, wider glass but fewer rounds, more ice but less picture, mud instead of water.
MONOTONE = tuple(
    name for name in ALL if name not in ("elastic_transform", "saturate", "glass_blur", "frost", "spatter")
)
# Between severities 3 and 4 these strengths differ in what hardly shows: the length of a kernel that has already faded
# out, and the roughness of a fog of the same thickness.
PLATEAUS = (("motion_blur", "cifar"), ("fog", "imagenet"))


def test_names_are_the_benchmarks_in_their_order() -> None:
    assert " ".join(COMMON) == (
        "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow frost fog "
        "brightness contrast elastic_transform pixelate jpeg_compression"
    )
    assert " ".join(EXTRA) == "speckle_noise gaussian_blur spatter saturate"
    for table in TABLES:
        assert set(STRENGTHS[table]) == set(ALL)
        assert all(len(levels) == len(SEVERITIES) for levels in STRENGTHS[table].values())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("table", TABLES)
def test_a_pure_function_of_image_and_generator(name: str, table: str) -> None:
    image = scene(48)[:, :40]
    before = image.copy()
    for severity in SEVERITIES:
        first = at(image, name, severity, table)
        assert first.shape == image.shape and first.dtype == np.uint8
        assert not np.shares_memory(first, image)
        np.testing.assert_array_equal(first, at(image, name, severity, table))
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize("name", ALL)
def test_batch_equals_single_images(name: str) -> None:
    images = np.stack([scene(32, seed) for seed in range(6)])
    for severity in (1, 5):
        batch = corrupt_batch(images, name, severity, strengths="cifar", seed=3)
        for index, (image, corrupted) in enumerate(zip(images, batch, strict=True)):
            alone = corruption(name, severity, "cifar")(image, image_rng(name, severity, index, 3))
            np.testing.assert_array_equal(alone, corrupted)


def test_images_of_a_batch_have_noise_of_their_own() -> None:
    noisy = corrupt_batch(np.stack([flat(128, 32)] * 3), "gaussian_noise", 1, strengths="cifar")
    assert not np.array_equal(noisy[0], noisy[1])


def test_generators_differ_in_each_part_of_their_identity_and_never_change() -> None:
    draws = [
        image_rng(*identity).integers(2**62)
        for identity in [("fog", 1, 0, 0), ("snow", 1, 0, 0), ("fog", 2, 0, 0), ("fog", 1, 1, 0), ("fog", 1, 0, 1)]
    ]
    assert len(set(draws)) == len(draws)
    # A change here would change every image that users have made.
    assert draws[0] == 2219606961060110475


@pytest.mark.parametrize("name", MONOTONE)
@pytest.mark.parametrize("table", TABLES)
def test_distortion_grows_with_severity(name: str, table: str) -> None:
    side, copies = (32, 40) if table == "cifar" else (128, 4)
    severities = (1, 2, 3, 5) if (name, table) in PLATEAUS else SEVERITIES
    # Shifted, so that no edge happens to lie on the grid of pixelate or of jpeg_compression.
    images = np.stack([np.roll(scene(side), (3 * i, 5 * i), axis=(0, 1)) for i in range(copies)])
    errors = [
        mean_squared_error(corrupt_batch(images, name, severity, strengths=table), images) for severity in severities
    ]
    assert all(weaker < stronger for weaker, stronger in pairwise(errors)), errors


@pytest.mark.parametrize("name", ALL)
def test_every_severity_distorts(name: str) -> None:
    image = scene(32)
    assert all(mean_squared_error(at(image, name, severity, "imagenet"), image) > 5 for severity in SEVERITIES)


def test_gaussian_noise_has_its_standard_deviation() -> None:
    for severity, scale in zip(SEVERITIES, (0.04, 0.06, 0.08, 0.09, 0.10), strict=True):
        noisy = at(flat(128), "gaussian_noise", severity, "cifar")
        assert noisy.std() == pytest.approx(255 * scale, rel=0.03)
        assert noisy.mean() == pytest.approx(127.5, abs=0.6)  # 128, truncated


def test_shot_noise_has_the_variance_of_a_photon_count() -> None:
    for value in (40, 120):
        noisy = at(flat(value), "shot_noise", 3, "cifar")
        assert noisy.var() == pytest.approx(255**2 * (value / 255) / 100, rel=0.05)


def test_speckle_noise_is_in_proportion_to_the_brightness() -> None:
    for value in (60, 120):
        noisy = at(flat(value), "speckle_noise", 3, "imagenet")
        assert noisy.std() == pytest.approx(0.35 * value, rel=0.04)


def test_impulse_noise_hits_its_share_of_values_half_of_them_white() -> None:
    noisy = at(flat(128, 160), "impulse_noise", 5, "imagenet")
    hit = noisy != 128
    assert hit.mean() == pytest.approx(0.27, rel=0.03)
    assert set(np.unique(noisy)) == {0, 128, 255}
    assert (noisy[hit] == 255).mean() == pytest.approx(0.5, abs=0.02)
    assert not np.array_equal(hit[..., 0], hit[..., 1])


@pytest.mark.parametrize(
    "images, name, severity, message",
    [
        (flat(0)[None], "gausian_noise", 1, "'gausian_noise': must be one of .* Did you mean 'gaussian_noise'"),
        (flat(0)[None], "fog", 0, "severity = '0': must be one of 1, 2, 3, 4, 5"),
        (flat(0)[None], "fog", 1.0, "severity = '1.0'"),
        (flat(0)[None] / 255, "fog", 1, "images is float64"),
        (flat(0)[None, ..., 0], "fog", 1, r"of shape \(1, 96, 96\)"),
        (flat(0).transpose(2, 0, 1)[None], "fog", 1, r"of shape \(1, 3, 96, 96\)"),
        (flat(0), "fog", 1, r"of shape \(96, 96, 3\): it must be uint8 of shape N x N x N x 3"),
        (flat(0, 8)[None], "fog", 1, "sides from 16 pixels on"),
    ],
)
def test_mistakes_name_the_thing_the_value_and_the_remedy(
    images: np.ndarray, name: str, severity: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        corrupt_batch(images, name, severity, strengths="cifar")
