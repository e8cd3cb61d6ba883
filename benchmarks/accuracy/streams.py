"""The streams of docs/results.md: ``python -m benchmarks.accuracy.streams --data DIR --host CHECKOUT [NAME ...]``.

Each method runs at the rate that is best on a continual stream of other corruptions and other images; runs resume.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.grid import SEVERAL
from benchmarks.accuracy.shifts import make_all
from tta_cattan.bench.data.corruptions import EXTRA
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.run.gather import gather
from tta_cattan.bench.run.host_methods import borrow
from tta_cattan.bench.run.log import setup_logging
from tta_cattan.config import find_config
from tta_cattan.methods import method_title
from tta_cattan.util.files import write_text
from tta_cattan.util.memory import keep_freed_memory

FIXED = ("source", "norm", "cattan_plus")  # no learning rate
OURS = ("tent", "ip", "cattan")
HOSTS = ("host:roid", "host:eata", "host:sar", "host:rotta", "host:cotta")
RATES = (3e-4, 1e-3, 3e-3, 1e-2)


@dataclass(frozen=True)
class Stream:
    """A column: what puts the reported stream together, and the stream and rates that choose for it."""

    changes: Sequence[Any]
    choosing: Sequence[Any] = ("CORRUPTION.NUM_EX", 1000)
    rates: Sequence[float] = RATES
    network: str = "cifar_resnet20"


def streams() -> dict[str, Stream]:
    """Return the columns by name; those of one network and batch size share their rates."""
    thousand = ("CORRUPTION.NUM_EX", 1000)
    small = ("TEST.BATCH_SIZE", 8), ("TEST.BATCH_SIZE", 1)
    return {
        "continual": Stream(("SETTING", "continual", *thousand)),
        "reset": Stream(("SETTING", "reset_each_shift", *thousand)),
        "mixed": Stream(("SETTING", "mixed_domains", *thousand)),
        "dirichlet": Stream(("SETTING", "correlated", "TEST.DELTA_DIRICHLET", 0.1, *thousand)),
        "sorted": Stream(("SETTING", "correlated", "TEST.DELTA_DIRICHLET", 0, *thousand)),
        "recurring": Stream(("SETTING", "recurring", "CORRUPTION.NUM_EX", 100)),
        "batch8": Stream(
            ("SETTING", "continual", *thousand, *small[0]), ("CORRUPTION.NUM_EX", 250, *small[0]), (1e-5, 1e-4, 1e-3)
        ),
        "batch1": Stream(
            ("SETTING", "continual", "CORRUPTION.NUM_EX", 200, *small[1]),
            ("CORRUPTION.NUM_EX", 50, *small[1]),
            (1e-6, 1e-5, 1e-4),
        ),
        "resnet56": Stream(("SETTING", "continual", *thousand), network="cifar_resnet56"),
        "resnet56-mixed": Stream(("SETTING", "mixed_domains", *thousand), network="cifar_resnet56"),
    }


class Streams:
    """Runs the streams of one set of files, keeping data and results in ``out``."""

    def __init__(self, data: Path, out: Path) -> None:
        self.data, self.out = data, out
        self.cfg = find_config("cfgs/cifar10_c/cattan.yaml")

    def overrides(self, part: str, network: str, changes: Sequence[Any]) -> list[Any]:
        """Return the keys of a run on a ``part`` of the images, ``choosing`` or ``reported``."""
        types = EXTRA if part == "choosing" else SEVERAL
        weights = self.data / "cifar10" / f"{network.removeprefix('cifar_')}.safetensors"
        return [
            "MODEL.ARCH", network, "MODEL.CKPT_PATH", str(weights), "TEST.BATCH_SIZE", 64, "SEEDS", [0],
            "DATA.SOURCE_DIR", str(self.data / "cifar10" / "train_first10k.npz"), "TEST.PROTOCOL", "online",
            "DATA_DIR", str(self.out / f"cifar-{part}"), "CORRUPTION.TYPE", list(types), "DEVICE", "cpu",
            "SAVE_DIR", str(self.out / "results"), "CKPT_DIR", str(self.out / "ckpt"), *changes,
        ]  # fmt: skip

    def records(self, method: str, part: str, network: str, rate: float | None, changes: Sequence[Any]) -> list[Record]:
        """Return the results of one method at one rate."""
        rates: list[Any] = [] if rate is None else ["OPTIM.LR", rate]
        if rate is not None and method.startswith("host:"):
            window = ["TEST.WINDOW_LENGTH", "16"]  # of images that come one by one, as many as CATTAn+ pools
            rates = ["HOST.OPTIONS", ["OPTIM.LR", str(rate), *window]]
        return list(gather(self.cfg, [*self.overrides(part, network, changes), *rates], [method]).records)

    def best_rate(self, method: str, stream: Stream) -> tuple[float, dict[float, float]]:
        """Return the rate with the highest accuracy on the choosing stream, and the accuracy of each.

        Note: ResNet-56 has the rates that were chosen for ResNet-20.
        """
        changes = ("SETTING", "continual", *stream.choosing)
        tried = {
            rate: mean_of(self.records(method, "choosing", "cifar_resnet20", rate, changes)) for rate in stream.rates
        }
        return max(tried, key=lambda rate: tried[rate]), tried

    def row(self, method: str, name: str, stream: Stream) -> str:
        """Return one line of a table."""
        rate, tried = (None, {}) if method in FIXED else self.best_rate(method, stream)
        records = self.records(method, "reported", stream.network, rate, stream.changes)
        others = [mean_of(records, key) for key in ("worst_window", "clean_accuracy")]
        shown = " / ".join(f"{100 * value:.1f}" for value in (mean_of(records), *others) if value is not None)
        seconds = sum(record.metrics["seconds"] for record in records)
        chosen = ", ".join(f"{rate:g}: {100 * value:.1f}" for rate, value in tried.items())
        at = "" if rate is None else f"{rate:g}"
        return f"| {name} | {method_title(method)} | {at} | {shown} | {seconds:.0f} | {chosen} |"


def mean_of(records: Sequence[Record], key: str = "accuracy") -> float | None:
    """Return the mean of a metric, or None where a record lacks it."""
    values = [record.metrics.get(key) for record in records]
    return None if None in values else statistics.fmean(values)


def main(arguments: Sequence[str]) -> int:
    """Run the streams in order; print and write each line as soon as it is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.streams", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(streams())} (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data: cifar10")
    parser.add_argument("--host", help="checkout of mariodoebler/test-time-adaptation; without it our methods alone")
    parser.add_argument("--methods", default="", help="some of the methods, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("output", "study"), help="where data and results are kept")
    options = parser.parse_args(arguments)
    known = streams()
    if unknown := set(options.names) - set(known):
        parser.error(f"no stream is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    methods = options.methods.split(",") if options.methods else [*FIXED, *OURS, *(HOSTS if options.host else ())]
    setup_logging()
    keep_freed_memory()
    make_all(options.data, options.out, ["cifar"])
    if borrowed := [method.removeprefix("host:") for method in methods if method.startswith("host:")]:
        for name, reason in borrow(options.host, borrowed).items():
            print(f"left out: {name}: {reason}", flush=True)
            methods.remove(name)
    run = Streams(options.data.resolve(), options.out.resolve())
    lines = [
        "| stream | method | rate | accuracy / worst window / clean afterwards | seconds | accuracy of the rates |",
        "|---|---|---:|---:|---:|---|",
    ]
    for name in options.names or known:
        for method in methods:
            lines.append(run.row(method, name, known[name]))
            print(lines[-1], flush=True)
            write_text(options.out / "streams.md", "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
