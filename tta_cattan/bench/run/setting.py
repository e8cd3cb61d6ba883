"""What the cells of a row share (data, source model, subspace), and a rehearsal of each method before anything long."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from tta_cattan.alignment import SourceMoments, Subspace
from tta_cattan.bench.data import Benchmark, Stream, benchmark_of
from tta_cattan.bench.data.domain_stream import check_stream
from tta_cattan.bench.models.checkpoints import read_checkpoint
from tta_cattan.bench.models.zoo import LoadedModel, check_arch, resolve_device, untrained_model
from tta_cattan.bench.run.plan import Row, cell_fingerprint, is_stream
from tta_cattan.bench.source.model import require_trained, source_model
from tta_cattan.bench.source.subspace import (
    aligning_method,
    check_source_basis,
    feature_place,
    forward_method,
    source_choice,
    source_subspace,
)
from tta_cattan.config import leaves, shared_keys
from tta_cattan.methods import ADAPTATION_REGISTRY, AdaptationMethod, setup_model
from tta_cattan.util.errors import UserError, first_line
from tta_cattan.util.files import sha256_tensors

# What the rows of one comparison have in common, unless it is swept.
_SHARED_ROLES = ("data", "model", "weights", "protocol", "selection", "place", "seed")
# What the data and the source model depend on: rows of a sweep that differ in nothing else share both.
_SOURCE_ROLES = ("data", "model", "weights", "selection", "place")


@dataclass(frozen=True)
class Setting:
    """The data, the source model and, for a method that needs it, the source subspace or the source's moments."""

    benchmark: Benchmark
    loaded: LoadedModel
    device: torch.device
    subspace: Subspace | SourceMoments | None = None

    def fingerprint(self, cfg: CfgNode) -> str:
        """Return the fingerprint of everything that could change a result of ``cfg``'s method here."""
        digest = subspace_hash(self.subspace)
        return cell_fingerprint(cfg, self.loaded.sha256, digest, self.benchmark.describe(), self.device.type)


def check_rows(rows: Sequence[Row]) -> list[Benchmark]:
    """Check all that can be checked before anything is computed, and return the benchmark of each row."""
    benchmarks: dict[Any, Benchmark] = {}
    for row in rows:
        cfg, key = row.cfg, _data_key(row)
        if key not in benchmarks:
            benchmarks[key] = benchmark_of(cfg)
            benchmarks[key].check()
            if is_stream(cfg):
                check_stream(cfg, benchmarks[key])
            check_arch(cfg.MODEL.ARCH, benchmarks[key].family)
            resolve_device(cfg.DEVICE)
        check_alike(rows[0], row)
        if not is_defined(row.method, benchmarks[key]):
            raise UserError(f"MODEL.ADAPTATION = {row.method!r} needs images, and {benchmarks[key].name} has none")
    return [benchmarks[_data_key(row)] for row in rows]


def is_defined(method: str, benchmark: Benchmark) -> bool:
    """Whether a method can take the inputs of a benchmark: IP transforms images, and features are none."""
    return benchmark.images or not ADAPTATION_REGISTRY.get(method).needs_images


def check_files(rows: Sequence[Row], benchmarks: Sequence[Benchmark]) -> None:
    """Check the checkpoints and the source subspaces that a run would read, for a dry run."""
    for path in {row.cfg.MODEL.CKPT_PATH for row in rows} - {""}:
        read_checkpoint(path)
    for row, benchmark in zip(rows, benchmarks, strict=True):
        require_trained(row.cfg, benchmark)
        if ADAPTATION_REGISTRY.get(row.method).needs_source_subspace(row.cfg):
            check_source_basis(row.cfg, benchmark)


def prepare_settings(rows: Sequence[Row], benchmarks: Sequence[Benchmark]) -> list[Setting]:
    """Load or train the source model and find or fit the source subspace of each row; what is alike is shared."""
    models: dict[Any, LoadedModel] = {}
    by_hash: dict[str, LoadedModel] = {}
    settings = []
    for row, benchmark in zip(rows, benchmarks, strict=True):
        key = _data_key(row)
        if key not in models:
            loaded = source_model(row.cfg, benchmark)
            models[key] = by_hash.setdefault(loaded.sha256, loaded)
        rehearse(row.cfg, models[key].model, benchmark)
        subspace = None
        if ADAPTATION_REGISTRY.get(row.method).needs_source_subspace(row.cfg):
            subspace = source_subspace(row.cfg, models[key], benchmark)
            rehearse(row.cfg, models[key].model, benchmark, subspace)
        settings.append(Setting(benchmark, models[key], resolve_device(row.cfg.DEVICE), subspace))
    return settings


