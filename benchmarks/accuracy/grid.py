"""The grid of the study: every method with every option, at its best rate, chosen on shifts that are not reported."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from tta_cattan.bench.data.corruptions import COMMON, EXTRA
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.run.gather import gather
from tta_cattan.bench.run.plan import parse_sweeps, sweeps_of
from tta_cattan.config import find_config
from tta_cattan.methods import method_title

SEVERAL = ("gaussian_noise", "motion_blur", "snow", "contrast", "jpeg_compression")
LEARNING = ("tent", "shot", "ip", "cattan")
FIXED = ("source", "norm", "cattan_forward")  # no learning rate
OFFLINE = (*FIXED, *LEARNING, "cattan_plus")  # online CATTAn+ is CATTAn-F
OURS = ("cattan_forward", "cattan_plus")
COLUMNS: Mapping[str, Sequence[Any]] = {
    "nothing": (),
    "blend": ("BN.STATISTICS", "blend"),
    "mirror": ("MIRROR", True),
    "both": ("BN.STATISTICS", "blend", "MIRROR", True),
    "classes": ("CLASSES.USE", True),
    "all": ("BN.STATISTICS", "blend", "MIRROR", True, "CLASSES.USE", True),
}


@dataclass(frozen=True)
class Grid:
    """One table: a config, what its choosing and its reported runs change, the rates tried, and its columns.

    ``choosing_cfg`` is the config of the choosing runs where it is another; ``readings`` are tried beside the rates.
    """

    name: str
    title: str
    cfg: str
    choosing: Sequence[Any]
    reported: Sequence[Any]
    rates: Sequence[float]
    columns: Sequence[str]
    methods: Sequence[str] = (*FIXED, *LEARNING)
    pairs: bool = False
    choosing_cfg: str = ""
    readings: Sequence[str] = ()


@dataclass(frozen=True)
class Entry:
    """A method in a column: the chosen settings, accuracy by (domain, seed), and seconds per image."""

    chosen: Mapping[str, Any]
    accuracy: Mapping[tuple[str, int], float]
    cost: float

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracy.values())

    def by_domain(self) -> dict[str, float]:
        """Return the mean over seeds of each domain."""
        found = defaultdict(list)
        for (domain, _), value in self.accuracy.items():
            found[domain].append(value)
        return {domain: statistics.fmean(values) for domain, values in found.items()}


def grids(data: Path, out: Path) -> list[Grid]:
    """Return the tables of the study."""
    cifar = [
        "MODEL.ARCH", "cifar_resnet20", "MODEL.CKPT_PATH", data / "cifar10" / "resnet20.safetensors",
        "DATA.SOURCE_DIR", data / "cifar10" / "train_first10k.npz", "TEST.BATCH_SIZE", 64,
    ]  # fmt: skip
    choosing = [*cifar, "DATA_DIR", out / "cifar-choosing", "CORRUPTION.TYPE", list(EXTRA), "SEEDS", [0]]
    reported = [*cifar, "DATA_DIR", out / "cifar-reported", "CORRUPTION.TYPE", list(SEVERAL)]
    online, offline = ["TEST.PROTOCOL", "online"], ["TEST.PROTOCOL", "offline", "TEST.EPOCHS", 3]
    features = {name: ["DATA_DIR", out / "features" / name] for name in ("office31", "officehome")}
    on_features = {
        "columns": ("nothing", "classes"),
        "rates": (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
        "readings": ("CATTAN.CLASS_BALANCE=running", "CATTAN.LAMBDA_ALIGN=1,0.1,0.01,0.001"),
        "pairs": True,
    }
    without_images = tuple(method for method in OFFLINE if method != "ip")
    imagenet = [
        "MODEL.ARCH", "resnet50_v1", "MODEL.CKPT_PATH", data / "imagenet" / "resnet50.safetensors",
        "DATA.SOURCE_DIR", out / "imagenet" / "source", "CORRUPTION.NUM_EX", -1, "CATTAN_FORWARD.CHANNELS", 512,
        "OPTIM.METHOD", "Adam", *online,
    ]  # fmt: skip
    on_imagenet = {
        "cfg": "cfgs/imagenet_c/cattan.yaml",
        "choosing": [
            *imagenet, "DATA_DIR", out / "imagenet" / "choosing", "CORRUPTION.TYPE", list(EXTRA[:2]), "SEEDS", [0],
        ],
        "rates": (1e-3, 3e-3, 1e-2, 3e-2),
        "columns": ("nothing",),
        "readings": ("CATTAN.SOURCE_BASIS=auto,classifier",),
    }  # fmt: skip
    on_reported = [*imagenet, "DATA_DIR", out / "imagenet" / "reported"]
    return [
        Grid(
            "cifar-online",
            "CIFAR-10, ResNet-20, five corruptions, 1,000 images each, online, batch 64",
            "cfgs/cifar10_c/cattan.yaml",
            [*choosing, *online, "CORRUPTION.NUM_EX", 256],
            [*reported, *online, "CORRUPTION.NUM_EX", 1000, "SEEDS", [0, 1, 2]],
            (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
            ("nothing", "blend", "mirror", "both"),
        ),
        Grid(
            "cifar-offline",
            "CIFAR-10, ResNet-20, five corruptions, 400 images each, offline, 3 epochs",
            "cfgs/cifar10_c/cattan.yaml",
            [*choosing, *offline, "CORRUPTION.NUM_EX", 200],
            [*reported, *offline, "CORRUPTION.NUM_EX", 400, "SEEDS", [0, 1, 2]],
            (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
            ("nothing", "both", "all"),
            methods=OFFLINE,
        ),
        Grid(
            "office31",
            "Office-31, frozen ResNet-50 features, six tasks, offline; settings chosen on OfficeHome's A>C and C>A",
            "cfgs/office31_features/cattan.yaml",
            [*features["officehome"], "DATA.DOMAINS", ["Art", "Clipart"], "SEEDS", [0]],
            [*features["office31"], "SEEDS", [0, 1, 2]],
            methods=without_images,
            choosing_cfg="cfgs/officehome_features/cattan.yaml",
            **on_features,
        ),
        Grid(
            "officehome",
            "OfficeHome, frozen ResNet-50 features, twelve tasks, offline; settings chosen on Office-31's A>W and W>A",
            "cfgs/officehome_features/cattan.yaml",
            [*features["office31"], "DATA.DOMAINS", ["amazon", "webcam"], "SEEDS", [0]],
            [*features["officehome"], "SEEDS", [0, 1, 2]],
            methods=without_images,
            choosing_cfg="cfgs/office31_features/cattan.yaml",
            **on_features,
        ),
        Grid(
            "digits",
            "MNIST and USPS, natural class frequencies, 2,000 images, offline; rates chosen on scikit-learn's digits",
            "cfgs/mnist_usps/cattan.yaml",
            ["DATA_DIR", out / "digits", "CORRUPTION.DATASET", "study_digits", "DATA.TARGET", "uci", "SEEDS", [0]],
            ["DATA_DIR", out / "digits", "CORRUPTION.NUM_EX", 2000, "SEEDS", [0, 1, 2]],
            (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
            ("nothing", "classes"),
            methods=OFFLINE,
            pairs=True,
            readings=("CATTAN.CLASS_BALANCE=sum,running", "CATTAN.LAMBDA_ALIGN=1,0.01"),
        ),
        Grid(
            "imagenet",
            "ImageNet images, ResNet-50, 224 px, five corruptions, 500 images each, online, batch 64, one seed",
            reported=[*on_reported, "CORRUPTION.TYPE", list(SEVERAL), "SEEDS", [0]],
            methods=(*FIXED, "tent", "tent_plus", "shot", "ip", "cattan"),
            **on_imagenet,
        ),
        Grid(
            "imagenet-fifteen",
            "The same images under all fifteen corruptions",
            reported=[*on_reported, "CORRUPTION.TYPE", list(COMMON), "SEEDS", [0]],
            methods=(*FIXED, "tent", "shot"),
            **on_imagenet,
        ),
    ]


def run_grid(grid: Grid, out: Path) -> dict[tuple[str, str], Entry]:
    """Return the entries of a grid by (method, column); what is in the results already is not computed again."""
    found = {}
    for column in grid.columns:
        classes = "CLASSES.USE" in COLUMNS[column]
        options = [*COLUMNS[column]] if classes else [*COLUMNS[column], "CLASSES.USE", False]
        for method in grid.methods:
            if method == "source" and column != grid.columns[0]:
                continue
            chosen: Mapping[str, Any] = {}
            if method not in FIXED:
                tried = [f"OPTIM.LR={','.join(map(str, grid.rates))}", *grid.readings]
                cfg = grid.choosing_cfg or grid.cfg
                chosen = best_settings(_records(grid, cfg, [*grid.choosing, *options], method, tried, out))
            settled = [f"{key}={value}" for key, value in chosen.items()]
            records = _records(grid, grid.cfg, [*grid.reported, *options], method, settled, out)
            accuracy = {(record.cell.domain, record.cell.seed): 100 * record.metrics["accuracy"] for record in records}
            cost = sum(r.metrics["seconds"] for r in records) / sum(r.metrics["n"] for r in records)
            found[method, column] = Entry(chosen, accuracy, cost)
    return found


def _records(
    grid: Grid, cfg: str, changes: Sequence[Any], method: str, tried: Sequence[str], out: Path
) -> Sequence[Record]:
    """Return the results of one method, under each combination of what is tried."""
    places = ["SAVE_DIR", out / "results", "CKPT_DIR", out / "ckpt"]
    overrides = [str(value) if isinstance(value, Path) else value for value in (*changes, *places)]
    sweeps = sweeps_of(method, parse_sweeps(tried))  # CATTAn's class balance is no setting of TENT's
    return gather(find_config(cfg), overrides, [method], sweeps, pairs=grid.pairs).records


def best_settings(records: Sequence[Record]) -> dict[str, Any]:
    """Return the settings with the highest mean accuracy."""
    found = defaultdict(list)
    for record in records:
        found[record.cell.settings].append(record.metrics["accuracy"])
    return dict(max(found, key=lambda settings: statistics.fmean(found[settings])))


def paired(ours: Entry, theirs: Entry) -> tuple[float, float]:
    """Return the mean difference over domains and half its 95 % interval (Student's t).

    Note: the seeds of a domain share its images, so they are averaged first and count as one pair.
    """
    other = theirs.by_domain()
    differences = [value - other[domain] for domain, value in ours.by_domain().items()]
    if len(differences) < 2:
        return statistics.fmean(differences), math.inf
    quantile = student.ppf(0.975, len(differences) - 1)
    return statistics.fmean(differences), quantile * statistics.stdev(differences) / math.sqrt(len(differences))


def to_markdown(found: Mapping[tuple[str, str], Entry], columns: Sequence[str]) -> str:
    """Return the grid: accuracy (settings; ms per image), and ours minus Norm and the best other of each column."""
    methods = list(dict.fromkeys(method for method, _ in found))
    lines = [f"| method | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for method in methods:
        cells = [_shown(found[method, column]) if (method, column) in found else "" for column in columns]
        lines.append(f"| {method_title(method)} | {' | '.join(cells)} |")
    for ours in [method for method in methods if method in OURS]:
        for name, among in (("Norm", ["norm"]), ("the best other", [m for m in methods if m not in OURS])):
            cells = []
            for column in columns:
                best = max((m for m in among if (m, column) in found), key=lambda method: found[method, column].mean)
                difference, half = paired(found[ours, column], found[best, column])
                cells.append(f"{difference:+.1f} ± {half:.1f}" + (f" ({method_title(best)})" if len(among) > 1 else ""))
            lines.append(f"| {method_title(ours)} minus {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(entry: Entry) -> str:
    chosen = ", ".join(value if isinstance(value, str) else f"{value:g}" for value in entry.chosen.values())
    return f"{entry.mean:.1f} ({'; '.join(filter(None, (chosen, f'{1000 * entry.cost:.2g} ms')))})"
