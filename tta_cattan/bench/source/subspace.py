"""Finding the source subspace that a run needs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_cattan.alignment import Subspace
from tta_cattan.alignment.subspace import find_subspaces, sha256_weights, subspace_path
from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.models.zoo import LoadedModel
from tta_cattan.bench.source.fitting import aligning_method, fit_source_subspace, remove_checkpoint
from tta_cattan.config import get_defaults
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_text

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)


def source_subspace(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Subspace | None:
    """Return the subspace that the method's ``SOURCE_BASIS`` names: a file's, or the kept or newly fitted one ("auto").

    Note: None stands for "classifier", which needs nothing but the model.
    """
    choice = aligning_method(cfg).value_in(cfg, "source_basis")
    if choice == "classifier":
        return None
    return kept_subspace(cfg, loaded, benchmark) if choice == "auto" else _read(loaded, Path(choice))


def kept_subspace(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Subspace:
    """Return the subspace of a model from its file in CKPT_DIR, or fit it to the source data and keep it."""
    path = auto_path(cfg, loaded, benchmark)
    if path.is_file():
        return _read(loaded, path)
    require_source_data(benchmark, path)
    subspace = fit_source_subspace(cfg, loaded, benchmark, path)
    subspace.save(path)
    remove_checkpoint(path)
    logger.info("source subspace: %d directions of %d samples (kept in %s)", subspace.d, subspace.count, path)
    return subspace


def default_path(cfg: CfgNode, loaded: LoadedModel) -> Path:
    """Return where the subspace of a model is kept in CKPT_DIR."""
    return subspace_path(cfg.CKPT_DIR, cfg.MODEL.ARCH, sha256_weights(loaded.model), *_kind(cfg))


def auto_path(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Path:
    """Return where "auto" looks: the default place, or a separate one if the config asks for other source images.

    Note: a config that says nothing about them uses whatever file `fit-source` wrote.
    """
    path, asked = default_path(cfg, loaded), _asked(cfg, benchmark)
    if not asked:
        return path
    if path.is_file():
        made = Subspace.load(path).provenance
        if all(made.get(key) == value for key, value in asked.items()):
            return path
    return path.with_stem(f"{path.stem}-{sha256_text(json.dumps(asked, sort_keys=True))[:8]}")


def check_source_basis(cfg: CfgNode, benchmark: Benchmark) -> None:
    """Check what the method's ``SOURCE_BASIS`` needs, as far as that is possible without the model."""
    choice = aligning_method(cfg).value_in(cfg, "source_basis")
    if choice == "auto":
        if not find_subspaces(cfg.CKPT_DIR, *_kind(cfg), arch=cfg.MODEL.ARCH):
            require_source_data(benchmark, subspace_path(cfg.CKPT_DIR, cfg.MODEL.ARCH, "*", *_kind(cfg)))
    elif choice != "classifier":
        Subspace.load(choice)


def require_source_data(benchmark: Benchmark, path: Path) -> None:
    """Raise a UserError that names the alternatives if there is no source data."""
    if not benchmark.has_source():
        raise UserError(
            f"CATTAn needs a source subspace, and {path} does not exist. With the source training images, make it "
            "once: `tta-cattan fit-source --cfg FILE DATA.SOURCE_DIR <folder of class folders>`. Without them: "
            "CATTAN.SOURCE_BASIS classifier (the model is enough), or CATTAN.SOURCE_BASIS <a file somebody shared>"
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


def _read(loaded: LoadedModel, path: Path) -> Subspace:
    """Return the subspace in a file; one that was fitted for another model is refused.

    Note: a file of the user's own making names no model; its dimensions are checked when it is used.
    """
    subspace = Subspace.load(path)
    made_for, weights = subspace.provenance.get("weights_sha256"), sha256_weights(loaded.model)
    if made_for is None:
        logger.warning("subspace file %s does not say which model it was fitted for", path)
    elif made_for != weights:
        raise UserError(
            f"subspace file {path} was made for the model {str(made_for)[:12]}, and this model is {weights[:12]}: "
            "make one for this model with `tta-cattan fit-source`"
        )
    logger.info("source subspace: %d directions of %d samples, from %s", subspace.d, subspace.count, path)
    return subspace
