"""Finding the source subspace that a run needs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_cattan.alignment import Subspace
from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.models.zoo import LoadedModel
from tta_cattan.bench.source.fitting import fit_source_subspace, remove_checkpoint
from tta_cattan.config import get_defaults
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_text

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)


def source_subspace(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Subspace | None:
    """Return the subspace that ``CATTAN.SOURCE_BASIS`` names: a file's, a cached or freshly fitted one ("auto").

    Note: None stands for "classifier", which needs nothing but the model.
    """
    choice = cfg.CATTAN.SOURCE_BASIS
    if choice == "classifier":
        return None
    return kept_subspace(cfg, loaded, benchmark) if choice == "auto" else _read(cfg, loaded, Path(choice))


def kept_subspace(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Subspace:
    """Return the subspace of a model from its file in CKPT_DIR, or fit it to the source data and keep it."""
    path = auto_path(cfg, loaded, benchmark)
    if path.is_file():
        return _read(cfg, loaded, path)
    require_source_data(benchmark, path)
    subspace = fit_source_subspace(cfg, loaded, benchmark, path)
    subspace.save(path)
    remove_checkpoint(path)
    logger.info("source subspace: %d directions of %d samples (kept in %s)", subspace.d, subspace.count, path)
    return subspace


def _read(cfg: CfgNode, loaded: LoadedModel, path: Path) -> Subspace:
    subspace = Subspace.load(path)
    check_model(subspace, path, loaded, cfg.CATTAN.FORCE_BASIS)
    logger.info("source subspace: %d directions of %d samples, from %s", subspace.d, subspace.count, path)
    return subspace


def default_path(cfg: CfgNode, loaded: LoadedModel) -> Path:
    """Return where the subspace of a model lies in CKPT_DIR."""
    return _folder(cfg) / _name(cfg, loaded.sha256[:12])


def auto_path(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Path:
    """Return where "auto" looks: the default place, or one apart where the config asks for other source images.

    Note: a config that says nothing about them takes what `fit-source` wrote, whatever it was told.
    """
    path, asked = default_path(cfg, loaded), _asked(cfg, benchmark)
    if not asked:
        return path
    if path.is_file():
        made = Subspace.load(path).provenance
        if all(made.get(key) == value for key, value in asked.items()):
            return path
    return path.with_stem(f"{path.stem}-{sha256_text(json.dumps(asked, sort_keys=True))[:8]}")


def _asked(cfg: CfgNode, benchmark: Benchmark) -> dict[str, Any]:
    """Return what the config says about the images of the subspace beyond the defaults, as its provenance has it."""
    asked: dict[str, Any] = {}
    if cfg.SOURCE.PER_CLASS:
        asked |= {"per_class": cfg.SOURCE.PER_CLASS, "seed": cfg.RNG_SEED}
    if cfg.DATA.SOURCE_DIR or cfg.DATA.IMAGE_SIZE != get_defaults().DATA.IMAGE_SIZE:
        asked["data"] = benchmark.describe_source()
    return asked


def check_source_basis(cfg: CfgNode, benchmark: Benchmark) -> None:
    """Check what ``CATTAN.SOURCE_BASIS`` needs, as far as that can be done without the model."""
    choice = cfg.CATTAN.SOURCE_BASIS
    if choice == "auto":
        if not any(_folder(cfg).glob(_name(cfg, "*"))):
            require_source_data(benchmark, _folder(cfg) / _name(cfg, "*"))
    elif choice != "classifier":
        Subspace.load(choice)


def require_source_data(benchmark: Benchmark, path: Path) -> None:
    """Refuse to go on without source data, with the ways to do without it."""
    if not benchmark.has_source():
        raise UserError(
            f"CATTAn needs a source subspace, and {path} does not exist. With the source training images, make it "
            "once: `tta-cattan fit-source --cfg FILE DATA.SOURCE_DIR <folder of class folders>`. Without them: "
            "CATTAN.SOURCE_BASIS classifier (the model is enough), or CATTAN.SOURCE_BASIS <a file somebody shared>"
        )


def _folder(cfg: CfgNode) -> Path:
    return Path(cfg.CKPT_DIR) / "subspaces"


def _name(cfg: CfgNode, model: str) -> str:
    kind = "uncentred" if cfg.CATTAN.CENTERING == "none" else "pca"
    return f"{cfg.MODEL.ARCH.replace('/', '_')}-{model}-{kind}.safetensors"


def check_model(subspace: Subspace, path: Path, loaded: LoadedModel, forced: bool) -> None:
    """Refuse a subspace that was made for another model, unless forced."""
    made_for = str(subspace.provenance.get("model_sha256"))
    if made_for == loaded.sha256:
        return
    problem = f"subspace file {path} was made for the model {made_for[:12]}, and this model is {loaded.sha256[:12]}"
    if not forced:
        raise UserError(f"{problem}: make one with `tta-cattan fit-source`, or set CATTAN.FORCE_BASIS True")
    logger.warning("%s: used all the same, because CATTAN.FORCE_BASIS is set", problem)
