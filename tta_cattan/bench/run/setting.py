"""What the cells of a row share (data, source model, subspace), and a rehearsal of each method before long work."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from tta_cattan.alignment import SourceMoments, Subspace
from tta_cattan.alignment.recolouring import Signature
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

# Roles of the keys that are the same in all rows of a comparison, unless they are swept.
_SHARED_ROLES = ("data", "model", "weights", "protocol", "selection", "place", "seed")
# Roles of the keys that the data and the source model depend on: rows that agree in these share both.
_SOURCE_ROLES = ("data", "model", "weights", "selection", "place")


@dataclass(frozen=True)
class Setting:
    """The data, the source model and, for a method that needs it, the source subspace or source moments."""

    benchmark: Benchmark
    loaded: LoadedModel
    device: torch.device
    subspace: Subspace | SourceMoments | None = None

    def fingerprint(self, cfg: CfgNode) -> str:
        """Return the fingerprint of everything that could change a result of ``cfg``'s method here."""
        digest = subspace_hash(self.subspace)
        return cell_fingerprint(cfg, self.loaded.sha256, digest, self.benchmark.describe(), self.device.type)


def check_rows(rows: Sequence[Row]) -> list[Benchmark]:
    """Check everything that can be checked before computing anything, and return the benchmark of each row."""
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
    """Return whether a method can take a benchmark's inputs: IP transforms images, so it cannot take features."""
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
    """Load or train the source model and find or fit the source subspace of each row, sharing identical ones."""
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
    """Return the hash of everything that a method reads from a subspace or from source moments."""
    if subspace is None:
        return None
    if isinstance(subspace, SourceMoments):
        return sha256_tensors(subspace.tensors())
    tensors = {"basis": subspace.basis, "eigenvalues": subspace.eigenvalues, "count": torch.tensor(subspace.count)}
    return sha256_tensors(tensors if subspace.mean is None else {**tensors, "mean": subspace.mean})


def _data_key(row: Row) -> str:
    """Return a key that is the same for rows with the same data and source model."""
    deciding = shared_keys(*_SOURCE_ROLES)
    return repr([change for change in row.changes if change[0] in deciding])


def check_alike(first: Row, other: Row) -> None:
    """Refuse to compare methods whose configs ask for different data, models or protocols."""
    one, two = dict(leaves(first.cfg)), dict(leaves(other.cfg))
    swept = dict(other.changes)
    for key in shared_keys(*_SHARED_ROLES):
        if one[key] != two[key] and key not in swept:
            raise UserError(
                f"{first.method} has {key} = {one[key]!r} and {other.method} has {two[key]!r}: "
                f"methods are compared on one thing at a time; give {key} on the command line"
            )


def rehearse_rows(rows: Sequence[Row], benchmarks: Sequence[Benchmark]) -> None:
    """Build each method on its untrained model, and check that the model takes the first two target samples.

    Note: RobustBench builds some of its models only together with their weights; these are checked later.
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

    Note: for a source subspace that is yet to be fitted, a stand-in with as many directions is used.
    """
    method = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION)
    if method.needs_source_subspace(cfg) and subspace is None:
        choice = source_choice(cfg)
        if choice == "auto":
            subspace = _stand_in(cfg, model, benchmark)
        else:
            # The model may still be untrained; whether the file matches the trained model is checked later.
            kind = Subspace if method.source_argument == "source_subspace" else SourceMoments
            subspace = kind.load(choice).without_model()
    return setup_model(copy.deepcopy(model), cfg, benchmark.num_classes, subspace)


def first_inputs(benchmark: Benchmark) -> Tensor:
    stream = Stream(benchmark.target(benchmark.domains()[0]), 2, None, resolve_device("cpu"))
    return next(iter(stream.only([0]))).inputs


@torch.no_grad()
def check_inputs(cfg: CfgNode, model: nn.Module, inputs: Tensor) -> None:
    """Refuse a model that cannot take the inputs, quoting its own error."""
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
        return SourceMoments({}, {}, {}, Signature(torch.zeros(1), torch.eye(1)), 1, subspace=subspace)
    method = aligning_method(cfg)
    layer, centered = method.value_in(cfg, "layer"), method.value_in(cfg, "centering") != "none"
    inputs = first_inputs(benchmark) if layer else None
    _, dim, rows = feature_place(cfg, model, benchmark, inputs)
    # Without source data the subspace comes from a file, whose size is checked when it is read.
    d = min(dim, rows * benchmark.source_count(cfg.SOURCE.PER_CLASS)) if benchmark.has_source() else dim
    return Subspace(torch.eye(dim, d), torch.ones(d), torch.zeros(dim), d, centered, layer=layer)
