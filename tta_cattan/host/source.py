"""The source subspace inside a host: a file, the classifier's row space, or fitted from the host's source loader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tta_cattan.alignment import Subspace, fit_subspace
from tta_cattan.network.layers import find_classifier, iterate_features
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_tensors

if TYPE_CHECKING:
    from torch import Tensor, nn
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)


def source_subspace(
    model: nn.Module,
    cfg: CfgNode,
    arch: str,
    num_classes: int | None = None,
    source_batches: Callable[[], Iterable[Tensor]] | None = None,
) -> Subspace | None:
    """Return the subspace that ``CATTAN.SOURCE_BASIS`` names; None stands for "classifier".

    ``auto`` is the file of this very model in CKPT_DIR; it is fitted to ``source_batches`` where it is missing.
    """
    choice = cfg.CATTAN.SOURCE_BASIS
    if choice == "classifier":
        return None
    digest = sha256_tensors(model.state_dict())
    if choice != "auto":
        return _checked(Subspace.load(choice), choice, digest)
    kind = "uncentred" if cfg.CATTAN.CENTERING == "none" else "pca"
    path = Path(cfg.CKPT_DIR) / "subspaces" / f"{arch.replace('/', '-')}-{digest[:12]}-{kind}.safetensors"
    if path.is_file():
        logger.info("source subspace: %s", path)
        return _checked(Subspace.load(path), str(path), digest)
    if source_batches is None:
        raise UserError(
            f"CATTAn needs a source subspace: {path} does not exist and this host has no loader of source data. Set "
            "CATTAN.SOURCE_BASIS to a file that `tta-cattan fit-source` wrote, or to 'classifier' (no source data)"
        )
    classifier = find_classifier(model, cfg.MODEL.CLASSIFIER, num_classes)
    device = next(model.parameters()).device
    logger.info("fitting the source subspace to the host's source data (kept in %s)", path)
    subspace = fit_subspace(
        iterate_features(model, classifier, (x.to(device) for x in source_batches())),
        center=cfg.CATTAN.CENTERING != "none",
        provenance={"model_sha256": digest, "model": arch, "data": "source loader of the host"},
    )
    subspace.save(path)
    logger.info("source subspace: %d directions of %d samples", subspace.d, subspace.count)
    return subspace


def _checked(subspace: Subspace, path: str, digest: str) -> Subspace:
    """Warn of a file that names another model.

    Note: no refusal, because the same weights have other names, hence another hash, in another host's wrapper.
    """
    made_for = str(subspace.provenance.get("model_sha256", ""))
    if made_for and made_for != digest:
        logger.warning(
            "subspace file %s was made for the model %s, and this one is %s: right only if the weights are the same",
            path,
            made_for[:12],
            digest[:12],
        )
    return subspace
