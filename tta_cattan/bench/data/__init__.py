"""Benchmarks by name; importing this package registers them."""

from tta_cattan.bench.data import cifar_c, digits, domain_arrays, domain_images, features, imagenet_c
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, Benchmark, benchmark_of
from tta_cattan.bench.data.clouds import modelnet10, pointda10, shapes_c
from tta_cattan.bench.data.domain_stream import DomainStream, stream_identity, stream_of
from tta_cattan.bench.data.stream import Batch, Stream, Unlabelled
