"""Office-31, OfficeHome and DomainNet: domains of images in class folders or lists."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, DomainBenchmark
from tta_cattan.bench.data.image_files import (
    ImageList,
    class_folders,
    class_names_of,
    find_images,
    is_readable,
    read_list,
    stretch_transform,
)
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import identity_of_files, sha256_file
from tta_cattan.util.progress import progress

logger = logging.getLogger(__name__)

Samples = list[tuple[Path, int]]
_OFFICIAL = ("train", "test")


class DomainImages(DomainBenchmark):
    """``<root>/<domain>/<class>/<image>``, or lists of images; every domain has the same classes, sorted by name."""

    roots: tuple[str, ...]  # possible names of the data set's folder in DATA_DIR
    folders: Mapping[str, tuple[str, ...]]  # domain -> possible names of its folder of class folders in the root
    sizes: Mapping[str, int]  # domain -> the number of images in the published data
    obtain: str

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._found: dict[tuple[str, str], Samples] = {}

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        return len(self.class_names())

    def class_names(self) -> list[str]:
        return self._classes(self.source_domain if self.cfg.DATA.SOURCE else self.present_domains()[0])

    def check(self) -> None:
        """Check that source and targets exist, with the same classes, each with images."""
        source = self.source_domain
        expected = self._classes(source)
        for name in self.used_domains():
            _check_same(expected, source, self._classes(name), name)
            for part in self._parts():
                self._samples(name, part)

    def whole_target(self, domain: Domain) -> ImageList:
        """Return the images of a domain (of its test part, with the official lists)."""
        return ImageList(self._samples(domain.name, self._parts()[-1]), stretch_transform(self.cfg.DATA.IMAGE_SIZE))

    def source(self) -> ImageList:
        """Return the images of the source domain (of its training part, with the official lists)."""
        return ImageList(self._source_samples(), stretch_transform(self.cfg.DATA.IMAGE_SIZE))

    def training_source(self) -> ImageList:
        """Return the images of the source domain before they are cropped."""
        return ImageList(self._source_samples(), stretch_transform(self.cfg.DATA.IMAGE_SIZE, crop=False))

    def augment(self, inputs: Tensor) -> Tensor:
        """Crop and mirror at random, as SHOT does."""
        return random_crop_flip(inputs, self.cfg.DATA.IMAGE_SIZE)

    def describe_source(self) -> dict[str, Any]:
        return {
            "name": self.source_domain,
            "n": len(self._source_samples()),
            "size": self.cfg.DATA.IMAGE_SIZE,
            "classes": self.num_classes,
            "files": self._identity(self.source_domain, self._parts()[0]),
        }

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def identity(self, domain: Domain) -> str:
        return self._identity(domain.name, self._parts()[-1])

    def differs_from_published(self) -> str:
        """Return the first domain that has more or fewer images than in the published data."""
        for name in self.used_domains():
            n = sum(len(self._listed(name, part)) for part in self._parts())
            if n != self.sizes[name]:
                return f"{name} has {n:,} images here and {self.sizes[name]:,} in the data set"
        return super().differs_from_published()

    def root(self) -> Path:
        base = Path(self.cfg.DATA_DIR)
        for candidate in (*(base / name for name in self.roots), base):
            if any((candidate / folder).is_dir() for folders in self.folders.values() for folder in folders):
                return candidate
        raise UserError(f"{base} does not hold {self.name}. Expected: {self._layout()}. {self.obtain}")

    def present_domains(self) -> list[str]:
        if self.cfg.DATA.LISTS:
            return [name for name in self.short_names if all(self._list(name, p).is_file() for p in self._parts())]
        root = self.root()
        return [n for n in self.short_names if any((root / folder).is_dir() for folder in self.folders[n])]

    def _layout(self) -> str:
        domains = ", ".join(folders[0] for folders in self.folders.values())
        return f"{Path(self.cfg.DATA_DIR) / self.roots[0]}/<domain>/<class>/<image>, the domains being {domains}"

    def _parts(self) -> tuple[str, ...]:
        return _OFFICIAL if self.cfg.DATA.LISTS == "official" else ("list",)

    def _folder(self, domain: str) -> Path:
        root = self.root()
        for folder in self.folders[domain]:
            if (root / folder).is_dir():
                return root / folder
        raise UserError(f"{root / self.folders[domain][0]} is missing. Expected: {self._layout()}. {self.obtain}")

    def _list(self, domain: str, part: str) -> Path:
        lists = self.cfg.DATA.LISTS
        folder = self.root() if lists == "official" else Path(lists)
        names = [f"{name}_{part}.txt" for name in (domain, domain.replace(" ", "_"), domain.replace(" ", ""))]
        return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])

    def _classes(self, domain: str) -> list[str]:
        if not self.cfg.DATA.LISTS:
            names = class_folders(folder := self._folder(domain))
            if not names:
                raise UserError(f"{folder} is empty: it must hold a folder of images per class")
            return names
        samples = [sample for part in self._parts() for sample in self._listed(domain, part)]
        return class_names_of(samples, f"the lists of {domain}" if len(self._parts()) > 1 else f"the list of {domain}")

    def _listed(self, domain: str, part: str) -> Samples:
        """Return the images of a domain, from its class folders or its list."""
        if not self.cfg.DATA.LISTS:
            return self._keep(domain, part, lambda: self._in_folders(self._folder(domain)))
        path = self._list(domain, part)
        if not path.is_file():
            raise UserError(
                f"DATA.LISTS = {self.cfg.DATA.LISTS!r}: {path} is missing; a list has lines of a path and a label. "
                f"{self.obtain}"
            )
        return self._keep(domain, part, lambda: read_list(path, (self.root(), path.parent)))

    def _in_folders(self, folder: Path) -> Samples:
        classes = class_folders(folder)
        return find_images(folder, {name: label for label, name in enumerate(classes)}, every_class=True)

    def _samples(self, domain: str, part: str) -> Samples:
        """Return the images to use: all that are listed, without corrupt ones if DATA.SKIP_CORRUPT is set."""
        listed = self._listed(domain, part)
        if not self.cfg.DATA.SKIP_CORRUPT:
            return listed
        return self._keep(domain, f"readable {part}", lambda: leave_out_corrupt(listed, domain))

    def _identity(self, domain: str, part: str) -> str:
        """Return what distinguishes these images from others of the same names, and one list from another."""
        paths, root = [path for path, _ in self._samples(domain, part)], self.root()
        inside = all(path.is_relative_to(root) for path in paths)  # a list may name images anywhere
        files = identity_of_files(paths, root if inside else Path(paths[0].anchor))
        return f"{files}-{sha256_file(self._list(domain, part))[:12]}" if self.cfg.DATA.LISTS else files

    def _source_samples(self) -> Samples:
        return self._samples(self.source_domain, self._parts()[0])

    def _keep(self, domain: str, part: str, find: Any) -> Samples:
        if (domain, part) not in self._found:
            self._found[domain, part] = find()
        return self._found[domain, part]


def random_crop_flip(images: Tensor, size: int) -> Tensor:
    """Crop each image to ``size`` x ``size`` at a random place, and mirror it with probability 1/2."""
    height, width = images.shape[-2:]
    tops = torch.randint(0, height - size + 1, (len(images),)).tolist()
    lefts = torch.randint(0, width - size + 1, (len(images),)).tolist()
    crops = [
        image[..., top : top + size, left : left + size] for image, top, left in zip(images, tops, lefts, strict=True)
    ]
    mirrored = (torch.rand(len(images)) < 0.5).tolist()
    return torch.stack([crop.flip(-1) if flip else crop for crop, flip in zip(crops, mirrored, strict=True)])


def leave_out_corrupt(samples: Samples, domain: str) -> Samples:
    """Return the images that can be decoded; log the others."""
    with ThreadPoolExecutor() as pool:
        whole = list(progress(pool.map(is_readable, (path for path, _ in samples)), len(samples), f"reading {domain}"))
    corrupt = [str(path) for (path, _), good in zip(samples, whole, strict=True) if not good]
    if corrupt:
        shown = ", ".join(corrupt[:5]) + (f" and {len(corrupt) - 5} more" if len(corrupt) > 5 else "")
        logger.warning("%s: %d of %d images are corrupt and left out: %s", domain, len(corrupt), len(samples), shown)
    kept = [sample for sample, good in zip(samples, whole, strict=True) if good]
    lost = sorted({label for _, label in samples} - {label for _, label in kept})
    if lost:
        path = next(path for path, label in samples if label == lost[0])
        raise UserError(f"{domain}: every image of the class {path.parent.name!r} is corrupt: get the data set again")
    return kept


def _check_same(expected: list[str], source: str, found: list[str], domain: str) -> None:
    """Refuse two domains whose classes differ."""
    for name in sorted(set(expected) ^ set(found)):
        has, lacks = (source, domain) if name in expected else (domain, source)
        raise UserError(f"the class {name!r} is in {has} and not in {lacks}: every domain must have the same classes")
    for label, (one, other) in enumerate(zip(expected, found, strict=True)):
        if one != other:
            raise UserError(
                f"the label {label} is {one!r} in {source} and {other!r} in {domain}: make their lists agree"
            )


@BENCHMARK_REGISTRY.register("office31")
class Office31(DomainImages):
    """Office-31: 31 classes of office objects in three domains."""

    short_names = {"amazon": "A", "dslr": "D", "webcam": "W"}
    roots = ("office31", "domain_adaptation_images", "office")
    folders = {name: (f"{name}/images", name) for name in short_names}
    sizes = {"amazon": 2817, "dslr": 498, "webcam": 795}
    obtain = (
        "Office-31 is domain_adaptation_images.tar.gz of faculty.cc.gatech.edu/~judy/domainadapt (Saenko et al. 2010)"
    )


@BENCHMARK_REGISTRY.register("officehome")
class OfficeHome(DomainImages):
    """OfficeHome: 65 classes of everyday objects in four domains."""

    short_names = {"Art": "A", "Clipart": "C", "Product": "P", "Real World": "R"}
    roots = ("OfficeHome", "OfficeHomeDataset_10072016", "officehome", "office-home")
    folders = {
        **{name: (name,) for name in ("Art", "Clipart", "Product")},
        "Real World": ("Real World", "Real_World", "RealWorld"),
    }
    sizes = {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}
    obtain = "OfficeHome is at www.hemanthdv.org/officeHomeDataset.html (Venkateswara et al. 2017)"


@BENCHMARK_REGISTRY.register("domainnet")
class DomainNet(DomainImages):
    """DomainNet: 345 classes in six domains."""

    short_names = {"clipart": "C", "infograph": "I", "painting": "P", "quickdraw": "Q", "real": "R", "sketch": "S"}
    roots = ("DomainNet", "domainnet")
    folders = {name: (name,) for name in short_names}
    sizes = {
        "clipart": 48129,
        "infograph": 51605,
        "painting": 72266,
        "quickdraw": 172500,
        "real": 172947,
        "sketch": 69128,
    }
    obtain = (
        "DomainNet is at ai.bu.edu/M3SDA (Peng et al. 2019; the cleaned version), with its _train.txt and _test.txt"
    )
