"""Images in class folders, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from tta_cattan.util.errors import UserError
from tta_cattan.util.files import evenly
from tta_cattan.util.upstream import import_torchvision

# What Pillow raises for a file that is damaged, absent, no image, or unreasonably large.
_CORRUPT = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
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
        except _CORRUPT as error:
            raise UserError(f"image {path} cannot be read ({error}): get it again or remove it") from error


def is_readable(path: Path) -> bool:
    """Tell whether an image can be decoded to its last pixel."""
    try:
        with Image.open(path) as image:
            image.load()
    except _CORRUPT:
        return False
    return True


def class_folders(folder: Path) -> list[str]:
    """Return the names of the class folders, sorted; hidden ones are none."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def find_images(folder: Path, classes: Mapping[str, int], every_class: bool = False) -> list[tuple[Path, int]]:
    """Return the (path, label) pairs of ``folder/<class>/<image>``, sorted; a folder of no known class is refused.

    Note: with ``every_class`` a class without images is refused too.
    """
    samples: list[tuple[Path, int]] = []
    for child in (folder / name for name in class_folders(folder)):
        if child.name not in classes:
            raise UserError(
                f"{child} is the folder of no known class: the folders must be named like {next(iter(classes))!r}"
            )
        paths = sorted(p for p in child.iterdir() if p.suffix.lower() in EXTENSIONS)
        if every_class and not paths:
            raise UserError(f"the class folder {child} holds no images ({', '.join(EXTENSIONS)})")
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


def stretch_transform(size: int, crop: bool = True) -> Callable[[Image.Image], Tensor]:
    """Return SHOT's preprocessing: both sides to 256/224 of ``size``; with ``crop`` the centre ``size`` x ``size``."""
    transforms = import_torchvision("torchvision.transforms")
    side = round(size * 256 / 224)
    centre = [transforms.CenterCrop(size)] if crop else []
    return transforms.Compose([transforms.Resize((side, side)), *centre, transforms.ToTensor()])
