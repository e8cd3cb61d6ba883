"""The catalogue of mistakes on the command line: one line, exit code 2, no traceback, nothing lost, nothing run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import bad_files as bad
import numpy as np
import pytest
import torch
from digits_runs import overrides
from feature_folders import write_domain

from tta_cattan.cli.main import main

ROOT = Path(__file__).parents[1]
CFG = str(ROOT / "cfgs/digits_c/cattan.yaml")
IMAGES = np.zeros((3, 28, 28), np.uint8)
DA = {"CORRUPTION.DATASET": "digits_da", "DATA.SOURCE": "mnist", "DATA.TARGET": "usps"}

Make = Callable[[Path], list[str]]


def yaml(content: str | bytes) -> Make:
    """A config file with this content."""
    return lambda p: ["--cfg", str(bad.text(p / "mine.yaml", content)), "--dry-run"]


def words(*arguments: str) -> Make:
    """A command as it is typed; P stands for the test's folder."""
    return lambda p: [a.replace("P/", f"{p}/") for a in arguments]


def run(**keys: object) -> Make:
    """A run of CATTAn with these keys; a function makes the file that a key names."""

    def make(p: Path) -> list[str]:
        values = {key.replace("__", "."): value(p) if callable(value) else value for key, value in keys.items()}
        return ["--cfg", CFG, *overrides(p / "save", **values)]

    return make


def ckpt(make: Callable[[Path], Path]) -> Make:
    return run(MODEL__CKPT_PATH=lambda p: make(p / "weights.pt"))


def safe_ckpt(make: Callable[[Path], Path]) -> Make:
    return run(MODEL__CKPT_PATH=lambda p: make(p / "weights.safetensors"))


def basis(make: Callable[[Path], Path], **keys: object) -> Make:
    return run(CATTAN__SOURCE_BASIS=lambda p: make(p / "w.safetensors"), **keys)


def digits(**files: Callable[[Path], Path] | None) -> Make:
    """MNIST-like domains `one` and `two`, each made by a function; None leaves it out."""

    def make(p: Path) -> list[str]:
        for name, write in files.items():
            if write is not None:
                write(p / f"{name}.npz")
        return run(**{k.replace(".", "__"): v for k, v in DA.items()}, DATA_DIR=p)(p)

    return make


def good_digits(path: Path) -> Path:
    y = np.zeros(3, np.int64)
    return bad.npz(path, x_train=IMAGES, y_train=y, x_test=IMAGES, y_test=y)


def features(name: str, **change: object) -> Make:
    """A run on features of two domains, whose file ``name`` was edited."""

    def make(p: Path) -> list[str]:
        for domain in ("one", "two"):
            write_domain(p / "features", domain, 8)
        path = p / "features" / "two" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        keys = {
            "CORRUPTION__DATASET": "features",
            "DATA__SOURCE": "one",
            "DATA__TARGET": "two",
            "MODEL__ARCH": "feature_mlp",
        }
        return run(**keys, MODEL__IN_FEATURES=6, DATA_DIR=p / "features")(p)

    return make


def with_images(*arguments: str) -> Make:
    """make-corruptions on two images, one of them damaged."""

    def make(p: Path) -> list[str]:
        (p / "images" / "class").mkdir(parents=True)
        bad.text(p / "images" / "class" / "a.png", b"\x89PNG not really")
        return words("make-corruptions", "--images", "P/images", "--out", "P/out", "--workers", "1", *arguments)(p)

    return make


def cifar(rows: object = None, labels: object = None, **keys: object) -> Make:
    """A run on CIFAR-10-C with other rows or labels."""
    values = {"CORRUPTION__DATASET": "cifar10_c", "CORRUPTION__TYPE": "fog", "CORRUPTION__SEVERITY": "5"}
    return run(**{**values, "CORRUPTION__NUM_EX": "12", **keys}, DATA_DIR=lambda p: bad.cifar_c(p, rows, labels))


