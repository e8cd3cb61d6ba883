"""Every configuration key: the shared ones, declared here, and each method's own, declared in its class."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from yacs.config import CfgNode

from tta_cattan.methods import ADAPTATION_REGISTRY, AdaptationMethod
from tta_cattan.util.errors import UserError
from tta_cattan.util.keys import NOT_EMPTY, Check, Key, above, at_least, distinct, one_of, within

# In TENT's order, which is the order of the columns in the published tables.
CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip

_SIZE = within(1, 2**16)  # of a layer: anything larger is a typo and would not fit into memory
# How the domains of a stream follow each other; all but the last two are named as in mariodoebler/test-time-adaptation.
# Each can take the suffix "_correlated"; continual with it is just "correlated".
ORDERS = ("reset_each_shift", "continual", "gradual", "mixed_domains", "recurring", "smooth")
RESET_EACH_SHIFT = ORDERS[0]
SETTINGS = (*ORDERS, "correlated", *(f"{order}_correlated" for order in ORDERS if order != "continual"))

_SEED = within(0, 2**32 - 1)  # numpy's range
_DEVICE = Check(
    "must be 'auto' or a torch device such as 'cpu', 'cuda' or 'cuda:1'",
    lambda value: re.fullmatch(r"[a-z]+(:[0-9]+)?", value) is not None,
)


def _or_all(low: int) -> Check:
    return Check(f"must be >= {low}, or -1 for all", lambda value: value >= low or value == -1)


# By place: role, default, meaning and, if any, check and origin.
# fmt: off
_SHARED: dict[str, tuple[Any, ...]] = {
    "MODEL.ARCH": ("model", "Standard", "architecture, by its name in the model zoo", NOT_EMPTY, "TENT"),
    "MODEL.IN_FEATURES": ("model", 768, "length of the features that 'feature_mlp' and 'shot_head' take", _SIZE),
    "MODEL.WIDTH": ("model", 512, "width of the batch-normalised layer in 'feature_mlp'", _SIZE),
    "MODEL.CKPT_PATH": ("weights", "", "local checkpoint; '' = the one that belongs to ARCH"),
    "MODEL.ADAPTATION": ("method", "source", "adaptation method, by its registered name", NOT_EMPTY, "TENT"),
    "CORRUPTION.DATASET": ("data", "cifar10", "benchmark, by its registered name", NOT_EMPTY, "TENT"),
    "CORRUPTION.NUM_EX": (
        "data", 10000,
        "samples per domain; -1 = all: the first ones where the data has an order of its own (CIFAR-C, ImageNet-C), "
        "else equally many per class, drawn by the seed",
        _or_all(1), "TENT; -1 and the draw are ours",
    ),
    "CORRUPTION.TYPE": (
        "selection", list(CORRUPTIONS), "corruptions, in the order of evaluation", distinct(NOT_EMPTY), "TENT",
    ),
    "CORRUPTION.SEVERITY": (
        "selection", [5, 4, 3, 2, 1], "severities, in the order of evaluation; 0 = clean", distinct(within(0, 5)),
        "TENT; 0 is ours",
    ),
    "BN.EPS": ("presentation", 1e-5, "accepted and unused, as in TENT", above(0), "TENT"),
    "SETTING": (
        "protocol", RESET_EACH_SHIFT,
        "how the domains follow each other: 'reset_each_shift' = each is a result of its own; any other is one stream "
        "and one result: 'continual' = one domain after the other, no reset; 'gradual' = severities 1-2-3-4-5-4-3-2-1 "
        "of each corruption; 'mixed_domains' = shuffled image by image; 'recurring' = STREAM.ROUNDS times continual; "
        "'smooth' = each domain passes gradually into the next (like CCC); 'correlated' = continual with correlated "
        "classes. '_correlated' can be added to all others",
        one_of(*SETTINGS), "mariodoebler; 'recurring' and 'smooth' are ours",
    ),
    "STREAM.ROUNDS": ("protocol", 10, "how often a 'recurring' stream goes through its domains", at_least(1)),
    "STREAM.IMBALANCE": (
        "protocol", 1.0,
        "label shift of a stream: the most frequent class keeps this many times the share of its samples that the "
        "rarest keeps, those between falling geometrically; 1 = none",
        at_least(1),
    ),
    "STREAM.WAITS": (
        "protocol", True,
        "False = the stream does not wait: a method whose update costs n predictions of the source model (in "
        "operations, rounded up) adapts to every n-th batch, and only predicts the others",
    ),
    "STREAM.MONITOR": (
        "protocol", False,
        "estimate accuracy without labels over the stream, with the drift and its change points, by a monitor that is "
        "fitted to the benchmark's data without shift",
    ),
    "TEST.DELTA_DIRICHLET": (
        "protocol", 0.0,
        "concentration of the Dirichlet draw by which a 'correlated' stream orders its classes; 0 = sorted",
        at_least(0), "mariodoebler",
    ),
    "TEST.BATCH_SIZE": ("protocol", 128, "images per batch, for adaptation and evaluation", at_least(1), "TENT"),
    "TEST.PROTOCOL": (
        "protocol", "online",
        "'online' = TENT's one pass; 'offline' = the paper's epochs, then evaluation; 'recovery' = RECOVERY.K times "
        "offline, then a mix of source and target samples",
        one_of("online", "offline", "recovery"),
    ),
    "TEST.EPOCHS": ("protocol", 5, "epochs of the offline protocol", at_least(1), "paper"),
    "TEST.ADAPT_EX": (
        "protocol", -1,
        "samples of the target set that the offline protocol adapts to, chosen by the seed; -1 = all. It evaluates on "
        "all of them in any case",
        _or_all(2),
    ),
    "TEST.ORDER": (
        "protocol", "seeded",
        "'seeded' = shuffled by the seed (class-sorted streams spoil batch statistics); 'file' = the data set's own "
        "order, which is TENT's",
        one_of("seeded", "file"),
    ),
    "RECOVERY.K": ("protocol", 3, "hypotheses that are adapted, protocol 'recovery'", at_least(2), "paper"),
    "RECOVERY.FRACTION": (
        "protocol", 2 / 3, "least confident target samples that the next hypothesis begins with", within(0, 1, "(]"),
        "paper",
    ),
    "TEST.NUM_WORKERS": ("place", 0, "worker processes of a data loader; 0 = none", at_least(0)),
    # Training of a source model: SGD with Nesterov momentum 0.9. SHOT's recipe is in cfgs/officehome/base.yaml.
    "SOURCE.EPOCHS": ("weights", 10, "epochs of training the source model", at_least(1)),
    "SOURCE.LR": ("weights", 1e-2, "peak learning rate", above(0), "SHOT"),
    "SOURCE.BACKBONE_LR": (
        "weights", 1.0, "learning rate of a pretrained backbone, as a share of LR; SHOT has 0.1", at_least(0),
    ),
    "SOURCE.BATCH_SIZE": ("weights", 64, "inputs per batch", at_least(2), "SHOT"),
    "SOURCE.WD": ("weights", 5e-4, "weight decay; SHOT has 1e-3", at_least(0)),
    "SOURCE.SCHEDULE": (
        "weights", "one_cycle", "'one_cycle', or 'power' = LR (1 + 10 t)^-0.75, t from 0 to 1 (SHOT)",
        one_of("one_cycle", "power"),
    ),
    "SOURCE.LABEL_SMOOTHING": (
        "weights", 0.0, "share of the label spread over all classes; SHOT has 0.1", within(0, 1, "[)"),
    ),
    "SOURCE.VALIDATION": (
        "weights", 0.0,
        "share of the source data held out: the epoch that does best on it is kept (SHOT: 0.1); 0 = the last epoch is "
        "kept",
        within(0, 1, "[)"),
    ),
    "SOURCE.MIXED_PRECISION": ("weights", False, "train in mixed precision where the device has it"),
    "SOURCE.INIT": (
        "weights", "random",
        "first weights of the network or its backbone: 'random', a file, or 'pretrained' = those of torchvision or "
        "timm, downloaded where they are not cached; '' = must be said",
    ),
    "SOURCE.PER_CLASS": ("weights", 0, "images per class that the source subspace is fitted to; 0 = all", at_least(0)),
    "DATA.SOURCE_DIR": (
        "data", "",
        "images of the source domain, for its subspace: a folder with one folder per class, or an .npz file with x "
        "(uint8, N x H x W x 3) and y; '' = where the benchmark's own layout has them",
    ),
    "DATA.IMAGE_SIZE": (
        "data", 224,
        "side of images after resizing (to 256/224 of it) and cropping; corrupted ones keep their size at 224",
        within(16, 4096),
    ),
    "DATA.SOURCE": ("data", "", "source domain of a domain-adaptation benchmark"),
    "DATA.POINTS": ("data", 1024, "points of a cloud: the first ones of a file", within(16, 2**16), "paper"),
    "DATA.UPRIGHT": (
        "data", True,
        "True = ShapeNet and ScanNet are turned so that the z axis is up, as in ModelNet (DefRec's loader); False = as "
        "in the files (PointDAN's and the authors' loaders)",
    ),
    "DATA.TARGET_PART": (
        "data", "all", "part of PointDA-10's target domain: 'all' = both (authors' code), 'train', 'test'",
        one_of("all", "train", "test"),
    ),
    "DATA.LISTS": (
        "data", "",
        "image lists of a domain-adaptation benchmark: '' = none, its class folders are read; 'official' = DomainNet's "
        "<domain>_train.txt (source) and <domain>_test.txt (target); otherwise a folder with <domain>_list.txt (lines "
        "'path label', as SHOT has them)",
    ),
    "DATA.SKIP_CORRUPT": ("data", False, "leave out images that cannot be decoded (named and counted)"),
    "DATA.DOMAINS": (
        "data", [], "domains of a folder of features, in the order of the tables; [] = those that DATA_DIR has",
        distinct(NOT_EMPTY, required=False),
    ),
    "DATA.TARGET": ("selection", "", "target domain; '' = every other domain, one after the other"),
    "RECOVERY.TAU": (
        "presentation", 0.75, "a sample with less agreement than this is taken as source data", within(0, 1), "paper",
    ),
    "DESC": ("presentation", "", "free text that describes the run", None, "TENT"),
    "LOG_TIME": ("presentation", "", "accepted and unused: the log's lines carry their time", None, "TENT"),
    "CUDNN.BENCHMARK": ("place", True, "let cuDNN pick the fastest algorithms", None, "TENT"),
    "DEVICE": ("place", "auto", "'auto' = CUDA, then MPS, then CPU; or any torch device string", _DEVICE),
    "SAVE_DIR": ("place", "./output", "folder of logs and results", NOT_EMPTY, "TENT"),
    "DATA_DIR": ("place", "./data", "folder of the datasets", NOT_EMPTY, "TENT"),
    "CKPT_DIR": ("place", "./ckpt", "folder of checkpoints and source subspaces", NOT_EMPTY, "TENT"),
    "LOG_DEST": ("place", "log.txt", "log file inside SAVE_DIR", NOT_EMPTY, "TENT"),
    "RNG_SEED": ("weights", 1, "seed of a run, and of training its source model", _SEED, "TENT"),
}
# fmt: on
SHARED = {place: replace(Key(*row), role=role, at=place) for place, (role, *row) in _SHARED.items()}
SHARED["SEEDS"] = Key(
    [], "seeds to average over; [] = [RNG_SEED]", distinct(_SEED, required=False), role="seed", at="SEEDS", entry=int
)


def method_keys(name: str | None = None) -> dict[str, Key]:
    """Return the keys, by place, that the method ``name`` reads; without a name, those that any method reads."""
    every = ADAPTATION_REGISTRY.registered_names()
    classes: list[type[AdaptationMethod]] = [AdaptationMethod, *map(ADAPTATION_REGISTRY.get, every)]
    found: dict[str, Key] = {}
    for cls in [method_class(name)] if name else classes:
        for option, declared in cls.keys.items():
            found.setdefault(cls.place_of(option), declared)
    return found


def method_class(name: str) -> type[AdaptationMethod]:
    """Return the class of a method, or the base class of all methods if the name is not registered."""
    return ADAPTATION_REGISTRY.get(name) if name in ADAPTATION_REGISTRY else AdaptationMethod


def declared_keys() -> dict[str, Key]:
    """Return every key by its place in a config."""
    return {**SHARED, **method_keys()}


def shared_keys(*roles: str) -> list[str]:
    """Return the places of the shared keys with one of the roles; keys that only methods read are left out."""
    return [place for place, declared in SHARED.items() if declared.role in roles]


def own_keys(name: str) -> set[str]:
    """Return the places of the keys that a result of the method ``name`` can depend on.

    Note: a method without updates has no optimiser, so it does not depend on OPTIM keys.
    """
    updates = method_class(name).adapts
    return {*SHARED, *(place for place in method_keys(name) if updates or not place.startswith("OPTIM."))}


def get_defaults(method: str | None = None) -> CfgNode:
    """Return the defaults as a mutable node; ``method``'s own defaults take precedence if it is given."""
    keys = {**declared_keys(), **(method_keys(method) if method else {})}
    cfg = CfgNode()
    for place, declared in keys.items():
        default = declared.default
        set_value(cfg, place, list(default) if isinstance(default, list) else default)
    return cfg


