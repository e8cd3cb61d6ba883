"""What the study runs: blocks that choose the baselines' learning rates, and blocks that are reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.shifts import IMAGENET_CORRUPTIONS
from tta_cattan.bench.data.corruptions import EXTRA

BASELINES = ("tent", "tent_plus", "shot", "ip", "cattan")
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
PARTS = ("CLASSES.USE=False", "CATTAN_PLUS.SOURCE_MOMENTS=none")
OWN = (
    "CATTAN_PLUS.SCALE=0.01,0.05",
    "CATTAN_PLUS.SKEW=1,30",
    "CLASSES.SHRINKAGE=0.1,0.8",
    "CLASSES.PRIOR_COUNT=0,100",
    "CLASSES.CHANGE=0,0.1",
    "CLASSES.UNIFORMITY=0,1",
    *PARTS,
)
PRODUCT = (
    "CATTAN.CENTERING=pca,none,shift",
    "CATTAN.ALIGN_REDUCTION=sum,mean",
    "CATTAN.LAMBDA_ALIGN=0.1,1.0,10.0",
    "CATTAN.CLASS_BALANCE=sum,mean,entropy,running",
    "CATTAN.LAMBDA_CB=1.0,3.0",
    "CATTAN.CONFIDENCE=hlr,slr,entropy",
    "CATTAN.D=16,64,256",
    "CATTAN.PHI_LR=0.3,1.0,3.0",
    "BN.STATISTICS=batch,running,blend",
    "OPTIM.LR=0.0003,0.001,0.003",
)
SEVERAL = ("gaussian_noise", "motion_blur", "snow", "contrast", "jpeg_compression")


@dataclass(frozen=True)
class Block:
    """One table: a config with its changes, the methods, and where their learning rates come from.

    A block with ``rates`` tries each of them for every baseline. One with ``chosen_by`` takes, for every baseline, the
    best setting of that block; CATTAn+ has its preset everywhere.
    """

    name: str
    title: str
    cfg: str
    overrides: Sequence[Any]
    methods: Sequence[str] = ("source", "norm", *BASELINES, "cattan_plus")
    rates: Sequence[float] = ()
    chosen_by: str = ""
    pairs: bool = False
    sweep: str = ""
    vary: Sequence[str] = ()  # KEY=a,b,c, each key alone
    grid: Sequence[str] = ()  # KEY=a,b,c, of whose product ``draws`` points are run
    draws: int = 0


def blocks(data: Path, out: Path) -> list[Block]:
    """Return all blocks, those that choose first."""
    pyautoattack = _example_model()
    offline = ["TEST.PROTOCOL", "offline", "TEST.EPOCHS", 3, "TEST.BATCH_SIZE", 64]
    digits = ["DATA_DIR", out / "digits", "TEST.EPOCHS", 5]
    choosing_digits = [*digits, "CORRUPTION.DATASET", "study_digits", "DATA.TARGET", "uci", "SEEDS", [0]]
    uneven = [*digits, "CORRUPTION.DATASET", "study_uneven", "DATA.SOURCE", "mnist"]

    def cifar(model: str, part: str, n: int, *more: Any) -> list[Any]:
        weights = data / "cifar10" / f"{model}.safetensors" if model != "resnet18" else pyautoattack
        return [
            "MODEL.ARCH", f"cifar_{model}", "MODEL.CKPT_PATH", weights, "DATA_DIR", out / f"cifar-{part}",
            "DATA.SOURCE_DIR", data / "cifar10" / "train_first10k.npz", "CORRUPTION.NUM_EX", n, *more,
        ]  # fmt: skip

    choosing_cifar = cifar("resnet20", "choosing", 600, *offline, "CORRUPTION.TYPE", list(EXTRA), "SEEDS", [0])
    several = ["CORRUPTION.TYPE", list(SEVERAL), "SEEDS", [0]]
    few = [*several, "TEST.PROTOCOL", "online"]
    imagenet = [
        "MODEL.ARCH", "resnet50_v1", "MODEL.CKPT_PATH", data / "imagenet" / "resnet50.safetensors",
        "DATA_DIR", out / "imagenet", "DATA.IMAGE_SIZE", 128, "CORRUPTION.NUM_EX", -1, "TEST.NUM_WORKERS", 0,
        "SEEDS", [0], "CATTAN.SOURCE_BASIS", "classifier", "CATTAN.D", 256,
    ]  # fmt: skip
    clean = ["CORRUPTION.DATASET", "study_clean", "CORRUPTION.SEVERITY", [0], "SEEDS", [0]]
    return [
        Block(
            "choose-digits",
            "MNIST and USPS to scikit-learn's digits, 1,797 images, offline, 5 epochs: chooses",
            "cfgs/mnist_usps/cattan.yaml",
            choosing_digits,
            methods=(*BASELINES, "cattan_plus"),
            rates=RATES,
            pairs=True,
        ),
        Block(
            "choose-cifar",
            "CIFAR-10, four extra corruptions, ResNet-20, 600 other images, offline, 3 epochs: chooses",
            "cfgs/cifar10_c/cattan.yaml",
            choosing_cifar,
            methods=(*BASELINES, "cattan_plus"),
            rates=RATES,
        ),
        Block(
            "product-digits",
            "CATTAn's options all at once, 72 points: MNIST and USPS to scikit-learn's digits, as in choose-digits",
            "cfgs/mnist_usps/cattan.yaml",
            choosing_digits,
            methods=("cattan",),
            pairs=True,
            grid=PRODUCT,
            draws=72,
        ),
        Block(
            "own-digits",
            "CATTAn+'s own settings, each alone: USPS to scikit-learn's digits, offline, 5 epochs: not reported",
            "cfgs/mnist_usps/cattan.yaml",
            [*choosing_digits, "DATA.SOURCE", "usps"],
            methods=("cattan_plus",),
            vary=OWN,
        ),
        Block(
            "own-cifar",
            "CATTAn+'s own settings, each alone: CIFAR-10, four extra corruptions, as in choose-cifar: not reported",
            "cfgs/cifar10_c/cattan.yaml",
            choosing_cifar,
            methods=("cattan_plus",),
            vary=("MIRROR=True", *OWN),
        ),
        Block(
            "digits",
            "MNIST and USPS, 2,000 images, offline, 5 epochs",
            "cfgs/mnist_usps/cattan.yaml",
            [*digits, "CORRUPTION.NUM_EX", 2000],
            chosen_by="choose-digits",
            pairs=True,
        ),
        Block(
            "digits-product",
            "MNIST and USPS, as in digits: CATTAn as the best of 72 points has it",
            "cfgs/mnist_usps/cattan.yaml",
            [*digits, "CORRUPTION.NUM_EX", 2000],
            methods=("cattan",),
            chosen_by="product-digits",
            pairs=True,
        ),
        Block(
            "uneven",
            "MNIST to USPS (test images) without some digits, offline, 5 epochs",
            "cfgs/mnist_usps/cattan.yaml",
            uneven,
            chosen_by="choose-digits",
        ),
        Block(
            "office",
            "Office-Caltech10, features, twelve pairs, offline, 5 epochs",
            "cfgs/office_caltech10/cattan.yaml",
            ["DATA_DIR", data / "office_caltech10"],
            chosen_by="choose-digits",
            pairs=True,
            methods=("source", "norm", "tent", "tent_plus", "shot", "cattan", "cattan_plus"),
        ),
        Block(
            "cifar20",
            "CIFAR-10, fifteen corruptions, ResNet-20, 400 images, offline, 3 epochs",
            "cfgs/cifar10_c/cattan.yaml",
            cifar("resnet20", "reported", 400, *offline),
            chosen_by="choose-cifar",
        ),
        Block(
            "cifar20-blend",
            "CIFAR-10 as in cifar20, the baselines with CATTAn+'s statistics, one seed",
            "cfgs/cifar10_c/cattan.yaml",
            cifar("resnet20", "reported", 400, *offline, "SEEDS", [0], "BN.STATISTICS", "blend"),
            methods=("norm", *BASELINES),
            chosen_by="choose-cifar",
        ),
        Block(
            "cifar-fresh",
            "CIFAR-10 as in cifar20, 400 images that nobody had looked at before, one seed",
            "cfgs/cifar10_c/cattan.yaml",
            cifar("resnet20", "fresh", 400, *offline, "SEEDS", [0]),
            chosen_by="choose-cifar",
        ),
        Block(
            "cifar56",
            "CIFAR-10, fifteen corruptions, ResNet-56, 400 images, online, batch 64, one seed",
            "cfgs/cifar10_c/cattan.yaml",
            cifar("resnet56", "reported", 400, "TEST.PROTOCOL", "online", "TEST.BATCH_SIZE", 64, "SEEDS", [0]),
            chosen_by="choose-cifar",
        ),
        Block(
            "cifar56-offline",
            "CIFAR-10, fifteen corruptions, ResNet-56, 400 images, offline, 3 epochs, one seed",
            "cfgs/cifar10_c/cattan.yaml",
            cifar("resnet56", "reported", 400, *offline, "SEEDS", [0]),
            chosen_by="choose-cifar",
        ),
        Block(
            "cifar18",
            "CIFAR-10, five corruptions, ResNet-18, 400 images, online, batch 64, one seed",
            "cfgs/cifar10_c/cattan.yaml",
            cifar("resnet18", "reported", 400, *few, "TEST.BATCH_SIZE", 64),
            methods=("source", "norm", "tent", "ip", "cattan", "cattan_plus"),
            chosen_by="choose-cifar",
        ),
        Block(
            "batches",
            "CIFAR-10, five corruptions, ResNet-20, 400 images, online, batches of 200 to 1, one seed",
            "cfgs/cifar10_c/cattan.yaml",
            cifar("resnet20", "reported", 400, *few),
            chosen_by="choose-cifar",
            methods=("tent", "shot", "ip", "cattan", "cattan_plus"),
            sweep="TEST.BATCH_SIZE=200,64,16,1",
        ),
        Block(
            "parts-cifar",
            "The parts of CATTAn+: CIFAR-10, five corruptions, ResNet-20, 400 images, offline, 3 epochs, one seed",
            "cfgs/cifar10_c/cattan.yaml",
            cifar("resnet20", "reported", 400, *several, *offline),
            methods=("cattan_plus",),
            vary=("MIRROR=True", *PARTS),
        ),
        Block(
            "parts-digits",
            "The parts of CATTAn+: USPS to MNIST, 2,000 images, offline, 5 epochs, three seeds",
            "cfgs/mnist_usps/cattan.yaml",
            [*digits, "CORRUPTION.NUM_EX", 2000, "DATA.SOURCE", "usps", "DATA.TARGET", "mnist"],
            methods=("cattan_plus",),
            vary=PARTS,
        ),
        Block(
            "clean-online",
            "Clean CIFAR-10, ResNet-56, 2,000 images, online, batch 64, one seed",
            "cfgs/cifar10_c/cattan.yaml",
            cifar("resnet56", "reported", 2000, *clean, "TEST.PROTOCOL", "online", "TEST.BATCH_SIZE", 64),
            chosen_by="choose-cifar",
        ),
        Block(
            "clean-offline",
            "Clean CIFAR-10, ResNet-56, 1,000 images, offline, 3 epochs, one seed",
            "cfgs/cifar10_c/cattan.yaml",
            cifar("resnet56", "reported", 1000, *clean, *offline),
            chosen_by="choose-cifar",
        ),
        Block(
            "clean-digits",
            "Clean embedded digits, offline, 5 epochs, five seeds",
            "cfgs/digits_c/cattan.yaml",
            ["CORRUPTION.TYPE", ["brightness"], "CORRUPTION.SEVERITY", [0], "SEEDS", [0, 1, 2, 3, 4]],
        ),
        Block(
            "imagenet",
            "ImageNet images (512), ResNet-50, 128 pixels, four corruptions, online, batch 64, one seed",
            "cfgs/imagenet_c/cattan.yaml",
            [*imagenet, "CORRUPTION.TYPE", list(IMAGENET_CORRUPTIONS), "TEST.PROTOCOL", "online"],
            methods=("source", "norm", "tent", "ip", "cattan", "cattan_plus"),
        ),
        Block(
            "imagenet-offline",
            "ImageNet images (512), ResNet-50, 128 pixels, two corruptions, offline, 2 epochs, one seed",
            "cfgs/imagenet_c/cattan.yaml",
            [*imagenet, "CORRUPTION.TYPE", ["gaussian_noise", "fog"], "TEST.PROTOCOL", "offline", "TEST.EPOCHS", 2],
            methods=("source", "norm", "tent", "ip", "cattan", "cattan_plus"),
        ),
    ]


def _example_model() -> Path:
    """Return the CIFAR-10 ResNet-18 that lies in the package pyautoattack, which RobustBench brings."""
    from importlib.metadata import files

    found = [file for file in files("pyautoattack") or () if file.name == "model_test.pt"]
    return Path(str(found[0].locate())) if found else Path("model_test.pt")
