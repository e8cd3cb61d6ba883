"""Finding or fitting the source subspace that a run needs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tta_cattan.data.benchmark import Benchmark
from tta_cattan.data.stream import Stream
from tta_cattan.errors import UserError
from tta_cattan.models.classifier import find_classifier
from tta_cattan.models.features import iterate_features
from tta_cattan.models.zoo import LoadedModel, resolve_device
from tta_cattan.progress import progress
from tta_cattan.subspace import Subspace, fit_subspace

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
    path = cached_path(cfg, loaded) if choice == "auto" else Path(choice)
    if choice == "auto" and not path.is_file():
        return fit_source(cfg, loaded, benchmark, path)
    subspace = Subspace.load(path)
    made_for = subspace.provenance.get("model_sha256")
    if made_for != loaded.sha256:
        raise UserError(
            f"subspace file {path} was made for the model {str(made_for)[:12]}, and this model is {loaded.sha256[:12]}: "
            "make one for this model with `tta-cattan fit-source`"
        )
    return subspace


def cached_path(cfg: CfgNode, loaded: LoadedModel) -> Path:
    """Return where the subspace of a model lies in CKPT_DIR."""
    kind = "uncentred" if cfg.CATTAN.CENTERING == "none" else "pca"
    return Path(cfg.CKPT_DIR) / "subspaces" / f"{cfg.MODEL.ARCH}-{loaded.sha256[:12]}-{kind}.safetensors"


def fit_source(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark, path: Path) -> Subspace:
    """Fit the subspace to the benchmark's source data and keep it in ``path``."""
    data = benchmark.source()
    if data is None:
        raise UserError(
            f"CATTAn needs a source subspace, {path} does not exist, and {benchmark.name} has no source data here: "
            "set CATTAN.SOURCE_BASIS to a file, or to 'classifier', which needs no source data"
        )
    stream = Stream(data, cfg.TEST.BATCH_SIZE, cfg.RNG_SEED, resolve_device(cfg.DEVICE), cfg.TEST.NUM_WORKERS)
    inputs = (batch.inputs for batch in progress(stream, len(stream), "fitting the source subspace"))
    classifier = find_classifier(loaded.model, cfg.MODEL.CLASSIFIER, benchmark.num_classes)
    subspace = fit_subspace(
        iterate_features(loaded.model, classifier, inputs),
        center=cfg.CATTAN.CENTERING != "none",
        provenance={"model_sha256": loaded.sha256, "model": cfg.MODEL.ARCH, "data": benchmark.describe_source()},
    )
    subspace.save(path)
    logger.info("source subspace: %d directions of %d samples (kept in %s)", subspace.d, subspace.count, path)
    return subspace