def state(change: Callable[[dict[str, torch.Tensor]], object]) -> Make:
    """A run with weights of small_resnet that were changed."""
    return ckpt(lambda p: bad.weights(p, change))


def source_npz(**arrays: np.ndarray) -> Make:
    """make-corruptions on an .npz file."""
    return lambda p: words("make-corruptions", "--images", str(bad.npz(p / "x.npz", **arrays)), "--out", "P/o")(p)


def image_files(make: Callable[[Path], object]) -> Make:
    """make-corruptions on class folders."""

    def arguments(p: Path) -> list[str]:
        (p / "images" / "class").mkdir(parents=True)
        make(p / "images" / "class")
        return words(
            "make-corruptions", "--images", "P/images", "--out", "P/o", "--workers", "1", "--corruptions", "contrast"
        )(p)

    return arguments


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 14))
RGB = np.full((3, 32, 32, 3), 7, np.uint8)


CATALOGUE: dict[str, tuple[Make, list[str]]] = {
    # config files
    "an unknown node": (yaml("CATAN: {D: 3}"), ["unknown key 'CATAN'", "CATTAN"]),
    "an unknown key": (yaml("CATTAN: {DIM: 3}"), ["unknown key 'CATTAN.DIM'"]),
    "a word for a number": (yaml("CATTAN: {D: many}"), ["CATTAN.D", "'many'"]),
    "a number out of range": (yaml("OPTIM: {LR: -1.0}"), ["OPTIM.LR = -1.0: must be >= 0"]),
    "not a number": (yaml("OPTIM: {LR: .nan}"), ["OPTIM.LR = nan: must be finite"]),
    "a choice that is none": (yaml("BN: {STATISTICS: bach}"), ["BN.STATISTICS = 'bach'", "Did you mean 'batch'?"]),
    "a key twice": (yaml("RNG_SEED: 1\nRNG_SEED: 2\n"), ["line 2", "'RNG_SEED' is given twice"]),
    "broken YAML": (yaml("MODEL: {ARCH: [\n"), ["mine.yaml, line"]),
    "a list at the top": (yaml("- MODEL\n"), ["must hold keys and values at the top level, not list"]),
    "not text": (yaml(b"\xff\xfe\x00\x01"), ["mine.yaml: cannot be read as YAML"]),
    "YAML that runs code": (yaml("DESC: !!python/object/apply:os.mkdir ['P']"), ["mine.yaml", "python/object"]),
    "a dotted key": (yaml("CATTAN.D: 3"), ["'CATTAN.D' is two keys in YAML"]),
    "a value for a node": (yaml("CATTAN: 5"), ["CATTAN = 5: is a group of keys"]),
    "a base that is not there": (yaml("_BASE_: nowhere.yaml"), ["_BASE_ = 'nowhere.yaml': there is no file"]),
    "a base in a circle": (yaml("_BASE_: mine.yaml"), ["_BASE_ goes in a circle"]),
    "a base that is a number": (yaml("_BASE_: 3"), ["_BASE_ = 3: must be a path"]),
    "a seed twice": (yaml("SEEDS: [1, 1]"), ["SEEDS = [1, 1]", "none twice"]),
    "a seed below zero": (yaml("RNG_SEED: -1"), ["RNG_SEED = -1: must be in [0"]),
    "no corruption": (yaml("CORRUPTION: {TYPE: []}"), ["CORRUPTION.TYPE = []", "at least one entry"]),
    "an empty folder name": (yaml("SAVE_DIR: ''"), ["SAVE_DIR = '': must not be empty"]),
    "nesterov without momentum": (
        yaml("OPTIM: {METHOD: SGD, MOMENTUM: 0.0}"), ["OPTIM.NESTEROV = True", "OPTIM.MOMENTUM > 0"],
    ),
    "episodic over epochs": (
        yaml("MODEL: {EPISODIC: true}\nTEST: {PROTOCOL: offline}"), ["MODEL.EPISODIC = True", "TEST.PROTOCOL online"],
    ),
    "nested aliases": (yaml(BOMB), ["mine.yaml, line", "aliases stand for more than"]),
    "an alias of itself": (yaml("SEEDS: &a [*a]"), ["mine.yaml, line 1", "an alias stands inside its own value"]),
    "NUL in a path": (yaml('SAVE_DIR: "a\\0b"'), ["SAVE_DIR = 'a\\x00b'", "NUL"]),
    "a layer that fits nowhere": (yaml("MODEL: {WIDTH: 1000000000}"), ["MODEL.WIDTH", "must be in [1, 65536]"]),
    "a transformation that fits nowhere": (yaml("IP: {WIDTH: 1000000000}"), ["IP.WIDTH", "must be in [1, 1024]"]),
    "a transformation without end": (yaml("IP: {DEPTH: 10000000}"), ["DEPTH", "must be in [1, 64]"]),
    "a config that is not there": (words("--cfg", "P/absent.yaml"), ["absent.yaml"]),
    "a folder for a config": (words("--cfg", "P/"), ["error: "]),
    # command lines
    "an unknown option": (words("--metods", "tent"), ["unknown option '--metods'", "Did you mean '--methods'?"]),
    "an unknown method": (words("--methods", "tnet"), ["unknown adaptation method 'tnet'", "Did you mean 'tent'?"]),
    "a method twice": (words("--methods", "tent,TENT"), ["tent is asked for twice"]),
    "an empty method": (words("--methods", "tent,,ip"), ["--methods 'tent,,ip'", "separated by commas"]),
    "a key without value": (words("CATTAN.D"), ["CATTAN.D has no value", "CATTAN.D=VALUE"]),
    "a key that is none": (words("CATAN.D", "3"), ["unknown key 'CATAN.D'", "CATTAN.D"]),
    "a sweep without values": (words("--sweep", "CATTAN.D"), ["--sweep", "CATTAN.D"]),
    "a sweep of nothing": (words("--sweep", "CATTAN.Q=1,2"), ["CATTAN.Q"]),
    "fit-source without a config": (words("fit-source"), ["required: --cfg", "tta-cattan fit-source --help"]),
    "fit-source, words per class": (words("fit-source", "--cfg", CFG, "--per-class", "x"), ["--per-class", "'x'"]),
    "fit-source, no direction": (
        lambda p: ["fit-source", "--cfg", CFG, "--d", "0", "--out", f"{p}/w", *overrides()], ["--d 0", "1 to 64"],
    ),
    "fit-source, too many directions": (
        lambda p: ["fit-source", "--cfg", CFG, "--d", "65", "--out", f"{p}/w", *overrides()], ["--d 65", "1 to 64"],
    ),
    "train-source without a config": (words("train-source"), ["required: --cfg"]),
    "inspect nothing": (words("inspect"), ["required: file"]),
    "inspect a folder": (words("inspect", "P/"), ["does not exist"]),
    "make-corruptions to nowhere": (words("make-corruptions", "--images", "P/"), ["required: --out"]),
    "make-corruptions of nothing": (words("make-corruptions", "--images", "P/a", "--out", "P/o"), ["a does not exist"]),
    "make-corruptions without images": (
        words("make-corruptions", "--images", "P/", "--out", "P/o"), ["holds no <class>/<image> files"],
    ),
    "an unknown corruption": (with_images("--corruptions", "contrst"), ["'contrst'", "Did you mean 'contrast'?"]),
    "an unknown severity": (with_images("--severities", "5,6"), ["--severities '5,6'", "from 1 to 5"]),
    "unknown strengths": (with_images("--strengths", "mnist"), ["--strengths", "'mnist'"]),
    "less than no worker": (with_images("--workers", "-1"), ["--workers -1"]),
    "too small images": (with_images("--size", "8"), ["--size 8", "at least 16 pixels"]),
    "a damaged image": (with_images("--corruptions", "contrast"), ["a.png cannot be read", "get it again"]),
    "extract-features, no images per file": (
        words("extract-features", "--cfg", CFG, "--out", "P/o", "--shard-size", "0"), ["--shard-size 0", "at least 1"],
    ),
    "extract-features, an unknown domain": (
        words("extract-features", "--cfg", CFG, "--out", "P/o", "--domains", "fog9"), ["--domains has 'fog9'"],
    ),
    "results where a file is": (run(SAVE_DIR=lambda p: bad.text(p / "file", "x")), ["file", "choose another folder"]),
    "models where a file is": (run(CKPT_DIR=lambda p: bad.text(p / "file", "x")), ["file"]),
    "a device that is not there": (run(DEVICE="cuda:77"), ["DEVICE = 'cuda:77' cannot be used here", "'cpu'"]),
    "a device that is none": (run(DEVICE="gpu one"), ["DEVICE = 'gpu one'", "'cpu'"]),
    # data
    "an unknown dataset": (run(CORRUPTION__DATASET="digit_c"), ["unknown dataset 'digit_c'", "'digits_c'?"]),
    "CIFAR-10-C is missing": (
        run(CORRUPTION__DATASET="cifar10_c", MODEL__ARCH="cifar_resnet20", DATA_DIR="absent"),
        ["absent/CIFAR-10-C/labels.npy is missing", "Zenodo record 2535967"],
    ),
    "CIFAR-10-C at a severity that was not made": (
        cifar(CORRUPTION__SEVERITY="3"), ["fog.npy, severity 3", "was not made", "make-corruptions --severities 3"],
    ),
    "CIFAR-10-C with fewer images than labels": (
        cifar(labels=np.zeros(99, int), CORRUPTION__NUM_EX="64"), ["the last 52 of the 64 images"],
    ),
    "more images than CIFAR-10-C has": (cifar(CORRUPTION__NUM_EX="64"), ["CORRUPTION.NUM_EX = 64", "counts 12 images"]),
    "CIFAR-10-C in [0, 1]": (cifar(np.zeros((50000, 4, 4, 3), np.float32)), ["fog.npy is float32", "must be uint8"]),
    "CIFAR-10-C of 64 x 64": (cifar(np.ones((9, 64, 64, 3), np.uint8)), ["shape (9, 64, 64, 3)", "N x 32 x 32 x 3"]),
    "CIFAR-10-C in grey": (cifar(np.ones((9, 32, 32, 1), np.uint8)), ["shape (9, 32, 32, 1)", "N x 32 x 32 x 3"]),
    "CIFAR-10-C of one number": (cifar(np.array(7, np.uint8)), ["fog.npy is uint8 of shape ()", "N x 32 x 32 x 3"]),
    "CIFAR-10-C with too few rows": (cifar(np.ones((9, 32, 32, 3), np.uint8)), ["fog.npy has 9 rows", "severity 5"]),
    "CIFAR-10-C with a broken header": (cifar(bad.npy_header("(3, (")), ["fog.npy is not an .npy file"]),
    "CIFAR-10-C of 286 GiB": (cifar(bad.npy_header("(10**9, 307)")), ["fog.npy is not an .npy file"]),
    "CIFAR-10-C that claims 286 GiB": (cifar(bad.npy_header("(100000000, 32, 32, 3)")), ["is not an .npy file"]),
    "bool labels": (cifar(labels=np.ones(12, bool)), ["labels.npy is bool of shape (12,)", "integers of shape N"]),
    "one-hot labels": (cifar(labels=np.eye(12, 10, dtype=int)), ["labels.npy is int64 of shape (12, 10)"]),
    "labels in words": (cifar(labels=np.array(["cat"] * 12)), ["labels.npy is <U3"]),
    "labels that are objects": (cifar(labels=np.array([{}] * 12)), ["labels.npy is not an .npy file"]),
    "labels of other classes": (cifar(labels=np.arange(12)), ["labels.npy has values from 0 to 11", "[0, 9]"]),
    "labels below zero": (cifar(labels=np.arange(-1, 9)), ["labels.npy has values from -1 to 8"]),
    "no labels": (cifar(labels=np.zeros(0, int)), ["labels.npy is empty"]),
    "labels in an archive": (cifar(labels=bad.npz_bytes(y=np.zeros(12, int))), ["labels.npy", "it is an .npz archive"]),
    "digits in [0, 1]": (
        digits(mnist=good_digits, usps=lambda p: bad.npz(
            p, x_train=IMAGES / 255, y_train=np.zeros(3, int), x_test=IMAGES, y_test=np.zeros(3, int))),
        ["x_train in", "usps.npz is float64", "must be uint8"],
    ),
    "digits with too few labels": (
        digits(mnist=good_digits, usps=lambda p: bad.npz(
            p, x_train=IMAGES, y_train=np.zeros(2, int), x_test=IMAGES, y_test=np.zeros(3, int))),
        ["y_train in", "shape (2,)", "must be integers of shape 3"],
    ),
    "make-corruptions of floats": (source_npz(x=RGB / 255, y=np.zeros(3, int)), ["x in", "is float64", "uint8"]),
    "make-corruptions of bool labels": (source_npz(x=RGB, y=np.ones(3, bool)), ["y in", "is bool of shape (3,)"]),
    "make-corruptions of two images of one name": (
        image_files(lambda p: [bad.png(p / f"0{end}", 64, 8) for end in (".jpg", ".png")]),
        ["0.jpg and", "0.png would both become 0.JPEG", "rename one"],
    ),
    "a PNG bomb": (image_files(lambda p: bad.png(p / "a.png", 60000, 60000)), ["a.png cannot be read", "get it again"]),
    "a smaller PNG bomb": (image_files(lambda p: bad.png(p / "a.png", 12000, 12000)), ["12,000 x 12,000 pixels"]),
    "PostScript for an image": (
        image_files(lambda p: bad.text(p / "a.png", "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")),
        ["a.png cannot be read", "get it again"],
    ),
    "a pipe for an image": (image_files(lambda p: bad.fifo(p / "a.png")), ["a.png is a pipe, not a file"]),
    "an unknown corruption of digits": (run(CORRUPTION__TYPE="fogg"), ["CORRUPTION.TYPE has 'fogg'", "'fog'?"]),
    "a domain that is missing": (
        digits(mnist=good_digits, usps=None), ["usps.npz does not exist", "DATA_DIR must hold"],
    ),
    "a web page for data": (
        digits(mnist=good_digits, usps=lambda p: bad.text(p, "<html>")), ["usps.npz is not an .npz file"],
    ),
    "half a file of data": (
        digits(mnist=good_digits, usps=lambda p: bad.truncated(good_digits(p))), ["usps.npz is not"],
    ),
    "arrays that are missing": (
        digits(mnist=good_digits, usps=lambda p: bad.npz(p, x=IMAGES)), ["usps.npz is not an .npz file", "x_train"],
    ),
    "arrays that run code": (
        digits(mnist=good_digits, usps=lambda p: bad.npz(p, x_train=np.array([bad.Payload(p.parent / "ran")]))),
        ["usps.npz is not an .npz file"],
    ),
    "a features manifest of fewer rows": (
        features("manifest.json", n=4), ["two/manifest.json was changed after it was written", "restore it"],
    ),
    "features with another label": (
        features("features-00001.json", labels=[0, 0, 0, 0]), ["features-00001.json was changed after it was written"],
    ),
    "images of another shape": (
        digits(mnist=good_digits, usps=good_digits), ["MODEL.ARCH = 'small_resnet'", "digits_da", "(1, 28, 28)"],
    ),
    # models and checkpoints
    "an unknown model": (run(MODEL__ARCH="small_resnt"), ["MODEL.ARCH = 'small_resnt'", "'small_resnet'?"]),
    "an unknown model of torchvision": (run(MODEL__ARCH="torchvision/resnet81"), ["torchvision has no model"]),
    "a model without weights": (run(MODEL__ARCH="cifar_resnet20"), ["'cifar_resnet20' comes without weights", "CKPT"]),
    "weights of other classes": (
        run(MODEL__ARCH="torchvision/resnet18"), ["its pretrained weights have 1000 classes", "MODEL.CKPT_PATH"],
    ),
    "a classifier that is none": (run(MODEL__CLASSIFIER="head"), ["MODEL.CLASSIFIER = 'head'", "linear layers: fc"]),
    "too many directions": (run(CATTAN__D=65), ["CATTAN.D = 65", "64 directions"]),
    "no checkpoint": (ckpt(lambda p: p), ["weights.pt does not exist", "MODEL.CKPT_PATH"]),
    "a folder for a checkpoint": (ckpt(lambda p: p.parent), ["does not exist"]),
    "an empty checkpoint": (ckpt(lambda p: bad.text(p, "")), ["weights.pt is empty"]),
    "a web page for a checkpoint": (ckpt(lambda p: bad.text(p, " <!DOCTYPE html>")), ["is an HTML page"]),
    "half a checkpoint": (ckpt(lambda p: bad.truncated(bad.saved(p, {"a": torch.zeros(99)}))), ["weights.pt is trunc"]),
    "noise for a checkpoint": (ckpt(lambda p: bad.text(p, b"\x00\x01\x02" * 99)), ["weights.pt is"]),
    "a checkpoint that runs code": (ckpt(lambda p: bad.malicious(p, p.parent / "ran")), ["code could run from it"]),
    "a pickle that runs code": (
        ckpt(lambda p: bad.malicious(p, p.parent / "ran", legacy=True)), ["weights.pt is not a checkpoint"],
    ),
    "a checkpoint of a list": (ckpt(lambda p: bad.saved(p, [1, 2])), ["holds a list, not a state_dict"]),
    "a checkpoint without tensors": (ckpt(lambda p: bad.saved(p, {"epoch": 3})), ["holds no tensors", "epoch"]),
    "a checkpoint of another model": (
        ckpt(lambda p: bad.saved(p, {"x.weight": torch.zeros(3)})), ["another architecture", "MODEL.ARCH"],
    ),
    "integer weights": (
        state(lambda s: s.update({"fc.weight": s["fc.weight"].long()})), ["'fc.weight' in", "is int64", "float32"],
    ),
    "bool weights": (state(lambda s: s.update({"fc.bias": s["fc.bias"] > 0})), ["'fc.bias' in", "is bool"]),
    "complex weights": (
        state(lambda s: s.update({"conv.weight": s["conv.weight"] + 0j})), ["'conv.weight' in", "is complex64"],
    ),
    "weights with NaN": (state(lambda s: s["fc.bias"].fill_(torch.nan)), ["'fc.bias' in", "holds NaN or Inf"]),
    "an infinite variance": (state(lambda s: s["bn.running_var"].fill_(torch.inf)), ["'bn.running_var'", "NaN or Inf"]),
    "a negative variance": (state(lambda s: s["bn.running_var"].fill_(-1)), ["'bn.running_var'", "value -1", ">= 0"]),
    "sparse weights": (
        state(lambda s: s.update({"fc.weight": s["fc.weight"].to_sparse()})), ["'fc.weight' in", "is sparse"],
    ),
    "weights beyond float32": (
        state(lambda s: s.update({"fc.bias": torch.full((10,), 1e300, dtype=torch.float64)})), ["'fc.bias'", "Inf"],
    ),
    "half a safetensors file": (safe_ckpt(lambda p: bad.truncated(bad.tensors(p))), ["damaged or truncated"]),
    "a pickle named safetensors": (safe_ckpt(lambda p: bad.malicious(p, p.parent / "ran")), ["damaged or truncated"]),
    # subspace files
    "no subspace file": (basis(lambda p: p), ["w.safetensors does not exist", "fit-source"]),
    "an empty subspace file": (basis(lambda p: bad.text(p, "")), ["w.safetensors is not a subspace file"]),
    "weights for a subspace": (basis(bad.tensors), ["is a safetensors file, but not a subspace"]),
    "a pickle for a subspace": (basis(lambda p: bad.malicious(p, p.parent / "ran")), ["is not a subspace file"]),
    "half a subspace file": (basis(lambda p: bad.truncated(bad.subspace(p))), ["is not a subspace file"]),
    "a subspace of gigabytes": (basis(lambda p: bad.huge(p, 1 << 31)), ["2,147,483,648 bytes", "more than"]),
    "a subspace of negative variance": (
        basis(lambda p: bad.subspace(p, eigenvalues=-torch.ones(8))), ["'eigenvalues' in", "value -1", ">= 0"],
    ),
    "a subspace with NaN": (basis(lambda p: bad.subspace(p, mean=torch.full((64,), torch.nan))), ["holds NaN or Inf"]),
    "a subspace that is not orthonormal": (
        basis(lambda p: bad.subspace(p, basis=torch.ones(64, 8))), ["is damaged: its basis is not orthonormal"],
    ),
    "a subspace on its side": (basis(lambda p: bad.subspace(p, basis=torch.eye(8, 64))), ["basis has shape (8, 64)"]),
    "a subspace with another mean": (basis(lambda p: bad.subspace(p, mean=torch.zeros(3))), ["mean has shape (3,)"]),
    "a subspace without a count": (basis(lambda p: bad.with_header(p, count="many")), ["is damaged", "many"]),
    "a subspace of less than nothing": (basis(lambda p: bad.with_header(p, count="-5")), ["is damaged", "-5"]),
    "a subspace of more samples than there are": (
        basis(lambda p: bad.with_header(p, count="1" + "0" * 30)), ["is damaged", "its count is 1000"],
    ),
    "a subspace of integers": (
        basis(lambda p: bad.subspace(p, mean=None, dtype=torch.int64)), ["'basis' in", "is int64", "float32"],
    ),
    "a subspace with a torn origin": (basis(lambda p: bad.with_header(p, provenance="{")), ["is damaged"]),
    "a subspace of another model": (
        basis(lambda p: bad.subspace(p, provenance={"weights_sha256": "0" * 64})),
        ["was made for the model", "fit-source"],
    ),
    "a subspace of other features": (
        basis(lambda p: bad.subspace(p, dim=32)), ["32 features", "takes 64", "fit-source"],
    ),
    "a subspace with too few directions": (
        basis(bad.subspace, CATTAN__D=9), ["CATTAN.D = 9", "holds 8 directions"],
    ),
    "a subspace of the other kind": (
        basis(lambda p: bad.subspace(p, centered=False)), ["CATTAN.CENTERING = 'pca'"],
    ),
    "a subspace without its mean": (
        basis(lambda p: bad.subspace(p, mean=None), CATTAN__CENTERING="shift"),
        ["CATTAN.CENTERING = 'shift' needs the mean source feature"],
    ),
    "shift from the classifier": (
        run(CATTAN__SOURCE_BASIS="classifier", CATTAN__CENTERING="shift"), ["CATTAN.CENTERING = 'shift' needs"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_mistake_is_one_line(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    make, expected = CATALOGUE[name]
    kept = tmp_path / "save" / "earlier" / "results.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text("results of an earlier run\n")
    arguments = make(tmp_path)
    assert main(arguments) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("[")]  # log lines have a date
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
    for part in expected:
        assert part in lines[0]
    assert kept.read_text() == "results of an earlier run\n"
    assert [path.name for path in kept.parent.parent.iterdir()] == ["earlier"], "nothing was begun"
    assert not (tmp_path / "ran").exists(), "code from a file was run"


def test_the_catalogue_is_large():
    assert len(CATALOGUE) >= 60
