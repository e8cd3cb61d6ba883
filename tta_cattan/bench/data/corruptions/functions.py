"""The 19 corruptions as functions of a float image, a random generator and strengths, and their building blocks."""

from __future__ import annotations

import math
from functools import lru_cache
from io import BytesIO
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage, signal

FloatImage: TypeAlias = NDArray[np.float64]  # in [0, 1]
ByteImage: TypeAlias = NDArray[np.uint8]
_TAN_22_5 = np.sqrt(2) - 1
# Measured on 224-pixel crops of the five photographs behind ImageNet-C: their grey mean (112 to 203 of 255), the
# standard deviation within a crop (35 for the darkest, 16 to 20 for the brightest), and their blue tint against grey.
_GREY_MEAN = (0.40, 0.86)
_CONTRAST = (0.135, 0.055)
_TINT = np.array([-0.065, 0.005, 0.060])
_WATER = np.array([175, 238, 238]) / 255
_MUD = np.array([63, 42, 20]) / 255
_LIT_FROM_TOP_LEFT = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])


def gaussian_noise(image: FloatImage, rng: np.random.Generator, scale: float) -> FloatImage:
    """Add sensor noise: ``x + scale n``, ``n ~ N(0, 1)``."""
    return image + scale * rng.standard_normal(image.shape)


def shot_noise(image: FloatImage, rng: np.random.Generator, photons: float) -> FloatImage:
    """Count photons: ``Poisson(photons x) / photons``."""
    return rng.poisson(image * photons) / photons


def impulse_noise(image: FloatImage, rng: np.random.Generator, amount: float) -> FloatImage:
    """Replace a fraction ``amount`` of the values by 0 or 1, each channel on its own."""
    hit = rng.random(image.shape) < amount
    return np.where(hit, rng.random(image.shape) < 0.5, image)


def speckle_noise(image: FloatImage, rng: np.random.Generator, scale: float) -> FloatImage:
    """Add noise in proportion to the brightness: ``x + scale x n``, ``n ~ N(0, 1)``."""
    return image + scale * image * rng.standard_normal(image.shape)


def gaussian_blur(image: FloatImage, _rng: np.random.Generator, sigma: float) -> FloatImage:
    """Smooth with a Gaussian of ``sigma`` pixels."""
    return gaussian(image, sigma)


def defocus_blur(image: FloatImage, _rng: np.random.Generator, radius: float, alias_blur: float) -> FloatImage:
    """Convolve with the disk into which a point out of focus spreads."""
    return convolve(image, disk_kernel(radius, alias_blur))


def glass_blur(image: FloatImage, rng: np.random.Generator, sigma: float, reach: int, rounds: int) -> FloatImage:
    """Smooth, let neighbouring pixels wander up to ``reach`` pixels, ``rounds`` times, and smooth again."""
    smooth = to_float(to_bytes(gaussian(image, sigma)))
    height, width = image.shape[:2]
    pixels = smooth.reshape(height * width, -1)
    return gaussian(pixels[_wander(height, width, rng, reach, rounds)].reshape(image.shape), sigma)


def _wander(height: int, width: int, rng: np.random.Generator, reach: int, rounds: int) -> NDArray[np.intp]:
    """Return, for each pixel, the index of the pixel whose value ends up there.

    Pixels are visited from the bottom right to the top left, and each takes the value that its random neighbour has
    at that moment. Note: the published benchmarks were meant to swap the two, but their generator swapped views of
    one array, which copies; we follow what they contain.
    """
    rows = np.arange(height - reach, reach, -1)
    columns = np.arange(width - reach, reach, -1)
    here = (rows[:, None] * width + columns[None, :]).ravel()
    # Lists, because the visits depend on each other and single list items are far quicker than array items.
    source = list(range(height * width))
    targets = here.tolist()
    for _ in range(rounds):
        right, down = rng.integers(-reach, reach, size=(2, here.size))
        for target, neighbour in zip(targets, (here + down * width + right).tolist(), strict=True):
            source[target] = source[neighbour]
    return np.array(source)


def motion_blur(image: FloatImage, rng: np.random.Generator, radius: float, sigma: float) -> FloatImage:
    """Blur along a line within 45 degrees of the horizontal."""
    # ImageMagick rounded its result to 8 bits; half a level more turns our truncation into that.
    return streak(image, radius, sigma, rng.uniform(-45, 45)) + 0.5 / 255


