"""The range or the choices of every key, each written once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tta_cattan.config.coerce import Source, coerce
from tta_cattan.config.defaults import _C
from tta_cattan.config.tree import leaves
from tta_cattan.util.errors import UserError, nearest

_MAX_SEED = 2**32 - 1  # numpy's


@dataclass(frozen=True)
class Check:
    """A rule in words ("must be >= 0") and the function that decides; two checks are equal if the words are."""

    rule: str
    accepts: Callable[[Any], bool] = field(compare=False)
    options: tuple[str, ...] = ()


def one_of(*options: str) -> Check:
    """Return the check that a value is one of ``options``."""
    return Check(f"must be one of {', '.join(map(repr, options))}", lambda value: value in options, options)


def at_least(low: float) -> Check:
    """Return the check ``value >= low``."""
    return Check(f"must be >= {low}", lambda value: value >= low)


def above(low: float) -> Check:
    """Return the check ``value > low``."""
    return Check(f"must be > {low}", lambda value: value > low)


def within(low: float, high: float, ends: str = "[]") -> Check:
    """Return the check that a value is in an interval; ``ends`` is ``"[]"``, ``"[)"``, ``"(]"`` or ``"()"``."""

    def accepts(value: float) -> bool:
        return (value > low or (value == low and ends[0] == "[")) and (
            value < high or (value == high and ends[1] == "]")
        )

    return Check(f"must be in {ends[0]}{low}, {high}{ends[1]}", accepts)


def distinct(entry: Check, required: bool = True) -> Check:
    """Return the check of a list: no entry twice, at least one if ``required``, each accepted by ``entry``."""

    def accepts(values: list[Any]) -> bool:
        return len(set(values)) == len(values) >= required and all(map(entry.accepts, values))

    some = "at least one entry" if required else "any number of entries"
    return Check(f"must have {some}, none twice, and each {entry.rule}", accepts)


NOT_EMPTY = Check("must not be empty", lambda value: bool(value.strip()))
_SEED = within(0, _MAX_SEED)

CHECKS: dict[str, Check] = {
    "MODEL.ARCH": NOT_EMPTY,
    "MODEL.ADAPTATION": NOT_EMPTY,  # the registry of methods knows the names
    "MODEL.IN_FEATURES": at_least(1),
    "MODEL.WIDTH": at_least(1),
    "CORRUPTION.DATASET": NOT_EMPTY,
    "CORRUPTION.TYPE": distinct(NOT_EMPTY),
    "CORRUPTION.SEVERITY": distinct(within(0, 5)),
    "CORRUPTION.NUM_EX": Check("must be >= 1, or -1 for all", lambda value: value >= 1 or value == -1),
    "BN.EPS": above(0),
    "BN.MOM": within(0, 1),
    "BN.BLEND": above(0),
    "BN.STATISTICS": one_of("auto", "batch", "source", "running", "blend"),
    "OPTIM.STEPS": at_least(1),
    "OPTIM.LR": at_least(0),
    "OPTIM.METHOD": one_of("Adam", "AdamW", "SGD"),
    "OPTIM.BETA": within(0, 1, "[)"),
    "OPTIM.MOMENTUM": at_least(0),
    "OPTIM.DAMPENING": at_least(0),
    "OPTIM.WD": at_least(0),
    "TEST.BATCH_SIZE": at_least(1),
    "TEST.PROTOCOL": one_of("online", "offline", "recovery"),
    "TEST.EPOCHS": at_least(1),
    "TEST.ADAPT_EX": Check("must be >= 2, or -1 for all", lambda value: value >= 2 or value == -1),
    "TEST.ORDER": one_of("seeded", "file"),
    "TEST.NUM_WORKERS": at_least(0),
    "CATTAN.D": at_least(0),
    "CATTAN.LAMBDA_LR": at_least(0),
    "CATTAN.LAMBDA_CB": at_least(0),
    "CATTAN.LAMBDA_ALIGN": at_least(0),
    "CATTAN.SOURCE_BASIS": NOT_EMPTY,
    "CATTAN.CENTERING": one_of("pca", "none", "shift"),
    "CATTAN.ALIGN_REDUCTION": one_of("sum", "mean"),
    "CATTAN.CLASS_BALANCE": one_of("bce", "entropy", "running"),
    "CATTAN.CONFIDENCE": one_of("hlr", "slr", "entropy"),
    "CATTAN.PHI_LR": at_least(0),
    "CATTAN.DELTA": within(0, 1, "()"),
    "CATTAN.EPSILON": above(0),
    "CATTAN.DECAY": within(0, 1, "(]"),
    "CATTAN.PRIOR": at_least(0),
    "CATTAN_PLUS.D": at_least(0),
    "CATTAN_PLUS.LAMBDA_LR": at_least(0),
    "CATTAN_PLUS.LAMBDA_CB": at_least(0),
    "CATTAN_PLUS.LAMBDA_ALIGN": at_least(0),
    "CATTAN_PLUS.CONFIDENCE": one_of("hlr", "slr", "entropy"),
    "CATTAN_PLUS.PHI_LR": at_least(0),
    "CATTAN_PLUS.KAPPA": within(0, 1, "[)"),
    "CATTAN_PLUS.DECAY": within(0, 1, "(]"),
    "CATTAN_PLUS.SHRINKAGE": within(0, 1, "[]"),
    "CATTAN_PLUS.DOUBT": at_least(0),
    "CATTAN_PLUS.CALM": at_least(0),
    "CATTAN_PLUS.LEVEL": within(0, 1, "[]"),
    "CATTAN_PLUS.WIDTH": at_least(1),
    "CATTAN_PLUS.DEPTH": at_least(1),
    "TENT_PLUS.LAMBDA_CB": at_least(0),
    "TENT_PLUS.CLASS_BALANCE": one_of("bce", "entropy"),
    "SHOT.LAMBDA_PL": at_least(0),
    "SHOT.ROUNDS": at_least(1),
    "IP.LAMBDA_LR": at_least(0),
    "IP.CONFIDENCE": one_of("hlr", "slr"),
    "IP.KAPPA": within(0, 1, "[)"),
    "IP.WIDTH": at_least(1),
    "IP.DEPTH": at_least(1),
    "SOURCE.EPOCHS": at_least(1),
    "SOURCE.LR": above(0),
    "SOURCE.BACKBONE_LR": at_least(0),
    "SOURCE.BATCH_SIZE": at_least(2),
    "SOURCE.WD": at_least(0),
    "SOURCE.SCHEDULE": one_of("one_cycle", "power"),
    "SOURCE.LABEL_SMOOTHING": within(0, 1, "[)"),
    "SOURCE.VALIDATION": within(0, 1, "[)"),
    "SOURCE.PER_CLASS": at_least(0),
    "DATA.IMAGE_SIZE": at_least(16),
    "DATA.DOMAINS": distinct(NOT_EMPTY, required=False),
    "DATA.POINTS": at_least(16),
    "DATA.TARGET_PART": one_of("all", "train", "test"),
    "DATA.SCALING": one_of("none", "l1", "l1_zscore"),
    "SAFETY.ON_COLLAPSE": one_of("report", "reset"),
    "SAFETY.ON_DIVERGENCE": one_of("report", "reset"),
    "SAFETY.WINDOW": at_least(1),
    "RECOVERY.K": at_least(2),
    "RECOVERY.TAU": within(0, 1),
    "RECOVERY.FRACTION": within(0, 1, "(]"),
    "RECOVERY.FALLBACK": one_of("bypass", "source"),
    "DEVICE": Check(
        "must be 'auto' or a torch device such as 'cpu', 'cuda' or 'cuda:1'",
        lambda value: re.fullmatch(r"[a-z]+(:[0-9]+)?", value) is not None,
    ),
    "RNG_SEED": _SEED,
    "SEEDS": distinct(_SEED, required=False),
    "SAVE_DIR": NOT_EMPTY,
    "DATA_DIR": NOT_EMPTY,
    "CKPT_DIR": NOT_EMPTY,
    "LOG_DEST": NOT_EMPTY,
}


def check_value(key: str, value: Any, check: Check | None) -> None:
    """Refuse a value that is not finite or that ``check`` does not accept."""
    for entry in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(entry, float) and not math.isfinite(entry):
            raise UserError(f"{key} = {value!r}: must be finite")
    if check is not None and not check.accepts(value):
        hint = "." + nearest(value, check.options) if isinstance(value, str) and check.options else ""
        raise UserError(f"{key} = {value!r}: {check.rule}{hint}")


def check_cfg(cfg: Mapping[str, Any]) -> None:
    """Refuse a wrong type, range, choice or combination in ``cfg``.

    Note: keys that are not ours are left alone and absent ones are not missed, so that the configuration of a host
    framework can be checked too.
    """
    defaults = dict(leaves(_C))
    for key, value in leaves(cfg):
        if key in defaults:
            check_value(key, coerce(key, value, defaults[key], Source.PYTHON), CHECKS.get(key))
    _check_nesterov(cfg.get("OPTIM", {}))
    if cfg.get("MODEL", {}).get("EPISODIC") is True and cfg.get("TEST", {}).get("PROTOCOL") in ("offline", "recovery"):
        raise UserError(
            "MODEL.EPISODIC = True: the offline protocol learns over epochs, and an episodic method forgets after "
            "every batch; set TEST.PROTOCOL online or MODEL.EPISODIC False"
        )


def _check_nesterov(optim: Mapping[str, Any]) -> None:
    """Refuse the combination that torch's SGD refuses, in terms of our keys."""
    if optim.get("METHOD") != "SGD" or not optim.get("NESTEROV"):
        return
    momentum, dampening = optim.get("MOMENTUM", 0.0), optim.get("DAMPENING", 0.0)
    if momentum <= 0 or dampening != 0:
        raise UserError(
            "OPTIM.NESTEROV = True: SGD needs OPTIM.MOMENTUM > 0 and OPTIM.DAMPENING = 0 for it, "
            f"not {momentum!r} and {dampening!r}; change them or set OPTIM.NESTEROV to False"
        )
