"""ImageNet-C, ImageNet-3DCC and the clean validation set, streamed from disk in RobustBench's layout."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, Benchmark
from tta_cattan.bench.data.corruptions import COMMON, EXTRA
from tta_cattan.bench.data.datasets import check_count
from tta_cattan.bench.data.image_files import ImageList, find_images, resize_crop_transform
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import identity_of_files, sha256_text
from tta_cattan.util.upstream import import_robustbench, import_torchvision

N_IDS = 5000  # the images that RobustBench evaluates, by ids that ship with it
N_ALL = 50000
FULL_SIZE = 224  # of the published corrupted images


@lru_cache(maxsize=1)
def class_labels() -> dict[str, int]:
    """Return the label of each of the 1,000 class folders (wnids), from the table that ships with RobustBench."""
    import_robustbench()
    file = resources.files("robustbench") / "helper_files" / "imagenet_class_to_id_map.json"
    return json.loads(file.read_text())


@lru_cache(maxsize=1)
def robustbench_ids() -> list[str]:
    """Return the 5,000 ``<wnid>/<image>`` that RobustBench evaluates, in its order."""
    import_robustbench()
    file = resources.files("robustbench") / "helper_files" / "imagenet_test_image_ids.txt"
    return file.read_text().split()


@lru_cache(maxsize=1)
def _training_samples(folder: Path) -> list[tuple[Path, int]]:
    return find_images(folder, class_labels())


class _ImageNet(Benchmark):
    """``<root>/<wnid>/<image>``; NUM_EX up to 5,000 takes RobustBench's images, 50,000 or -1 all."""

    num_classes, family = 1000, "imagenet"
    obtain: str

    def root(self, domain: Domain) -> Path:
        raise NotImplementedError

    def layout(self) -> str:
        """Return the expected tree, for an error message."""
        raise NotImplementedError

    def check(self) -> None:
        """Check that every folder exists, with all classes if RobustBench's 5,000 images are used."""
        if N_IDS < self.cfg.CORRUPTION.NUM_EX < N_ALL:
            raise UserError(
                f"CORRUPTION.NUM_EX = {self.cfg.CORRUPTION.NUM_EX}: give at most {N_IDS} (the first of the images that "
                f"RobustBench evaluates), or {N_ALL} or -1 for all there are"
            )
        for domain in self.domains():
            root = self.root(domain)
            if not root.is_dir():
                raise UserError(f"{root} is missing. Expected: {self.layout()}. {self.obtain}")
            if self._uses_ids():
                absent = [wnid for wnid in class_labels() if not (root / wnid).is_dir()]
                if absent:
                    raise UserError(
                        f"{root} lacks {len(absent)} of the 1,000 class folders, e.g. {absent[0]}, so RobustBench's "
                        f"5,000 images are not all there. Expected: {self.layout()}. {self.obtain}; or evaluate all "
                        "images that are there with CORRUPTION.NUM_EX -1"
                    )

    def target(self, domain: Domain, seed: int = 0) -> ImageList:
        return ImageList(self._samples(domain), self.transform())

    def _samples(self, domain: Domain) -> list[tuple[Path, int]]:
        root = self.root(domain)
        if not self._uses_ids():
            found = find_images(root, class_labels())
            check_count(self.cfg.CORRUPTION.NUM_EX, len(found), f"{root} holds")
            return found
        ids = robustbench_ids()[: self.cfg.CORRUPTION.NUM_EX]
        return [(root / name, class_labels()[name.split("/")[0]]) for name in ids]

    def transform(self) -> Any:
        """Return the conversion to a tensor: corrupted images keep their size (224) unless another is requested."""
        size = self.cfg.DATA.IMAGE_SIZE
        if size == FULL_SIZE:
            return import_torchvision("torchvision.transforms").ToTensor()
        return resize_crop_transform(size)

    def has_source(self) -> bool:
        return self._source_folder().is_dir()

    def source(self) -> ImageList:
        """Return the training images: DATA.SOURCE_DIR, or DATA_DIR/train."""
        if not self.has_source():
            return super().source()
        return ImageList(_training_samples(self._source_folder()), resize_crop_transform(self.cfg.DATA.IMAGE_SIZE))

    def describe_source(self) -> dict[str, Any]:
        """Return the source's identity: names and sizes of all training images, content of the first of each class.

        Note: reading the content of all would be 140 GB.
        """
        folder = self._source_folder()
        paths = [path for path, _ in _training_samples(folder)] if self.has_source() else []
        firsts = [path for before, path in pairwise([folder, *paths]) if path.parent != before.parent]
        sizes = "\n".join(f"{path.parent.name}/{path.name} {path.stat().st_size}" for path in paths)
        return {
            "name": "ImageNet",
            "folder": folder.name,
            "size": self.cfg.DATA.IMAGE_SIZE,
            "files": [sha256_text(sizes)[:12], identity_of_files(firsts, folder)],
        }

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "num_ex": self.cfg.CORRUPTION.NUM_EX}

    def identity(self, domain: Domain) -> str:
        return identity_of_files([path for path, _ in self._samples(domain)], self.root(domain))

    def _source_folder(self) -> Path:
        return Path(self.cfg.DATA.SOURCE_DIR or Path(self.cfg.DATA_DIR) / "train")

    def _uses_ids(self) -> bool:
        return 0 < self.cfg.CORRUPTION.NUM_EX <= N_IDS


