"""Accuracy without labels on corrupted images: ``python -m benchmarks.accuracy.monitor_images FILE [KEY VALUE ...]``.

FILE is a config of the harness. Its source images (DATA.SOURCE_DIR) calibrate, and every domain is watched.
"""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.accuracy.monitor_features import BATCH, Data, Rows, to_markdown, watch
from tta_cattan.bench.data import benchmark_of
from tta_cattan.bench.source.model import source_model
from tta_cattan.config import find_config, load_cfg
from tta_cattan.network.layers import find_classifier


def load(data: Dataset) -> Data:
    """Return all images and labels, shuffled."""
    torch.manual_seed(0)
    images, labels = zip(*DataLoader(data, BATCH, shuffle=True), strict=True)
    return torch.cat(images), torch.cat(labels)


@torch.no_grad()
def main(arguments: list[str]) -> int:
    """Print mean absolute error in points and correlation of each estimator, frozen and under TENT."""
    cfg = load_cfg(find_config(arguments[0]), arguments[1:])
    benchmark = benchmark_of(cfg)
    with torch.enable_grad():  # a small network is trained on the spot
        network = source_model(cfg, benchmark).model.eval()
    head = network.get_submodule(find_classifier(network))
    rows: Rows = {}
    targets = {domain.label: load(benchmark.target(domain)) for domain in benchmark.domains()}
    watch(rows, network, head, load(benchmark.source()), targets)
    print(to_markdown(rows))
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
