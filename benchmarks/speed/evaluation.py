"""Evaluating one ImageNet-C corruption against RobustBench's ``load_imagenetc`` and ``clean_accuracy``."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.speed.subjects import network
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved, peak_memory_of_family, show_bytes
from tta_cattan.bench.data import BENCHMARK_REGISTRY
from tta_cattan.bench.data.imagenet_c import class_labels, robustbench_ids
from tta_cattan.bench.models.zoo import LoadedModel
from tta_cattan.bench.results.store import Cell
from tta_cattan.bench.run.cell import run_cell
from tta_cattan.bench.run.plan import Job
from tta_cattan.bench.run.setting import Setting
from tta_cattan.config import load_cfg
from tta_cattan.util.upstream import import_robustbench

_DIFFERENT = 50  # images that are really encoded; the others are links to them


def write_images(folder: Path, n: int, size: int) -> None:
    """Write the layout of ImageNet-C with RobustBench's first ``n`` images, generated."""
    root, masters = folder / "ImageNet-C" / "fog" / "5", folder / "masters"
    masters.mkdir()
    random = np.random.default_rng(0)
    for number in range(_DIFFERENT):
        coarse = random.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC).save(masters / f"{number}.jpg")
    for wnid in class_labels():
        (root / wnid).mkdir(parents=True)
    for number, name in enumerate(robustbench_ids()[:n]):
        os.link(masters / f"{number % _DIFFERENT}.jpg", root / name)


def measure(tiny: bool = False, n: int = 5000) -> list[Line]:
    """Time the evaluation of a light model, so that reading the images is most of it, and sample the peak memory."""
    n, size = (6, 64) if tiny else (n, 224)
    model = network("shufflenet_v2_x0_5").requires_grad_(False)
    loaders, utils = (import_robustbench(f"robustbench.{name}") for name in ("data", "utils"))
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        write_images(Path(name), n, size)
        overrides = ["CORRUPTION.DATASET", "imagenet_c", "CORRUPTION.TYPE", "fog", "CORRUPTION.SEVERITY", 5]
        overrides += ["CORRUPTION.NUM_EX", n, "DATA_DIR", name, "TEST.ORDER", "file", "TEST.BATCH_SIZE", 100]
        cfg = load_cfg(None, [*overrides, "TEST.NUM_WORKERS", 2, "DEVICE", "cpu"])
        benchmark = BENCHMARK_REGISTRY.get("imagenet_c")(cfg)
        setting = Setting(benchmark, LoadedModel.of(model, "random weights"), torch.device("cpu"))

        def ours() -> None:
            found["ours"] = run_cell(Job(cfg, Cell("source", "fog", 5, 0)), setting).metrics["accuracy"]

        def theirs() -> None:
            x, y = loaders.load_imagenetc(n, 5, name, False, ["fog"])
            found["theirs"] = utils.clean_accuracy(model, x, y, 100)

        peaks: dict[str, list[int]] = {"ours": [], "RobustBench": []}
        works = {"ours": ours, "RobustBench": theirs}
        # Time and peak come of the same calls: the samples of the memory cost both sides the same.
        sides = {label: lambda label=label: peaks[label].append(peak_memory_of_family(works[label])) for label in works}
        rounds = interleaved(sides, rounds=1 if tiny else 2, warmups=0, wall=True)
    assert abs(found["ours"] - found["theirs"]) < 1.5 / n, found
    what = f"evaluation of one ImageNet-C corruption, {n:,} images of {size} px"
    mine, peers = (max(values) for values in peaks.values())
    memory = (show_bytes(mine), show_bytes(peers), mine / max(peers, 1), "<= 0.25")
    return [
        rounds.line(f"{what} (shufflenet, 2 loader processes each)", "ours", "RobustBench", "<= 1"),
        Line(f"{what}: peak memory", "RobustBench", *memory),
    ]


if __name__ == "__main__":
    print_lines(measure(n=int(sys.argv[1]) if len(sys.argv) > 1 else 5000))
