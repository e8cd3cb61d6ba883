"""Benchmarks by name; importing this package registers them."""

from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, Benchmark, benchmark_of
from tta_cattan.bench.data.cifar_c import Cifar10C, Cifar10Clean, Cifar100C, Cifar100Clean
from tta_cattan.bench.data.clouds.pointda10 import PointDA10
from tta_cattan.bench.data.clouds.shapes_c import ShapesC
from tta_cattan.bench.data.digits import DigitsC
from tta_cattan.bench.data.domain_arrays import DigitsDA, OfficeCaltech10
from tta_cattan.bench.data.domain_images import DomainNet, Office31, OfficeHome
from tta_cattan.bench.data.features import Features
from tta_cattan.bench.data.imagenet_c import ImageNet3DCC, ImageNetC, ImageNetClean
from tta_cattan.bench.data.stream import Batch, Stream, Unlabelled

__all__ = [
    "BENCHMARK_REGISTRY",
    "Batch",
    "Benchmark",
    "Cifar10C",
    "Cifar10Clean",
    "Cifar100C",
    "Cifar100Clean",
    "DigitsC",
    "DigitsDA",
    "DomainNet",
    "Features",
    "ImageNet3DCC",
    "ImageNetC",
    "ImageNetClean",
    "Office31",
    "OfficeCaltech10",
    "OfficeHome",
    "PointDA10",
    "ShapesC",
    "Stream",
    "Unlabelled",
    "benchmark_of",
]
