"""Ranges, choices and combinations, and the words in which they are refused."""

from __future__ import annotations

import re

import pytest
from yacs.config import CfgNode

from tta_cattan.config import check_cfg, declared_keys, get_defaults, leaves, load_cfg
from tta_cattan.util.errors import UserError
from tta_cattan.util.keys import Check, distinct, within

BELOW = -1e-9
AT_LEAST_ZERO = [
    "OPTIM.LR",
    "OPTIM.WD",
    "OPTIM.MOMENTUM",
    "OPTIM.DAMPENING",
    "CATTAN.LAMBDA_LR",
    "CATTAN.LAMBDA_CB",
    "CATTAN.LAMBDA_ALIGN",
    "CATTAN.PHI_LR",
    "CATTAN_PLUS.LAMBDA_LR",
    "CATTAN_PLUS.LAMBDA_CB",
    "CATTAN_PLUS.LAMBDA_ALIGN",
    "CATTAN_FORWARD.NEAR",
    "CATTAN_FORWARD.SKEW",
    "TENT_PLUS.LAMBDA_CB",
    "SHOT.LAMBDA_PL",
    "IP.LAMBDA_LR",
    "SOURCE.BACKBONE_LR",
    "SOURCE.WD",
]
# key, the values just inside, the values just outside, the range as it is told
RANGES = [
    *((key, [0.0, 1e9], [BELOW], "must be >= 0") for key in AT_LEAST_ZERO),
    *(
        (key, [0], [-1], "must be >= 0")
        for key in ("CATTAN.D", "CATTAN_FORWARD.CHANNELS", "SOURCE.PER_CLASS", "TEST.NUM_WORKERS")
    ),
    *(
        (key, [1, 10**6], [0, -1], "must be >= 1")
        for key in (
            "OPTIM.STEPS",
            "TEST.BATCH_SIZE",
            "TEST.EPOCHS",
            "CATTAN_FORWARD.SLOTS",
            "CATTAN_FORWARD.MEMORY",
            "CATTAN_FORWARD.D",
        )
    ),
    ("IP.WIDTH", [1, 1024], [0, 10**9], "must be in [1, 1024]"),
    ("IP.DEPTH", [1, 64], [0, 10**7], "must be in [1, 64]"),
    *((f"MODEL.{key}", [1, 65536], [0, 10**9], "must be in [1, 65536]") for key in ("IN_FEATURES", "WIDTH")),
    ("SOURCE.EPOCHS", [1], [0], "must be >= 1"),
    ("SOURCE.BATCH_SIZE", [2], [1], "must be >= 2"),
    ("SOURCE.LR", [1e-9], [0.0], "must be > 0"),
    ("DATA.IMAGE_SIZE", [16, 4096], [15, 0, 10**9], "must be in [16, 4096]"),
    ("DATA.POINTS", [16, 1024], [15, 0, 10**9], "must be in [16, 65536]"),
    ("CATTAN.PRIOR", [0.0, 1e9], [BELOW], "must be >= 0"),
    ("CORRUPTION.NUM_EX", [-1, 1], [0, -2], "must be >= 1, or -1 for all"),
    ("TEST.ADAPT_EX", [-1, 2], [0, 1, -2], "must be >= 2, or -1 for all"),
    ("STREAM.ROUNDS", [1, 10], [0], "must be >= 1"),
    ("STREAM.IMBALANCE", [1.0], [0.999], "must be >= 1"),
    ("TEST.DELTA_DIRICHLET", [0.0, 10.0], [BELOW], "must be >= 0"),
    ("RECOVERY.K", [2, 9], [1], "must be >= 2"),
    ("RECOVERY.TAU", [0.0, 1.0], [BELOW, 1.001], "must be in [0, 1]"),
    ("RECOVERY.FRACTION", [1e-9, 1.0], [0.0, 1.001], "must be in (0, 1]"),
    ("BN.EPS", [1e-12], [0.0, BELOW], "must be > 0"),
    ("BN.BLEND_SCALE", [1e-12, 9.0], [0.0, BELOW], "must be > 0"),
    ("CATTAN_FORWARD.SCALE", [1e-12, 9.0], [0.0, BELOW], "must be > 0"),
    ("CATTAN_FORWARD.FAR", [1e-12, 1e9], [0.0, BELOW], "must be > 0"),
    ("CATTAN.EPSILON", [1e-12], [0.0, BELOW], "must be > 0"),
    ("BN.MOM", [0.0, 1.0], [BELOW, 1.001], "must be in [0, 1]"),
    ("OPTIM.BETA", [0.0, 0.999], [BELOW, 1.0], "must be in [0, 1)"),
    ("SOURCE.LABEL_SMOOTHING", [0.0, 0.999], [BELOW, 1.0], "must be in [0, 1)"),
    ("SOURCE.VALIDATION", [0.0, 0.999], [BELOW, 1.0], "must be in [0, 1)"),
    ("IP.KAPPA", [0.0, 0.999], [BELOW, 1.0], "must be in [0, 1)"),
    ("CLASSES.CHANGE", [0.0, 1e9], [BELOW], "must be >= 0"),
    ("CATTAN.DELTA", [1e-9, 0.999], [0.0, 1.0], "must be in (0, 1)"),
    ("CATTAN.DECAY", [1e-9, 1.0], [0.0, 1.001], "must be in (0, 1]"),
    ("RNG_SEED", [0, 2**32 - 1], [-1, 2**32], "must be in [0, 4294967295]"),
    ("SEEDS", [[], [0], [2, 1]], [[1, 1], [-1]], "none twice, and each must be in [0, 4294967295]"),
    ("CORRUPTION.SEVERITY", [[0], [5, 0]], [[], [5, 5], [6], [-1]], "at least one entry, none twice"),
    ("CORRUPTION.TYPE", [["fog"], ["my_own"]], [[], ["fog", "fog"], [""]], "at least one entry, none twice"),
    ("DATA.DOMAINS", [[], ["real", "sketch"]], [["real", "real"], [""]], "any number of entries, none twice"),
    ("DEVICE", ["auto", "cpu", "mps", "cuda:1"], ["", "cuda:", "cuda 1", "GPU"], "a torch device"),
]
CHOICES = {
    "BN.STATISTICS": ["batch", "source", "running", "blend"],
    "OPTIM.METHOD": ["Adam", "AdamW", "SGD"],
    "TEST.PROTOCOL": ["online", "offline", "recovery"],
    "TEST.ORDER": ["seeded", "file"],
    "SETTING": [
        "reset_each_shift",
        "continual",
        "gradual",
        "mixed_domains",
        "recurring",
        "smooth",
        "correlated",
        "reset_each_shift_correlated",
        "gradual_correlated",
        "mixed_domains_correlated",
        "recurring_correlated",
        "smooth_correlated",
    ],
    "CATTAN.CENTERING": ["pca", "none", "shift"],
    "CATTAN.ALIGN_REDUCTION": ["sum", "mean"],
    "CATTAN.CLASS_BALANCE": ["sum", "mean", "entropy", "running"],
    "CATTAN.CONFIDENCE": ["hlr", "slr", "entropy"],
    "TENT_PLUS.CLASS_BALANCE": ["sum", "mean", "entropy", "running"],
    "CATTAN.FIT_STATISTICS": ["same", "source"],
    "IP.CONFIDENCE": ["hlr", "slr"],
    "DATA.TARGET_PART": ["all", "train", "test"],
    "SAFETY.ON_COLLAPSE": ["report", "reset"],
    "SAFETY.ON_DIVERGENCE": ["report", "reset"],
    "SOURCE.SCHEDULE": ["one_cycle", "power"],
}
NOT_EMPTY = [
    "MODEL.ARCH",
    "MODEL.ADAPTATION",
    "CORRUPTION.DATASET",
    "CATTAN.SOURCE_BASIS",
    "CATTAN_FORWARD.SOURCE_MOMENTS",
    "SAVE_DIR",
    "DATA_DIR",
    "CKPT_DIR",
    "LOG_DEST",
]


