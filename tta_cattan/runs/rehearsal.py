"""Building each method once before anything long is computed: what does not fit together says so at once."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn

from tta_cattan.data.benchmark import Benchmark
from tta_cattan.data.sampling import per_class
from tta_cattan.methods import ADAPTATION_REGISTRY, setup_model
from tta_cattan.models.classifier import find_classifier
from tta_cattan.subspace import Subspace

if TYPE_CHECKING:
    from yacs.config import CfgNode


def rehearse(cfg: CfgNode, model: nn.Module, benchmark: Benchmark, subspace: Subspace | None = None) -> None:
    """Build the method of ``cfg`` on a copy of ``model``; its weights do not matter.

    Note: a source subspace that is yet to be fitted is stood in for by one of as many directions as it will have.
    """
    needed = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION).needs_source_subspace
    if needed and subspace is None and cfg.CATTAN.SOURCE_BASIS == "auto":
        name = find_classifier(model, cfg.MODEL.CLASSIFIER, benchmark.num_classes)
        subspace = _stand_in(cfg, model.get_submodule(name).in_features, benchmark)
    setup_model(copy.deepcopy(model), cfg, benchmark.num_classes, subspace)


def _stand_in(cfg: CfgNode, dim: int, benchmark: Benchmark) -> Subspace:
    source = benchmark.source()  # None: the subspace came in a file, whose size is seen when it is read
    d = dim if source is None else min(dim, len(per_class(source, cfg.SOURCE.PER_CLASS, cfg.RNG_SEED)))
    return Subspace(torch.eye(dim, d), torch.ones(d), torch.zeros(dim), d, cfg.CATTAN.CENTERING != "none")