def zoom_blur(image: FloatImage, _rng: np.random.Generator, stop: float, step: float) -> FloatImage:
    """Average the picture with its magnifications by ``1, 1 + step, ...`` below ``stop``."""
    factors = np.arange(1, stop, step)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1))
    total = planes + sum(zoom_centre(planes, float(factor)) for factor in factors)
    return (total / (len(factors) + 1)).transpose(1, 2, 0)


def snow(
    image: FloatImage,
    rng: np.random.Generator,
    mean: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> FloatImage:
    """Whiten the scene and let flakes fall: ``keep x + (1 - keep) max(x, 1.5 luma + 0.5) + flakes``.

    The flakes are magnified noise ``N(mean, spread)`` above ``threshold``, streaked downwards, plus the same layer
    turned by 180 degrees.
    """
    noise = zoom_centre(rng.normal(mean, spread, size=image.shape[:2]), zoom)
    flakes = to_float(to_bytes(np.where(noise < threshold, 0, noise)))
    fallen = to_float(to_bytes(streak(flakes, radius, sigma, rng.uniform(-135, -45)) + 0.5 / 255))[..., None]
    whitened = np.maximum(image, 1.5 * luma(image)[..., None] + 0.5)
    return keep * image + (1 - keep) * whitened + fallen + fallen[::-1, ::-1]


def frost(image: FloatImage, rng: np.random.Generator, keep: float, weight: float, scale: float) -> FloatImage:
    """Look through a frozen pane: ``keep x + weight texture``.

    Note: the published benchmarks used photographs of frost, shrunk by ``scale``, which we may not ship; our texture
    has their mean, contrast, tint and spectrum, not their shapes.
    """
    return keep * image + weight * grow_texture(image.shape[:2], scale, rng)


def fog(image: FloatImage, rng: np.random.Generator, thickness: float, decay: float) -> FloatImage:
    """Add drifting fog and rescale: ``(x + thickness plasma) m / (m + thickness)`` with ``m = max x``."""
    height, width = image.shape[:2]
    side = 1 << (max(height, width) - 1).bit_length()
    plasma = plasma_fractal(side, decay, rng)[:height, :width, None]
    brightest = image.max()
    return (image + thickness * plasma) * (brightest / (brightest + thickness))


def plasma_fractal(side: int, decay: float, rng: np.random.Generator) -> FloatImage:
    """Return a periodic random landscape in [0, 1] of ``side`` (a power of two) by the diamond-square algorithm.

    Each new point is the mean of its four neighbours plus uniform noise, whose amplitude falls by ``decay ** 2`` each
    time that the grid is halved.
    """
    land = np.zeros((side, side))
    amplitude = 1.0
    step = side

    def settle(first: FloatImage, first_axis: int, second: FloatImage, second_axis: int) -> FloatImage:
        """Return the noisy mean of two grids and their neighbours: one back in the first, one ahead in the second."""
        neighbours = first + np.roll(first, 1, first_axis) + second + np.roll(second, -1, second_axis)
        return neighbours / 4 + rng.uniform(-amplitude, amplitude, size=neighbours.shape)

    while step > 1:
        half = step // 2
        corners = land[::step, ::step]
        centres = settle(np.roll(corners, -1, 0), 0, np.roll(corners, -1, 1), 0)
        land[half::step, half::step] = centres
        land[::step, half::step] = settle(centres, 0, corners, 1)
        land[half::step, ::step] = settle(centres, 1, corners, 0)
        step = half
        amplitude /= decay**2

    land -= land.min()
    return land / land.max()


def grow_texture(shape: tuple[int, int], scale: float, rng: np.random.Generator) -> FloatImage:
    """Return a bluish-white texture of needles in three directions 60 degrees apart, as ice crystals grow.

    The brightest of three fields of needles wins, and clouds lie over them; `_ice_power` has their spectra. Mean,
    contrast and tint are drawn separately for each texture, because the photographs differ.
    """
    power = _ice_power(shape, scale, rng.uniform(0, np.pi))
    waves = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((4, *shape))) * np.sqrt(power), s=shape)
    needles = _standardise((waves[:3] / waves[:3].std(axis=(1, 2), keepdims=True)).max(axis=0))
    ice = _standardise(needles + 0.6 * _standardise(waves[3]))

    brightness = rng.uniform()
    mean = np.interp(brightness, (0, 1), _GREY_MEAN)
    contrast = np.interp(brightness, (0, 1), _CONTRAST)
    tint = _TINT * rng.exponential()
    return np.clip((mean + contrast * ice)[..., None] + tint, 0, 1)


