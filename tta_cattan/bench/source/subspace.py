"""Finding what a run needs of its source: CATTAn's subspace, or the moments of CATTAn-F."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_cattan.alignment import SourceMoments, Subspace
from tta_cattan.alignment.subspace import find_subspaces, moments_path, sha256_weights, subspace_path
from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.models.zoo import LoadedModel
from tta_cattan.bench.source.fitting import (
    aligning_method,
    fit_moments,
    fit_source_subspace,
    forward_method,
    remove_checkpoint,
)
from tta_cattan.config import get_defaults
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_text

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

_MODEL_ALONE = ("classifier", "none")


def source_subspace(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Subspace | SourceMoments | None:
    """Return what the method's ``SOURCE_BASIS`` or ``SOURCE_MOMENTS`` names: a file's, or the kept or newly fitted one.

    Note: None stands for "classifier" and "none", which need nothing but the model.
    """
    choice = source_choice(cfg)
    if choice in _MODEL_ALONE:
        return None
    return kept_subspace(cfg, loaded, benchmark) if choice == "auto" else _read(cfg, loaded, Path(choice))


def source_choice(cfg: CfgNode) -> str:
    """Return the value of the key that says where the method's knowledge of the source comes from."""
    forward = forward_method(cfg)
    return forward.value_in(cfg, "source_moments") if forward else aligning_method(cfg).value_in(cfg, "source_basis")


def kept_subspace(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Subspace | SourceMoments:
    """Return the subspace or the moments of a model from the file in CKPT_DIR, or fit and keep them."""
    path = auto_path(cfg, loaded, benchmark)
    if path.is_file():
        return _read(cfg, loaded, path)
    require_source_data(cfg, benchmark, path)
    if forward_method(cfg):
        moments = fit_moments(cfg, loaded, benchmark)
        moments.save(path)
        logger.info("source moments of %d samples (kept in %s)", moments.count, path)
        return moments
    subspace = fit_source_subspace(cfg, loaded, benchmark, path)
    subspace.save(path)
    remove_checkpoint(path)
    logger.info("source subspace: %d directions of %d samples (kept in %s)", subspace.d, subspace.count, path)
    return subspace


def default_path(cfg: CfgNode, loaded: LoadedModel) -> Path:
    """Return where the subspace or the moments of a model are kept in CKPT_DIR."""
    return _place(cfg, sha256_weights(loaded.model))


def _place(cfg: CfgNode, weights: str) -> Path:
    forward = forward_method(cfg)
    if forward is None:
        return subspace_path(cfg.CKPT_DIR, cfg.MODEL.ARCH, weights, *_kind(cfg))
    channels, layer = forward.value_in(cfg, "channels"), forward.value_in(cfg, "layer")
    return moments_path(cfg.CKPT_DIR, cfg.MODEL.ARCH, weights, channels, layer)


def auto_path(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Path:
    """Return where "auto" looks: the default place, or a separate one if the config asks for other source images.

    Note: a config that says nothing about them uses whatever file `fit-source` wrote.
    """
    path, asked = default_path(cfg, loaded), _asked(cfg, benchmark)
    if not asked:
        return path
    if path.is_file():
        made = _artefact(cfg).load(path).provenance
        if all(made.get(key) == value for key, value in asked.items()):
            return path
    return path.with_stem(f"{path.stem}-{sha256_text(json.dumps(asked, sort_keys=True))[:8]}")


def check_source_basis(cfg: CfgNode, benchmark: Benchmark) -> None:
    """Check what ``SOURCE_BASIS`` or ``SOURCE_MOMENTS`` needs, as far as that is possible without the model."""
    choice = source_choice(cfg)
    if choice == "auto":
        wanted = _place(cfg, "*")
        kept = (
            wanted.parent.glob(wanted.name)
            if forward_method(cfg)
            else find_subspaces(cfg.CKPT_DIR, *_kind(cfg), arch=cfg.MODEL.ARCH)
        )
        if not any(kept):
            require_source_data(cfg, benchmark, wanted)
    elif choice not in _MODEL_ALONE:
        _artefact(cfg).load(choice)


def require_source_data(cfg: CfgNode, benchmark: Benchmark, path: Path) -> None:
    """Raise a UserError that names the alternatives if there is no source data."""
    if benchmark.has_source():
        return
    forward = forward_method(cfg)
    needed = "CATTAn-F needs the source's moments" if forward else "CATTAn needs a source subspace"
    key = "CATTAN_FORWARD.SOURCE_MOMENTS" if forward else "CATTAN.SOURCE_BASIS"
    raise UserError(
        f"{needed}, and {path} does not exist. With the source training images, make it once: `tta-cattan fit-source "
        f"--cfg FILE DATA.SOURCE_DIR <folder of class folders>`. Without them: {key} "
        f"{'none' if forward else 'classifier'} (the model is enough), or {key} <a file somebody shared>"
    )


def _asked(cfg: CfgNode, benchmark: Benchmark) -> dict[str, Any]:
    """Return what the config says about the source images beyond the defaults, in the terms of the provenance."""
    asked: dict[str, Any] = {}
    if cfg.SOURCE.PER_CLASS:
        asked |= {"per_class": cfg.SOURCE.PER_CLASS, "seed": cfg.RNG_SEED}
    if cfg.DATA.SOURCE_DIR or cfg.DATA.IMAGE_SIZE != get_defaults().DATA.IMAGE_SIZE:
        asked["data"] = benchmark.describe_source()
    return asked


def _kind(cfg: CfgNode) -> tuple[bool, str]:
    """Return whether the subspace is centred, and its layer."""
    method = aligning_method(cfg)
    return method.value_in(cfg, "centering") != "none", method.value_in(cfg, "layer")


def _artefact(cfg: CfgNode) -> type[Subspace] | type[SourceMoments]:
    return SourceMoments if forward_method(cfg) else Subspace


def _read(cfg: CfgNode, loaded: LoadedModel, path: Path) -> Subspace | SourceMoments:
    """Return the subspace or the moments in a file; what was fitted for another model is refused.

    Note: a file of the user's own making names no model; its dimensions are checked when it is used.
    """
    found = _artefact(cfg).load(path)
    kind = "moments" if forward_method(cfg) else "subspace"
    made_for, weights = found.provenance.get("weights_sha256"), sha256_weights(loaded.model)
    if made_for is None:
        logger.warning("%s file %s does not say which model it was fitted for", kind, path)
    elif made_for != weights:
        raise UserError(
            f"{kind} file {path} was made for the model {str(made_for)[:12]}, and this model is {weights[:12]}: "
            "make one for this model with `tta-cattan fit-source`"
        )
    logger.info("source %s of %d samples, from %s", kind, found.count, path)
    return found