class _ImageNetCorrupted(_ImageNet):
    folder: str
    known: tuple[str, ...]

    def check(self) -> None:
        """Check the names of the corruptions, then the folders."""
        self.check_corruptions(self.known, clean="imagenet_clean")
        super().check()

    def root(self, domain: Domain) -> Path:
        return Path(self.cfg.DATA_DIR) / self.folder / domain.name / str(domain.severity)

    def layout(self) -> str:
        root = Path(self.cfg.DATA_DIR) / self.folder
        return f"{root}/<corruption>/<severity>/<wnid>/*.JPEG (DATA_DIR is {self.cfg.DATA_DIR})"


@BENCHMARK_REGISTRY.register("imagenet")  # RobustBench's name for it
@BENCHMARK_REGISTRY.register("imagenet_c")
class ImageNetC(_ImageNetCorrupted):
    """ImageNet-C."""

    folder, known = "ImageNet-C", (*COMMON, *EXTRA)
    obtain = (
        "ImageNet-C is Zenodo record 2235448 (blur, digital, extra, noise, weather .tar: 73 GB); "
        "`tta-cattan make-corruptions` makes the same layout from your own images"
    )


@BENCHMARK_REGISTRY.register("imagenet_3dcc")
class ImageNet3DCC(_ImageNetCorrupted):
    """ImageNet-3DCC."""

    folder = "ImageNet-3DCC"
    known = (
        "near_focus", "far_focus", "bit_error", "color_quant", "flash", "fog_3d", "h265_abr", "h265_crf", "iso_noise",
        "low_light", "xy_motion_blur", "z_motion_blur",
    )  # fmt: skip
    obtain = "ImageNet-3DCC comes from its authors' repository, EPFL-VILAB/3DCommonCorruptions"


@BENCHMARK_REGISTRY.register("imagenet_clean")
class ImageNetClean(_ImageNet):
    """The ImageNet validation set, resized to 256 and cropped to 224."""

    obtain = "The ImageNet validation set (6.3 GB) comes from image-net.org after registration"

    def domains(self) -> list[Domain]:
        return [Domain("clean")]

    def root(self, domain: Domain) -> Path:
        return Path(self.cfg.DATA_DIR) / "val"

    def layout(self) -> str:
        return f"{self.cfg.DATA_DIR}/val/<wnid>/*.JPEG"

    def transform(self) -> Any:
        return resize_crop_transform(self.cfg.DATA.IMAGE_SIZE)