def _ice_power(shape: tuple[int, int], scale: float, angle: float) -> FloatImage:
    """Return the power spectra of the needles across three directions (``f ** -2.4``) and of the clouds (``f ** -4``).

    Note: the photographs are shrunk by subsampling, so all aliased frequencies add up.
    """
    aliases = np.arange(-math.floor(0.5 / scale), math.floor(0.5 / scale) + 1)
    fy = scale * (np.fft.fftfreq(shape[0])[:, None] + aliases[:, None, None, None])
    fx = scale * (np.fft.rfftfreq(shape[1])[None, :] + aliases[None, :, None, None])
    frequency = np.hypot(fy, fx)
    # No power at frequency 0: the mean of the texture is drawn, not grown.
    frequency[frequency == 0] = np.inf
    # Needles are thin: their spectrum is flat below one cycle per 56 pixels of a photograph.
    length = np.maximum(frequency, 1 / 56) ** -2.4
    direction = np.arctan2(fy, fx)
    needles = [
        (length * np.exp(24 * (np.cos(2 * (direction - angle - turn)) - 1))).sum(axis=(0, 1))
        for turn in (0, np.pi / 3, 2 * np.pi / 3)
    ]
    return np.stack([*needles, (frequency**-4.0).sum(axis=(0, 1))])


def _standardise(plane: FloatImage) -> FloatImage:
    """Return ``plane`` shifted and scaled to mean 0 and standard deviation 1."""
    return (plane - plane.mean()) / plane.std()


def brightness(image: FloatImage, _rng: np.random.Generator, shift: float) -> FloatImage:
    """Raise the value V of HSV by ``shift``: ``x V' / V`` with ``V = max(R, G, B)``, ``V' = min(V + shift, 1)``."""
    value = image.max(axis=-1, keepdims=True)
    raised = np.minimum(value + shift, 1)
    black = value == 0
    return np.where(black, raised, image * (raised / np.where(black, 1, value)))


def saturate(image: FloatImage, _rng: np.random.Generator, gain: float, shift: float) -> FloatImage:
    """Change the saturation S of HSV to ``clip(gain S + shift, 0, 1)``: ``V - (V - x) S' / S``.

    Note: greys have no hue to strengthen; they count as red, as they do in HSV with its hue of 0.
    """
    value = image.max(axis=-1, keepdims=True)
    chroma = value - image.min(axis=-1, keepdims=True)
    grey = chroma == 0
    saturation = chroma / np.where(value == 0, 1, value)
    wanted = np.clip(gain * saturation + shift, 0, 1)
    hue_profile = np.where(grey, np.array([0.0, 1.0, 1.0]), (value - image) / np.where(grey, 1, chroma))
    return value * (1 - wanted * hue_profile)


def contrast(image: FloatImage, _rng: np.random.Generator, gain: float) -> FloatImage:
    """Pull each channel towards its mean: ``m + gain (x - m)``."""
    mean = image.mean(axis=(0, 1))
    return mean + gain * (image - mean)


def elastic_transform(
    image: FloatImage, rng: np.random.Generator, amplitude: float, smoothness: float, corner_shift: float
) -> FloatImage:
    """Skew by a random affine map, then move each pixel along a smooth random field.

    The map takes three corners of a centred square to places up to ``corner_shift`` pixels away; the field is uniform
    noise in [-1, 1], smoothed with a Gaussian of ``smoothness`` pixels and multiplied by ``amplitude``.
    """
    size = np.array(image.shape[:2])
    grid = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij")).astype(np.float64)

    centre, arm = size // 2, size.min() // 3
    corners = centre + arm * np.array([[1, 1], [-1, 1], [-1, -1]])
    moved = corners + rng.uniform(-corner_shift, corner_shift, size=(3, 2))
    # Each output pixel looks up where it came from, so we solve for the map from the moved corners to the old ones.
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)
    skewed = _sample(image, np.tensordot(back[:2].T, grid, axes=1) + back[2][:, None, None], mode="mirror")

    noise = rng.uniform(-1, 1, size=(*size, 2))
    field = amplitude * gaussian(noise, smoothness, mode="reflect", truncate=3.0)
    return _sample(skewed, grid + field.transpose(2, 0, 1), mode="reflect")


def _sample(image: FloatImage, position: FloatImage, mode: str) -> FloatImage:
    """Read ``image`` at the ``(2, height, width)`` positions (row, column), linearly interpolated."""
    channels = [ndimage.map_coordinates(channel, position, order=1, mode=mode) for channel in image.transpose(2, 0, 1)]
    return np.stack(channels, axis=-1)