def set_value(cfg: CfgNode, place: str, value: Any) -> None:
    """Set the value at a dotted place, creating missing nodes on the way."""
    *nodes, name = place.split(".")
    for part in nodes:
        if part not in cfg:
            cfg[part] = CfgNode()
        cfg = cfg[part]
    cfg[name] = value


def leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each dotted key with its value, such as ``("OPTIM.LR", 0.001)``, in the order of the node."""
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def check_cfg(cfg: Mapping[str, Any]) -> None:
    """Refuse a wrong type, range, choice or combination in ``cfg``.

    Note: unknown keys are ignored and keys may be missing, so that the configuration of a host framework can be
    checked too.
    """
    keys, values = declared_keys(), dict(leaves(cfg))
    for place, value in values.items():
        if place in keys:
            keys[place].accept(place, value)
    momentum, dampening = values.get("OPTIM.MOMENTUM", 0.0), values.get("OPTIM.DAMPENING", 0.0)
    if values.get("OPTIM.METHOD") == "SGD" and values.get("OPTIM.NESTEROV") and (momentum <= 0 or dampening != 0):
        raise UserError(
            "OPTIM.NESTEROV = True: SGD needs OPTIM.MOMENTUM > 0 and OPTIM.DAMPENING = 0 for it, "
            f"not {momentum!r} and {dampening!r}; change them or set OPTIM.NESTEROV to False"
        )
    if values.get("MODEL.EPISODIC") is True and values.get("TEST.PROTOCOL") in ("offline", "recovery"):
        raise UserError(
            "MODEL.EPISODIC = True: the offline protocol learns over epochs, and an episodic method forgets after "
            "every batch; set TEST.PROTOCOL online or MODEL.EPISODIC False"
        )
    setting, protocol = values.get("SETTING", RESET_EACH_SHIFT), values.get("TEST.PROTOCOL", "online")
    if setting != RESET_EACH_SHIFT and (protocol != "online" or values.get("TEST.ORDER", "seeded") != "seeded"):
        raise UserError(
            f"SETTING = {setting!r}: a stream is seen once, in an order drawn by the seed; set TEST.PROTOCOL online "
            "and TEST.ORDER seeded"
        )
    for place, default in (("STREAM.IMBALANCE", 1.0), ("STREAM.WAITS", True), ("STREAM.MONITOR", False)):
        if setting == RESET_EACH_SHIFT and values.get(place, default) != default:
            raise UserError(f"{place} is for streams: choose another SETTING, such as continual")
