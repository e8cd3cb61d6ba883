"""Image files in class folders or in lists, decoded on access."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from tta_cattan.util.door import parsing, regular_file
from tta_cattan.util.errors import UserError
from tta_cattan.util.upstream import import_torchvision

_MOST_PIXELS = 89_478_485  # Pillow's own limit, a quarter of a gigabyte; it only warns
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# By content: Pillow knows some fifty more, and starts Ghostscript for one of them. GIF: web pages serve it as .jpg.
_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "WEBP", "TIFF", "GIF")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff")
_MOST_BYTES = 100 << 20  # DomainNet's longest list has 6 MB
_MOST_DIGITS = 5  # of a label: 99,999 at most


class ImageList(Dataset):
    """(path, label) pairs, read as RGB and transformed to a tensor in [0, 1]."""

    def __init__(self, samples: Sequence[tuple[Path, int]], transform: Callable[[Image.Image], Tensor]) -> None:
        self.samples = list(samples)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        return self.transform(read_rgb(path)), label


def read_rgb(path: Path) -> Image.Image:
    """Return an image as RGB; refuse a file that is not an image, damaged, or unreasonably large when decoded."""
    with parsing(f"image {path} cannot be read", "get it again or remove it"):
        image = Image.open(regular_file(path, "remove it"), formats=_FORMATS)
        with image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(f"{image.width:,} x {image.height:,} pixels, and {_MOST_PIXELS:,} are the most")
            found = image.convert("RGB")
    return found


def is_readable(path: Path) -> bool:
    """Return whether an image can be decoded completely."""
    try:
        read_rgb(path)
    except UserError:
        return False
    return True


def class_folders(folder: Path) -> list[str]:
    """Return the names of the class folders, sorted, without hidden ones."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def find_images(folder: Path, classes: Mapping[str, int], every_class: bool = False) -> list[tuple[Path, int]]:
    """Return the (path, label) pairs of ``folder/<class>/<image>``, sorted; a folder of an unknown class is refused.

    Note: with ``every_class`` a class without images is refused too.
    """
    samples: list[tuple[Path, int]] = []
    for child in (folder / name for name in class_folders(folder)):
        if child.name not in classes:
            raise UserError(
                f"{child} is not the folder of a known class: the folders must be named like {next(iter(classes))!r}"
            )
        paths = sorted(p for p in child.iterdir() if p.suffix.lower() in EXTENSIONS)
        if every_class and not paths:
            raise UserError(f"the class folder {child} holds no images ({', '.join(EXTENSIONS)})")
        samples += [(path, classes[child.name]) for path in paths]
    if not samples:
        raise UserError(f"{folder} holds no images in class folders ({', '.join(EXTENSIONS)})")
    return samples


def read_list(path: Path, bases: Sequence[Path]) -> list[tuple[Path, int]]:
    """Return the (image, label) pairs of a list; its paths are absolute or relative to one of ``bases``.

    Note: an absolute path of another machine is found by its tail, relative to a base.
    """
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UserError(f"{path} has {size:,} bytes, and a list of images has {_MOST_BYTES:,} at most: is it a list?")
    samples: list[tuple[Path, int]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text: a list has a path and a label per line") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.isdecimal() or len(label) > _MOST_DIGITS:
            raise UserError(f"{path}, line {number}: {line[:80]!r} is not a path and a label (a number from 0 on)")
        samples.append((_find(Path(name.strip()), bases, path, number), int(label)))
    if not samples:
        raise UserError(f"{path} is empty: a list has a path and a label per line")
    return samples


def _find(name: Path, bases: Sequence[Path], source: Path, number: int) -> Path:
    """Return the path of the image that a line names."""
    tails = [name] if not name.is_absolute() else [Path(*name.parts[i:]) for i in range(1, len(name.parts))]
    if name.is_absolute() and _is_file(name):
        return name
    for base in bases:
        for tail in tails:
            if _is_file(base / tail):
                return base / tail
    raise UserError(
        f"{source}, line {number}: there is no image {name} (looked in {', '.join(map(str, bases))}): get the images "
        "of this list"
    )


def _is_file(path: Path) -> bool:
    """Return whether a file exists; an invalid file name matches nothing."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def class_names_of(samples: Sequence[tuple[Path, int]], source: str) -> list[str]:
    """Return the name of each label: the folder of its images, or the label itself if all share one folder.

    Note: labels must run from 0 without a gap, and a label's images must be in one folder.
    """
    folders: dict[int, set[str]] = {}
    for path, label in samples:
        folders.setdefault(label, set()).add(path.parent.name)
    for label in range(max(folders) + 1):
        if label not in folders:
            raise UserError(f"{source}: no image has the label {label}, and the labels go up to {max(folders)}")
    if len(set().union(*folders.values())) == 1 and len(folders) > 1:
        return [str(label) for label in sorted(folders)]
    for label, names in folders.items():
        if len(names) > 1:
            one, other = sorted(names)[:2]
            raise UserError(f"{source}: the label {label} has images in {one!r} and in {other!r}")
    return [next(iter(folders[label])) for label in sorted(folders)]


def resize_crop_transform(size: int) -> Callable[[Image.Image], Tensor]:
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
