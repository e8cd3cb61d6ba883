"""Building each method once before anything long is computed: what does not fit together says so at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tta_cattan.alignment import Subspace
from tta_cattan.bench.data import Stream
from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.models.zoo import resolve_device, untrained_model
from tta_cattan.bench.run.plan import Row
from tta_cattan.bench.source.fitting import aligning_method, feature_place
from tta_cattan.methods import ADAPTATION_REGISTRY, setup_model
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode


def rehearse_rows(rows: Sequence[Row], benchmarks: Sequence[Benchmark]) -> None:
    """Build each method on its model, untrained, and let that predict the first two target samples.

    Note: RobustBench builds its models with their weights only, so theirs are left for later.
    """
    probed = set()
    for row, benchmark in zip(rows, benchmarks, strict=True):
        model = untrained_model(row.cfg, benchmark.num_classes)
        if model is not None:
            if id(benchmark) not in probed:
                check_inputs(row.cfg, model, first_inputs(benchmark))
                probed.add(id(benchmark))
            rehearse(row.cfg, model, benchmark)


def rehearse(cfg: CfgNode, model: nn.Module, benchmark: Benchmark, subspace: Subspace | None = None) -> None:
    """Build the method of ``cfg`` on a copy of ``model``, whatever its weights.

    Note: a source subspace that is yet to be fitted is stood in for by one of as many directions as it will have.
    """
    method = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION)
    if method.needs_source_subspace(cfg) and subspace is None and method.value_in(cfg, "source_basis") == "auto":
        subspace = _stand_in(cfg, model, benchmark)
    setup_model(copy.deepcopy(model), cfg, benchmark.num_classes, subspace)


def first_inputs(benchmark: Benchmark) -> Tensor:
    """Return the first two inputs of the first target domain."""
    stream = Stream(benchmark.target(benchmark.domains()[0]), 2, None, resolve_device("cpu"))
    return next(iter(stream.only([0]))).inputs


@torch.no_grad()
def check_inputs(cfg: CfgNode, model: nn.Module, inputs: Tensor) -> None:
    """Refuse a model that cannot take the inputs, with its own words for it."""
    try:
        model.eval()(inputs)
    except (RuntimeError, ValueError, AssertionError) as error:
        if isinstance(error, UserError):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0][:160]
        raise UserError(
            f"MODEL.ARCH = {cfg.MODEL.ARCH!r} cannot take the inputs of {cfg.CORRUPTION.DATASET}, which have the shape "
            f"{tuple(inputs.shape[1:])} ({reason}): choose a model that is made for them"
        ) from error


def _stand_in(cfg: CfgNode, model: nn.Module, benchmark: Benchmark) -> Subspace:
    method = aligning_method(cfg)
    layer, centered = method.value_in(cfg, "layer"), method.value_in(cfg, "centering") != "none"
    inputs = first_inputs(benchmark) if layer else None
    _, dim, rows = feature_place(cfg, model, benchmark, inputs)
    # Without source data the subspace comes in a file, whose size is seen when it is read.
    d = min(dim, rows * benchmark.source_count(cfg.SOURCE.PER_CLASS)) if benchmark.has_source() else dim
    return Subspace(torch.eye(dim, d), torch.ones(d), torch.zeros(dim), d, centered, layer=layer)
