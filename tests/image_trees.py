"""Small trees of real images in the layouts of the domain-adaptation benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("bike", "calculator", "mug")
DOMAINS = {
    "office31": {"amazon": "amazon/images", "dslr": "dslr/images", "webcam": "webcam/images"},
    "officehome": {name: name for name in ("Art", "Clipart", "Product", "Real World")},
    "domainnet": {name: name for name in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")},
}
ROOTS = {"office31": "office31", "officehome": "OfficeHome", "domainnet": "DomainNet"}


def draw(label: int, domain: int, seed: int) -> Image.Image:
    """Return an image whose stripes tell its class, under a brightness that tells its domain; no two are alike."""
    rng = np.random.default_rng([label, domain, seed])
    height, width = rng.integers(36, 60, 2)
    rows = np.arange(height)[:, None] // (2 + 3 * label) % 2
    image = np.full((height, width, 3), 60 + 25 * domain) + 70 * rows[:, :, None] * np.eye(3)[label % 3]
    return Image.fromarray((image + rng.normal(0, 8, image.shape)).clip(0, 255).astype(np.uint8))


def write_tree(data_dir: Path, benchmark: str, n: int = 4, domains: tuple[str, ...] = ()) -> Path:
    """Write ``n`` images per class and domain, JPEG and PNG in turn, and return the folder of the data set."""
    root = data_dir / ROOTS[benchmark]
    for place, (domain, folder) in enumerate(DOMAINS[benchmark].items()):
        if domains and domain not in domains:
            continue
        for label, name in enumerate(CLASSES):
            (root / folder / name).mkdir(parents=True)
            for number in range(n):
                image = draw(label, place, number)
                image.save(root / folder / name / f"{number:04d}.{'jpg' if number % 2 else 'png'}")
    return root


def break_image(path: Path) -> Path:
    """Cut an image off in the middle."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path
