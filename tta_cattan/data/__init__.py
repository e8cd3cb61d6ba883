"""Benchmarks by name; importing this package registers them."""

from tta_cattan.data.benchmark import BENCHMARK_REGISTRY, Benchmark
from tta_cattan.data.digits import DigitsC
from tta_cattan.data.digits_da import DigitsDA
from tta_cattan.data.stream import Batch, Stream, Unlabelled

__all__ = ["BENCHMARK_REGISTRY", "Batch", "Benchmark", "DigitsC", "DigitsDA", "Stream", "Unlabelled"]
