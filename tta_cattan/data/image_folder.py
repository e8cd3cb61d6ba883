"""Images in class folders, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from tta_cattan.errors import UserError
from tta_cattan.files import evenly
from tta_cattan.upstream.torchvision import import_torchvision

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff")


class ImageList(Dataset):
    """(path, label) pairs, read as RGB and transformed to a tensor in [0, 1]."""

    def __init__(self, samples: Sequence[tuple[Path, int]], transform: Callable[[Image.Image], Tensor]) -> None:
        self.samples = list(samples)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        try:
            with Image.open(path) as image:
                return self.transform(image.convert("RGB")), label
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"image {path} cannot be read ({error}): get it again or remove it") from error


def find_images(folder: Path, classes: Mapping[str, int]) -> list[tuple[Path, int]]:
    """Return the (path, label) pairs of ``folder/<class>/<image>``, sorted; a folder of no known class is refused."""
    samples: list[tuple[Path, int]] = []
    for child in sorted(path for path in folder.iterdir() if path.is_dir()):
        if child.name not in classes:
            raise UserError(
                f"{child} is the folder of no known class: the folders must be named like {next(iter(classes))!r}"
            )
        paths = sorted(p for p in child.iterdir() if p.suffix.lower() in EXTENSIONS)
        samples += [(path, classes[child.name]) for path in paths]
    if not samples:
        raise UserError(f"{folder} holds no images in class folders ({', '.join(EXTENSIONS)})")
    return samples


def first_images(folder: Path, most: int = 32) -> list[Path]:
    """Return the first image of up to ``most`` class folders, evenly spaced: enough to tell a data set from another."""
    folders = sorted(path for path in folder.glob("*") if path.is_dir())
    found = (
        sorted(p for p in child.iterdir() if p.suffix.lower() in EXTENSIONS)[:1] for child in evenly(folders, most)
    )
    return [path for paths in found for path in paths]


def to_tensor_transform() -> Callable[[Image.Image], Tensor]:
    """Return the conversion of an image that already has its size (ImageNet-C's is 224x224: it is not resized)."""
    return import_torchvision("torchvision.transforms").ToTensor()


def resize_crop_transform(size: int = 224) -> Callable[[Image.Image], Tensor]:
    """Return ImageNet's usual preprocessing: the short side to 256/224 of ``size``, the centre ``size`` x ``size``."""
    transforms = import_torchvision("torchvision.transforms")
    resize = transforms.Resize(round(size * 256 / 224))
    return transforms.Compose([resize, transforms.CenterCrop(size), transforms.ToTensor()])
