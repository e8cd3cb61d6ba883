"""Benchmarks by name; importing this package registers them."""

from tta_cattan.bench.data import cifar_c, clouds, digits, domain_images, features, imagenet_c, pointda10
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, Benchmark, benchmark_of
from tta_cattan.bench.data.domain_stream import DomainStream, stream_identity, stream_of
from tta_cattan.bench.data.stream import Batch, Stream, Unlabelled
