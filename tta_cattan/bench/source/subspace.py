"""What a run needs from its source domain: CATTAn's subspace or CATTAn-F's moments, loaded or fitted."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tta_cattan import __version__
from tta_cattan.alignment import FeatureMoments, SourceMoments, Subspace, fit_source_moments, subspace_of_moments
from tta_cattan.alignment.source_moments import ENOUGH_IMAGES
from tta_cattan.alignment.subspace import find_subspaces, moments_path, sha256_weights, subspace_path
from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.data.datasets import per_class
from tta_cattan.bench.data.stream import Stream
from tta_cattan.bench.models.zoo import LoadedModel, resolve_device
from tta_cattan.bench.source.distributed import ALONE, Workers
from tta_cattan.config import get_defaults
from tta_cattan.config.declared import method_class
from tta_cattan.methods import CATTAn, CATTAnForward
from tta_cattan.network.layers import find_classifier, iterate_features
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_text
from tta_cattan.util.progress import progress
from tta_cattan.util.state import load_state, save_state

if TYPE_CHECKING:
    from torch import Tensor, nn
    from yacs.config import CfgNode


logger = logging.getLogger(__name__)


_SAVE_EVERY = 60.0  # seconds between two checkpoints


def fit_source_subspace(
    cfg: CfgNode,
    loaded: LoadedModel,
    benchmark: Benchmark,
    path: Path,
    workers: Workers = ALONE,
    d: int | None = None,
) -> Subspace:
    """Fit the subspace of the benchmark's source data; every process calls this with its share of the work.

    Note: ``path`` itself is not written. Beside it, each process keeps a checkpoint from which a killed fit resumes,
    until ``remove_checkpoint`` is called.
    """
    data = per_class(benchmark.source(), cfg.SOURCE.PER_CLASS, cfg.RNG_SEED)
    device = resolve_device(cfg.DEVICE)
    stream = Stream(data, cfg.TEST.BATCH_SIZE, cfg.RNG_SEED, device, cfg.TEST.NUM_WORKERS)
    layer = aligning_method(cfg).value_in(cfg, "layer")
    inputs = next(iter(stream.only([0]))).inputs[:2] if layer else None
    place, dim, _ = feature_place(cfg, loaded.model, benchmark, inputs)
    if d is not None and not 1 <= d <= min(dim, len(data)):
        raise UserError(
            f"--d {d}: {len(data)} samples of {dim} features determine 1 to {min(dim, len(data))} directions"
        )
    provenance = {**describe_fit(cfg, loaded, benchmark, len(data)), "layer": place}
    checkpoint = _checkpoint(path, workers)
    # A checkpoint counts batches, so it belongs to this fit only if the batches are the same.
    identity = {**provenance, "batch": cfg.TEST.BATCH_SIZE, "seed": cfg.RNG_SEED, "from": cfg.DATA.SOURCE_DIR}
    of = json.dumps(identity, sort_keys=True)
    moments, done = _resume(checkpoint, of, FeatureMoments(dim, device))
    mine = range(workers.rank, len(stream), workers.count)
    if done:
        logger.info("resuming after %d of %d batches (%s)", done, len(mine), checkpoint)
    batches = (batch.inputs for batch in stream.only(mine[done:]))
    features = iterate_features(loaded.model, place, batches, layer, dim)
    saved = time.monotonic()
    for rows in progress(features, len(mine) - done, "fitting the source subspace"):
        moments.update(rows.float())
        done += 1
        if time.monotonic() - saved > _SAVE_EVERY:
            # The waiting rows are not folded in first: when this runs depends on the clock, and the sums must not.
            sums = {"mean": moments.mean, "scatter": moments.scatter, "waiting": moments.waiting()}
            save_state(checkpoint, {"of": of, "done": done, "count": moments.count, **sums})
            saved = time.monotonic()
    whole = reduce_moments(moments, workers)
    return subspace_of_moments(whole, d, _kind(cfg)[0], provenance, layer)


def fit_moments(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> SourceMoments:
    """Compute the moments of the benchmark's source data, from up to ``ENOUGH_IMAGES`` images in seeded order."""
    data = per_class(benchmark.source(), cfg.SOURCE.PER_CLASS, cfg.RNG_SEED)
    stream = Stream(data, cfg.TEST.BATCH_SIZE, cfg.RNG_SEED, resolve_device(cfg.DEVICE), cfg.TEST.NUM_WORKERS)
    enough = range(min(len(stream), -(-ENOUGH_IMAGES // cfg.TEST.BATCH_SIZE)))
    inputs = (batch.inputs for batch in progress(stream.only(enough), len(enough), "taking the source's moments"))
    provenance = describe_fit(cfg, loaded, benchmark, min(len(data), ENOUGH_IMAGES))
    method = forward_method(cfg) or CATTAnForward
    channels, layer = method.value_in(cfg, "channels"), method.value_in(cfg, "layer")
    return fit_source_moments(loaded.model, inputs, channels, provenance, layer)


def forward_method(cfg: CfgNode) -> type[CATTAnForward] | None:
    """Return the class of the config's method if it needs source moments, else None."""
    method = method_class(cfg.MODEL.ADAPTATION)
    return method if issubclass(method, CATTAnForward) else None


def aligning_method(cfg: CfgNode) -> type[CATTAn]:
    """Return the class whose keys say how the subspace is fitted: the config's method if it aligns, else CATTAn."""
    method = method_class(cfg.MODEL.ADAPTATION)
    return method if issubclass(method, CATTAn) else CATTAn


def feature_place(cfg: CfgNode, model: nn.Module, benchmark: Benchmark, inputs: Tensor | None) -> tuple[str, int, int]:
    """Return the module whose features are aligned, their dimension, and the number of feature rows per sample.

    The module is the classifier, whose input is aligned, or the config's ``LAYER``, whose output is; the dimension of
    the latter is known only from a pass over a few ``inputs``.
    """
    layer = aligning_method(cfg).value_in(cfg, "layer")
    if layer and inputs is not None:
        rows = next(iterate_features(model, "", [inputs.to(next(model.parameters()).device)], layer))
        return layer, rows.shape[1], len(rows) // len(inputs)
    classifier = find_classifier(model, cfg.MODEL.CLASSIFIER, benchmark.num_classes)
    return classifier, model.get_submodule(classifier).in_features, 1


def remove_checkpoint(path: Path, workers: Workers = ALONE) -> None:
    """Delete the checkpoint of a fit, once its result is on disk."""
    _checkpoint(path, workers).unlink(missing_ok=True)


def _checkpoint(path: Path, workers: Workers) -> Path:
    return path.with_name(f".{path.name}.{workers.rank}-of-{workers.count}.checkpoint")


def describe_fit(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark, n: int) -> dict[str, Any]:
    """Return the provenance of a subspace or of moments: model, data, number of samples, versions."""
    return {
        "model": cfg.MODEL.ARCH,
        "weights_sha256": sha256_weights(loaded.model),
        "data": benchmark.describe_source(),
        "n": n,
        "per_class": cfg.SOURCE.PER_CLASS,
        "seed": cfg.RNG_SEED if cfg.SOURCE.PER_CLASS else None,
        "centering": "pca" if _kind(cfg)[0] else "none",
        "versions": {"tta-cattan": __version__, "torch": torch.__version__},
    }


def reduce_moments(moments: FeatureMoments, workers: Workers) -> FeatureMoments:
    """Return the moments of all processes' samples; only sums are exchanged.

    With ``n = sum n_k`` and ``m = sum n_k m_k / n`` the scatter is ``sum_k S_k + n_k (m_k - m)(m_k - m)^T``.
    """
    moments.flush()
    if workers.count == 1:
        return moments
    sums = torch.cat([moments.mean * moments.count, moments.mean.new_tensor([moments.count])]).cpu()
    dist.all_reduce(sums)
    count = int(sums[-1].item())
    mean = sums[:-1] / count
    shift = moments.mean.cpu() - mean
    scatter = moments.scatter.cpu() + moments.count * torch.outer(shift, shift)
    dist.all_reduce(scatter)
    whole = FeatureMoments(moments.dim)
    whole.count, whole.mean, whole.scatter = count, mean, scatter
    return whole


def _resume(checkpoint: Path, of: str, moments: FeatureMoments) -> tuple[FeatureMoments, int]:
    """Return the sums so far and the number of batches in them, 0 without a checkpoint of this fit."""
    state = load_state(checkpoint, of)
    if state is None:
        return moments, 0
    moments.mean.copy_(state["mean"])
    moments.scatter.copy_(state["scatter"])
    moments.count = state["count"]
    moments.update(state["waiting"])
    return moments, state["done"]


_MODEL_ALONE = ("classifier", "none")


def source_subspace(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Subspace | SourceMoments | None:
    """Return the subspace or moments that ``SOURCE_BASIS`` or ``SOURCE_MOMENTS`` names, fitting them if necessary.

    Note: None stands for "classifier" and "none", which need only the model.
    """
    choice = source_choice(cfg)
    if choice in _MODEL_ALONE:
        return None
    return kept_subspace(cfg, loaded, benchmark) if choice == "auto" else _read(cfg, loaded, Path(choice))


def source_choice(cfg: CfgNode) -> str:
    """Return the value of the method's ``SOURCE_BASIS`` or ``SOURCE_MOMENTS``."""
    forward = forward_method(cfg)
    return forward.value_in(cfg, "source_moments") if forward else aligning_method(cfg).value_in(cfg, "source_basis")


def kept_subspace(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Subspace | SourceMoments:
    """Return the subspace or moments of a model from the file in CKPT_DIR, or fit and save them."""
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
    """Return the path of a model's subspace or moments in CKPT_DIR."""
    return _place(cfg, sha256_weights(loaded.model))


def _place(cfg: CfgNode, weights: str) -> Path:
    forward = forward_method(cfg)
    if forward is None:
        return subspace_path(cfg.CKPT_DIR, cfg.MODEL.ARCH, weights, *_kind(cfg))
    channels, layer = forward.value_in(cfg, "channels"), forward.value_in(cfg, "layer")
    return moments_path(cfg.CKPT_DIR, cfg.MODEL.ARCH, weights, channels, layer)


def auto_path(cfg: CfgNode, loaded: LoadedModel, benchmark: Benchmark) -> Path:
    """Return the path for "auto": the default path, or a separate one if the config asks for other source images.

    Note: a config that does not specify them uses whatever file `fit-source` wrote.
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
    """Check what ``SOURCE_BASIS`` or ``SOURCE_MOMENTS`` needs, as far as possible without the model."""
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
    """Return the config's settings of source images that are not defaults, under the keys of the provenance."""
    asked: dict[str, Any] = {}
    if cfg.SOURCE.PER_CLASS:
        asked |= {"per_class": cfg.SOURCE.PER_CLASS, "seed": cfg.RNG_SEED}
    if cfg.DATA.SOURCE_DIR or cfg.DATA.IMAGE_SIZE != get_defaults().DATA.IMAGE_SIZE:
        asked["data"] = benchmark.describe_source()
    return asked


def _kind(cfg: CfgNode) -> tuple[bool, str]:
    method = aligning_method(cfg)
    return method.value_in(cfg, "centering") != "none", method.value_in(cfg, "layer")


def _artefact(cfg: CfgNode) -> type[Subspace] | type[SourceMoments]:
    return SourceMoments if forward_method(cfg) else Subspace


def _read(cfg: CfgNode, loaded: LoadedModel, path: Path) -> Subspace | SourceMoments:
    """Return the subspace or moments in a file; refuse what was fitted for another model.

    Note: a file that names no model, such as a user's own, only gets a warning; its shape is checked when it is used.
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