def pixelate(image: FloatImage, _rng: np.random.Generator, factor: float) -> FloatImage:
    """Shrink by ``factor`` and enlarge again, both with a box filter."""
    picture = Image.fromarray(to_bytes(image))
    small = picture.resize((int(picture.width * factor), int(picture.height * factor)), Image.Resampling.BOX)
    return to_float(np.asarray(small.resize(picture.size, Image.Resampling.BOX)))


def jpeg_compression(image: FloatImage, _rng: np.random.Generator, quality: int) -> FloatImage:
    """Write and read the picture as a JPEG of ``quality``."""
    file = BytesIO()
    Image.fromarray(to_bytes(image)).save(file, "JPEG", quality=quality)
    return to_float(np.asarray(Image.open(file)))


def spatter(
    image: FloatImage,
    rng: np.random.Generator,
    mean: float,
    spread: float,
    sigma: float,
    threshold: float,
    weight: float,
    mud: int,
) -> FloatImage:
    """Splash the lens: smoothed noise ``N(mean, spread)`` above ``threshold`` is liquid.

    Water adds ``weight m`` of pale turquoise, m the shading of the drops; mud, whose outline is smoothed with a
    Gaussian of ``weight`` pixels, covers what is behind it.
    """
    liquid = gaussian(rng.normal(mean, spread, size=image.shape[:2]), sigma)
    liquid[liquid < threshold] = 0
    if mud:
        cover = gaussian((liquid > threshold).astype(np.float64), weight)
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        return (1 - cover) * image + cover * _MUD
    return image + weight * _water_shading(liquid)[..., None] * _WATER


def _water_shading(liquid: FloatImage) -> FloatImage:
    """Return how bright each drop is, in [0, 1]: the distance from its outline, embossed by a light from one side."""
    # 8 bits wrap around where the noise exceeds 1, in the published benchmarks too.
    depth = (liquid * 255).astype(np.int64).astype(np.uint8)
    edges = canny(depth, 50, 150)
    distance = ndimage.distance_transform_edt(~edges) if edges.any() else np.full(depth.shape, 20.0)
    height = equalise(_box(np.minimum(distance, 20)).astype(np.uint8)).astype(np.float64)
    embossed = np.clip(ndimage.correlate(height, _LIT_FROM_TOP_LEFT, mode="mirror"), 0, 255)
    shading = depth * np.round(_box(embossed))
    return shading / max(shading.max(), 1)


def _box(image: FloatImage) -> FloatImage:
    """Return the mean over 3 x 3 pixels."""
    # Not a running sum: its rounding errors would truncate a mean of 2 to 1. This sum of whole numbers is exact.
    return ndimage.correlate(image, np.ones((3, 3)), mode="mirror") / 9


def to_float(image: ByteImage) -> FloatImage:
    """Return ``image / 255`` in double precision, always a new array."""
    return image / np.float64(255)


def to_bytes(image: FloatImage) -> ByteImage:
    """Return ``floor(255 clip(image, 0, 1))``: the benchmarks were stored by truncation, not by rounding."""
    # Without the margin the last bit of a sum decides whether a flat 128 is stored as 128 or as 127.
    return np.floor(np.clip(image, 0, 1) * 255 + 1e-6).astype(np.uint8)


def luma(image: FloatImage) -> FloatImage:
    """Return the grey value ``0.299 R + 0.587 G + 0.114 B`` of each pixel."""
    return image @ np.array([0.299, 0.587, 0.114])


def gaussian(image: FloatImage, sigma: float, *, mode: str = "nearest", truncate: float = 4.0) -> FloatImage:
    """Smooth the two spatial axes with a Gaussian of ``sigma`` pixels, cut off at ``truncate`` sigmas."""
    return ndimage.gaussian_filter(image, sigma, mode=mode, truncate=truncate, axes=(0, 1))


def convolve(image: FloatImage, kernel: FloatImage) -> FloatImage:
    """Convolve each channel with a square kernel of odd side; the image is mirrored about its border pixels."""
    margin = kernel.shape[0] // 2
    padded = np.pad(image, ((margin, margin), (margin, margin), (0, 0)), mode="reflect")
    return signal.fftconvolve(padded, kernel[..., None], mode="valid", axes=(0, 1))


@lru_cache(maxsize=32)
def disk_kernel(radius: float, alias_blur: float) -> FloatImage:
    """Return a uniform disk, its rim softened by a small Gaussian of ``alias_blur`` pixels, that sums to 1."""
    reach, taps = (8, 1) if radius <= 8 else (math.floor(radius), 2)
    squares: np.ndarray = np.arange(-reach, reach + 1) ** 2
    disk = (squares[:, None] + squares[None, :] <= radius**2).astype(np.float64)
    soft = ndimage.gaussian_filter(disk, alias_blur, radius=taps, mode="mirror")
    # Mirroring at the edge of the grid adds mass to a disk that touches it, which would brighten the picture.
    return soft / soft.sum()