def subspace_hash(subspace: Subspace | SourceMoments | None) -> str | None:
    """Return the hash of all that a method reads of a subspace, or of the source's moments."""
    if subspace is None:
        return None
    if isinstance(subspace, SourceMoments):
        return sha256_tensors(subspace.tensors())
    tensors = {"basis": subspace.basis, "eigenvalues": subspace.eigenvalues, "count": torch.tensor(subspace.count)}
    return sha256_tensors(tensors if subspace.mean is None else {**tensors, "mean": subspace.mean})


def _data_key(row: Row) -> str:
    """Return what tells the data and source model of a row from those of the others."""
    deciding = shared_keys(*_SOURCE_ROLES)
    return repr([change for change in row.changes if change[0] in deciding])


def check_alike(first: Row, other: Row) -> None:
    """Refuse to compare methods whose files ask for other data, another model or another protocol."""
    one, two = dict(leaves(first.cfg)), dict(leaves(other.cfg))
    swept = dict(other.changes)
    for key in shared_keys(*_SHARED_ROLES):
        if one[key] != two[key] and key not in swept:
            raise UserError(
                f"{first.method} has {key} = {one[key]!r} and {other.method} has {two[key]!r}: "
                f"methods are compared on one thing at a time; give {key} on the command line"
            )


def rehearse_rows(rows: Sequence[Row], benchmarks: Sequence[Benchmark]) -> None:
    """Build each method on its model, untrained, and let that predict the first two target samples.

    Note: RobustBench builds some of its models with their weights only; these are left for later.
    """
    probed = set()
    for row, benchmark in zip(rows, benchmarks, strict=True):
        model = untrained_model(row.cfg, benchmark.num_classes, benchmark.family)
        if model is not None:
            if id(benchmark) not in probed:
                check_inputs(row.cfg, model, first_inputs(benchmark))
                probed.add(id(benchmark))
            rehearse(row.cfg, model, benchmark)


def rehearse(
    cfg: CfgNode, model: nn.Module, benchmark: Benchmark, subspace: Subspace | SourceMoments | None = None
) -> AdaptationMethod:
    """Build the method of ``cfg`` on a copy of ``model``, whatever its weights, and return it.

    Note: a source subspace that is yet to be fitted is stood in for by one of as many directions as it will have.
    """
    method = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION)
    if method.needs_source_subspace(cfg) and subspace is None:
        choice = source_choice(cfg)
        if choice == "auto":
            subspace = _stand_in(cfg, model, benchmark)
        else:
            # The model may be untrained still; whether a file is of the trained one is seen when that is there.
            kind = Subspace if method.source_argument == "source_subspace" else SourceMoments
            subspace = kind.load(choice).without_model()
    return setup_model(copy.deepcopy(model), cfg, benchmark.num_classes, subspace)


def first_inputs(benchmark: Benchmark) -> Tensor:
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
        raise UserError(
            f"MODEL.ARCH = {cfg.MODEL.ARCH!r} cannot take the inputs of {cfg.CORRUPTION.DATASET}, which have the shape "
            f"{tuple(inputs.shape[1:])} ({first_line(error)}): choose a model that is made for them"
        ) from error


def _stand_in(cfg: CfgNode, model: nn.Module, benchmark: Benchmark) -> Subspace | SourceMoments:
    forward = forward_method(cfg)
    if forward:
        layer, d = forward.value_in(cfg, "layer"), forward.value_in(cfg, "d")
        subspace = Subspace(torch.eye(d), torch.ones(d), torch.zeros(d), d, True, layer=layer) if layer else None
        return SourceMoments({}, {}, {}, torch.zeros(1), torch.eye(1), 1, subspace=subspace)
    method = aligning_method(cfg)
    layer, centered = method.value_in(cfg, "layer"), method.value_in(cfg, "centering") != "none"
    inputs = first_inputs(benchmark) if layer else None
    _, dim, rows = feature_place(cfg, model, benchmark, inputs)
    # Without source data the subspace comes in a file, whose size is seen when it is read.
    d = min(dim, rows * benchmark.source_count(cfg.SOURCE.PER_CLASS)) if benchmark.has_source() else dim
    return Subspace(torch.eye(dim, d), torch.ones(d), torch.zeros(dim), d, centered, layer=layer)
