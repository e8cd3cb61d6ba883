"""Accuracy without labels on corrupted images: ``python -m benchmarks.accuracy.monitor_images FILE [KEY VALUE ...]``.

FILE is a config of the harness. Its source images (DATA.SOURCE_DIR) calibrate, and every domain is watched. With
``--shifts DIR`` a line is fitted too: DIR holds other images under the corruptions that no table reports.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.accuracy.monitor_features import BATCH, Data, Rows, to_markdown, watch
from tta_cattan.bench.data import benchmark_of
from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.data.corruptions import EXTRA
from tta_cattan.bench.source.model import source_model
from tta_cattan.config import find_config, load_cfg
from tta_cattan.network.layers import find_classifier


def load(data: Dataset) -> Data:
    """Return all images and labels, shuffled."""
    torch.manual_seed(0)
    images, labels = zip(*DataLoader(data, BATCH, shuffle=True), strict=True)
    return torch.cat(images), torch.cat(labels)


def images_of(benchmark: Benchmark) -> dict[str, Data]:
    """Return the images and labels of every domain."""
    return {domain.label: load(benchmark.target(domain)) for domain in benchmark.domains()}


@torch.no_grad()
def main(arguments: list[str]) -> int:
    """Print mean absolute error in points and correlation of each estimator, frozen and under TENT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.monitor_images", description=__doc__)
    parser.add_argument("cfg", metavar="FILE")
    parser.add_argument("--shifts", metavar="DIR")
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE")
    options = parser.parse_intermixed_args(arguments)
    cfg = load_cfg(find_config(options.cfg), options.overrides)
    benchmark = benchmark_of(cfg)
    with torch.enable_grad():  # a small network is trained on the spot
        network = source_model(cfg, benchmark).model.eval()
    head = network.get_submodule(find_classifier(network))
    labelled = [load(benchmark.source())]
    if options.shifts:
        places = ["DATA_DIR", options.shifts, "CORRUPTION.TYPE", list(EXTRA)]
        labelled += images_of(benchmark_of(load_cfg(find_config(options.cfg), [*options.overrides, *places]))).values()
    rows: Rows = {}
    watch(rows, network, head, labelled, images_of(benchmark))
    print(to_markdown(rows))
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