@pytest.mark.parametrize(("key", "inside", "outside", "rule"), RANGES, ids=[row[0] for row in RANGES])
def test_ranges(key, inside, outside, rule):
    for value in inside:
        assert dict(leaves(load_cfg(None, [key, value])))[key] == value
    for value in outside:
        with pytest.raises(UserError, match=re.escape(f"{key} = {value!r}: ") + ".*" + re.escape(rule)):
            load_cfg(None, [key, value])


@pytest.mark.parametrize("key", CHOICES)
def test_choices(key):
    for value in CHOICES[key]:
        assert dict(leaves(load_cfg(None, [key, value])))[key] == value
    listed = ", ".join(map(repr, CHOICES[key]))
    with pytest.raises(UserError, match=re.escape(f"{key} = 'zzz': must be one of {listed}.") + "$"):
        load_cfg(None, [key, "zzz"])


@pytest.mark.parametrize("key", NOT_EMPTY)
def test_not_empty(key):
    with pytest.raises(UserError, match=re.escape(f"{key} = ' ': must not be empty")):
        load_cfg(None, [key, " "])


def test_every_check_is_of_a_declared_key_and_tested_here():
    tested = {row[0] for row in RANGES} | set(CHOICES) | set(NOT_EMPTY)
    checks = {place: key.check for place, key in declared_keys().items() if key.check is not None}
    # What CATTAn+ inherits is the same declaration.
    inherited = {p for p in checks if checks.get(p.replace("CATTAN_PLUS.", "CATTAN_FORWARD.")) == checks[p]}
    assert tested <= set(checks) <= tested | {place for place in inherited if place.startswith("CATTAN_PLUS.")}