def streak(image: FloatImage, radius: float, sigma: float, angle: float) -> FloatImage:
    """Blur along one direction: ``sum_i k_i image[p + round(i u)]``, ``k_i ~ exp(-i^2 / 2 sigma^2)``, ``i = 0..2r``.

    ``u`` is the unit vector at ``angle`` degrees from the x axis towards the bottom. The half-sided kernel and the
    repeated border pixels are those of ImageMagick's motion blur, which produced the published benchmarks.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    down = np.ceil(steps * math.sin(math.radians(angle)) - 0.5).astype(int)
    right = np.ceil(steps * math.cos(math.radians(angle)) - 0.5).astype(int)

    height, width = image.shape[:2]
    margin = len(steps)
    padded = np.pad(image, [(margin, margin)] * 2 + [(0, 0)] * (image.ndim - 2), mode="edge")
    blurred = np.zeros_like(image)
    for weight, y, x in zip(weights, margin + down, margin + right, strict=True):
        blurred += weight * padded[y : y + height, x : x + width]
    return blurred


@lru_cache(maxsize=256)
def zoom_matrix(size: int, factor: float) -> NDArray[np.float64]:
    """Return the ``size x size`` matrix that magnifies the middle of a row by ``factor``, linearly interpolated."""
    crop = math.ceil(size / factor)
    zoomed = round(crop * factor)
    first, skipped = (size - crop) // 2, (zoomed - size) // 2
    position = (np.arange(size) + skipped) * ((crop - 1) / max(zoomed - 1, 1))
    left = np.minimum(position.astype(int), max(crop - 2, 0))
    share = position - left
    matrix = np.zeros((size, size))
    rows = np.arange(size)
    matrix[rows, first + left] = 1 - share
    matrix[rows, np.minimum(first + left + 1, size - 1)] += share
    return matrix


def zoom_centre(planes: FloatImage, factor: float) -> FloatImage:
    """Magnify the centre of ``(..., height, width)`` planes by ``factor >= 1`` and keep their size."""
    height, width = planes.shape[-2:]
    return zoom_matrix(height, factor) @ planes @ zoom_matrix(width, factor).T


def canny(image: ByteImage, low: float, high: float) -> NDArray[np.bool_]:
    """Mark the ridges of the gradient ``|gx| + |gy|`` above ``low`` that are connected to one above ``high``."""
    values = image.astype(np.float64)
    gx = ndimage.sobel(values, axis=1, mode="nearest")
    gy = ndimage.sobel(values, axis=0, mode="nearest")
    strength = np.abs(gx) + np.abs(gy)
    ridges = (strength > low) & _is_peak(strength, gx, gy)
    groups, _ = ndimage.label(ridges, structure=np.ones((3, 3)))
    strong = np.unique(groups[ridges & (strength > high)])
    return ridges & np.isin(groups, strong)


def _is_peak(strength: NDArray[np.float64], gx: NDArray[np.float64], gy: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return where the gradient is larger than at both neighbours along its direction, to the nearest 45 degrees."""
    padded = np.pad(strength, 1)
    height, width = strength.shape

    def at(down: int, right: int) -> NDArray[np.float64]:
        return padded[1 + down : 1 + down + height, 1 + right : 1 + right + width]

    # One strict and one non-strict comparison keep a plateau of two equal pixels as an edge of one.
    along_x = (strength > at(0, -1)) & (strength >= at(0, 1))
    along_y = (strength > at(-1, 0)) & (strength >= at(1, 0))
    falling = (strength > at(-1, -1)) & (strength > at(1, 1))
    rising = (strength > at(-1, 1)) & (strength > at(1, -1))
    flat = np.abs(gy) < _TAN_22_5 * np.abs(gx)
    steep = np.abs(gx) < _TAN_22_5 * np.abs(gy)
    return np.select([flat, steep, gx * gy >= 0], [along_x, along_y, falling], rising)


def equalise(image: ByteImage) -> ByteImage:
    """Spread grey levels evenly: ``255 (C(v) - C(v0)) / (1 - C(v0))``, C their cumulative fraction, v0 the lowest."""
    counts = np.bincount(image.ravel(), minlength=256)
    lowest = counts[image.min()]
    if lowest == image.size:
        return image
    return np.round(255 * np.maximum(np.cumsum(counts) - lowest, 0) / (image.size - lowest)).astype(np.uint8)[image]