def test_a_choice_that_is_nearly_right_suggests_the_right_one():
    with pytest.raises(UserError, match="Did you mean 'Adam'"):
        load_cfg(None, ["OPTIM.METHOD", "Adaam"])


@pytest.mark.parametrize(("momentum", "dampening"), [(0.0, 0.0), (0.9, 0.1)])
def test_nesterov_needs_momentum_and_no_dampening(momentum, dampening):
    values = ["OPTIM.MOMENTUM", momentum, "OPTIM.DAMPENING", dampening]
    with pytest.raises(UserError, match=f"OPTIM.NESTEROV = True: .*not {momentum} and {dampening}"):
        load_cfg(None, [*values, "OPTIM.METHOD", "SGD"])
    load_cfg(None, values)
    load_cfg(None, [*values, "OPTIM.METHOD", "SGD", "OPTIM.NESTEROV", False])


def test_plain_sgd_passes():
    assert load_cfg(None, ["OPTIM.METHOD", "SGD"]).OPTIM.METHOD == "SGD"


def test_the_method_is_not_checked_here():
    assert load_cfg(None, ["MODEL.ADAPTATION", "of_a_plugin"]).MODEL.ADAPTATION == "of_a_plugin"


@pytest.mark.parametrize("value", ["0.5", True, None, [1.0], float("nan")])
def test_a_config_made_in_python_is_checked_for_types_too(value):
    cfg = get_defaults()
    cfg.OPTIM.LR = value
    with pytest.raises(UserError, match=r"OPTIM\.LR = .*: must be (a number|finite)"):
        check_cfg(cfg)


def test_a_config_made_in_python_may_hold_ints_and_tuples():
    cfg = get_defaults()
    cfg.OPTIM.LR = 1
    cfg.SEEDS = (1, 2)
    check_cfg(cfg)


def test_the_config_of_a_host_is_checked_where_it_has_our_keys():
    host = CfgNode({"COTTA": {"RST": "x"}, "CATTAN": {"DELTA": 0.5}})
    check_cfg(host)
    host.CATTAN.DELTA = 1.5
    with pytest.raises(UserError, match=r"CATTAN\.DELTA = 1\.5"):
        check_cfg(host)


def test_two_checks_are_equal_if_their_words_are():
    assert within(0, 1) == within(0, 1)
    assert within(0, 1) != within(0, 1, "[)")
    assert Check("must be odd", lambda value: value % 2) == Check("must be odd", bool)


def test_a_list_may_be_required_or_not():
    inner = within(0, 1)
    assert not distinct(inner).accepts([])
    assert distinct(inner, required=False).accepts([])
