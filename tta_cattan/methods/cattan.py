"""CATTAn: test-time adaptation by deep subspace alignment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tta_cattan.alignment import (
    REDUCTIONS,
    AlignedHead,
    AlignedLayer,
    FeatureMoments,
    Subspace,
    SubspaceTracker,
    classifier_subspace,
    select_dimension,
    stability_curve,
    subspace_of_moments,
)
from tta_cattan.alignment.subspace import require_model
from tta_cattan.losses import CLASS_BALANCE, CONFIDENCE
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod, Batches
from tta_cattan.methods.target import Target
from tta_cattan.network.layers import (
    Call,
    compose_linear,
    effective_linear,
    find_classifier,
    find_layer,
    following_linear,
    only_call,
    receives,
    replace_module,
)
from tta_cattan.util.errors import UserError
from tta_cattan.util.keys import NOT_EMPTY, above, at_least, key, one_of, within
from tta_cattan.util.state import stateful

if TYPE_CHECKING:
    from yacs.config import CfgNode

CENTERINGS = ("pca", "none", "shift")
_LARGEST_FEATURES = 1e15


@stateful
@dataclass
class CATTAnTarget(Target):
    """The target's subspace, fitted by ``prepare`` (``known``) or tracked from the batches."""

    known: Subspace | None = None
    tracker: SubspaceTracker | None = None


@ADAPTATION_REGISTRY.register("cattan")
class CATTAn(AdaptationMethod):
    """Align the target's feature subspace with the source's while the normalisation layers adapt.

    Minimises ``L = lambda_lr L_lr + lambda_align L_Phi + lambda_cb L_CB`` over the affines and ``Phi``. Offline,
    ``prepare`` fits ``W_t`` to all target features and sets ``Phi* = W_t^T W_s``; online, ``W_t`` starts at ``W_s`` and
    is tracked from the batches. The features are the classifier's input, or the output of ``layer``. With
    ``source_subspace=None``, ``W_s`` is the row space of the linear layer behind them, which needs no source data.
    """

    title = "CATTAn"
    node = "CATTAN"
    source_argument = "source_subspace"
    lr = 1e-4  # as in the paper

    d: int = key(0, "dimension of the subspaces; 0 = chosen by the stability rule", at_least(0), origin="paper")
    layer: str = key("", "module whose output is aligned; '' = the input of the classifier")
    lambda_lr: float = key(0.025, "weight of the confidence loss", at_least(0), origin="paper")
    lambda_cb: float = key(1.0, "weight of the class balance", at_least(0), origin="paper")
    lambda_align: float = key(1.0, "weight of the alignment cost", at_least(0), origin="paper")
    source_basis: str = key(
        "auto",
        "'auto' = the file in CKPT_DIR, fitted and cached where the benchmark has source data; 'classifier' = row "
        "space of the classifier, no source data; otherwise a file",
        NOT_EMPTY,
        role="weights",
        config_only=True,
    )
    centering: str = key(
        "pca",
        "'pca' = centred basis, no mean subtracted when projecting (paper); 'none' = uncentred SVD (authors' code); "
        "'shift' = centred and mean-shifted",
        one_of(*CENTERINGS),
    )
    align_reduction: str = key(
        "sum", "alignment cost as 'sum' (paper) or 'mean' (authors' code)", one_of(*REDUCTIONS), origin="paper"
    )
    class_balance: str = key(
        "sum",
        "'sum' = binary cross-entropy to the uniform prior (paper), summed over classes; 'mean' = its mean, which "
        "vanishes with many classes; 'entropy' = mean entropy minus entropy of the mean prediction (authors' code, "
        "with LAMBDA_CB 0.2); 'running' = divergence of the running mean prediction from the uniform prior",
        one_of(*CLASS_BALANCE, "running"),
        origin="paper",
    )
    confidence: str = key(
        "hlr", "'hlr' = hard likelihood ratio (paper), 'slr' = soft, 'entropy'", one_of(*CONFIDENCE), origin="paper"
    )
    phi_lr: float = key(1.0, "learning rate of Phi, as a multiple of OPTIM.LR", at_least(0))
    delta: float = key(0.1, "failure probability in the stability rule", within(0, 1, "()"), origin="paper")
    epsilon: float = key(1e6, "tolerance in the stability rule", above(0), origin="paper")
    relative_rule: bool = key(
        False,
        "divide each spectrum by its mean in the stability rule, so d does not depend on the features' scale",
    )
    fit_statistics: str = key(
        "same",
        "statistics of the pass that fits W_t: 'same' = those of adaptation (the paper does not say), 'source' = the "
        "source model's",
        one_of("same", "source"),
    )
    decay: float = key(1.0, "weight that past batches keep at each new batch in the tracker", within(0, 1, "(]"))
    prior: float = key(200.0, "samples that the source subspace counts for at the tracker's start", at_least(0))

    target_type = CATTAnTarget
    target: CATTAnTarget

    @classmethod
    def needs_source_subspace(cls, cfg: CfgNode) -> bool:
        """Return whether the config asks for a basis fitted to source data."""
        return cls.value_in(cfg, "source_basis") != "classifier"

    @classmethod
    def source_in(cls, cfg: CfgNode, given: Subspace | None) -> Subspace | None:
        """Return the given source subspace or the one that a config names; None means the classifier's row space."""
        choice = cls.value_in(cfg, "source_basis")
        if given is not None or choice == "classifier":
            return given
        if choice == "auto":
            raise UserError(
                f"{cls.title} needs a source subspace: pass source_subspace=fit_source(net, loader), set "
                f"{cls.node}.SOURCE_BASIS to a file that `tta-cattan fit-source` wrote, or to 'classifier' where there "
                "is no source data"
            )
        return Subspace.load(choice)

    def inspect(self, model: nn.Module) -> None:
        """Find the layer to align and the source subspace, and build the aligned layer without inserting it."""
        super().inspect(model)
        self.follower: str | None = None  # the linear layer behind an aligned inner layer
        source = self.source_subspace
        if self.layer:
            inner = find_layer(model, self.layer)
            self.follower = following_linear(model, self.layer)
            if source is None:
                source = classifier_subspace(self._follower_weight(model))
            like = next(model.parameters())
            self._check_source(source, None)
            self._new = AlignedLayer(inner, source.dim, like)
            self.aligned_name = self.layer
        else:
            self.classifier = self.aligned_name = find_classifier(model, self.classifier, self.num_classes)
            self._new = AlignedHead(model.get_submodule(self.aligned_name))
            source = classifier_subspace(self._new.weight) if source is None else source
            self._check_source(source, self._new.in_features)
        require_model("subspace", source.provenance, model)
        self.source = source.to(self._new.like.device)
        self._follower_checked = False

    def configure_model(self, model: nn.Module) -> nn.Module:
        """Insert the aligned layer and configure the model."""
        model = super().configure_model(replace_module(model, self.aligned_name, self._new))
        del self._new
        return model

    @property
    def aligned(self) -> AlignedHead | AlignedLayer:
        """The layer that holds the alignment."""
        return self.model.get_submodule(self.aligned_name)

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return the affines of the normalisation layers and ``Phi``."""
        params, names = super().collect_params()
        if self.aligned.phi is not None:
            params.append(self.aligned.phi)
            names.append(f"{self.aligned_name}.phi".lstrip("."))
        return params, names

    def begin_target(self, known: Subspace | None = None) -> None:
        """Start at ``Phi*`` of the subspace that ``prepare`` fitted, or as the plain source model without one."""
        if known is None:
            self.aligned.clear()
        else:
            self._align(known)
        super().begin_target(known)

    def begin_updates(self) -> None:
        """Start with a fresh optimiser, with ``Phi`` at ``phi_lr`` times the learning rate of the rest."""
        super().begin_updates()
        group, phi = self.optimizer.param_groups[0], self.aligned.phi
        if phi is not None and self.phi_lr != 1:
            group["params"] = [param for param in group["params"] if param is not phi]
            self.optimizer.add_param_group({"params": [phi], "lr": self.phi_lr * group["lr"]})

    @torch.no_grad()
    def prepare(self, batches: Batches) -> None:
        """Fit ``W_t`` to the features of all batches, choose d if it is not set, and set ``Phi`` to ``Phi*``."""
        aligned = self.aligned
        moments = FeatureMoments(aligned.in_features, aligned.like.device)
        with self._fitting_statistics():
            for _, x in batches:
                _, features = self.logits_and_features(x, adapting=False)
                moments.update(features.float())
        target = subspace_of_moments(moments, self.d or None, center=self.centering != "none")
        d = self.d or self._rule(target.eigenvalues, target.count)
        self.begin_target(target.truncate(min(d, target.d)))

    @contextmanager
    def _fitting_statistics(self) -> Iterator[None]:
        """Use the statistics that ``fit_statistics`` names inside the block."""
        own, self.statistics = self.statistics, "source" if self.fit_statistics == "source" else self.statistics
        try:
            yield
        finally:
            self.statistics = own

    def loss_calculation(self, x: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the logits and the loss.

        Note: without a target subspace from ``prepare``, the batch first updates the tracked one, which its logits use.
        """
        if not self.aligned.enabled:
            self._start_tracking()
        elif all(param is not self.aligned.phi for group in self.optimizer.param_groups for param in group["params"]):
            self.begin_updates()  # a state dict was loaded directly into the network
        logits, _ = self.logits_and_features(x, adapting=True)
        return logits, self.guarded_loss(logits)

    def logits_and_features(self, x: Tensor, adapting: bool) -> tuple[Tensor, Tensor]:
        """Return the logits of a batch and the features that enter the alignment, as rows."""
        tracking = adapting and self.target.tracker is not None and self.new_batch
        if self.layer and not self._follower_checked:
            self._check_follower(x)
        with self.aligned.observed(self._absorb if tracking else None) as calls:
            logits = self.infer(x, adapting)
        if len(x) == 1:  # one sample may take a second pass, under the source's statistics
            calls = calls[-1:]
        if self.layer:
            call = only_call(calls, self.aligned_name)
        else:
            call = only_call([Call(z, self.joined(y)) for z, y in calls], self.aligned_name, logits)
        return logits, call.features.flatten(0, -2)

    def loss(self, logits: Tensor) -> Tensor:
        """Return ``L = lambda_lr L_lr + lambda_align L_Phi + lambda_cb L_CB``."""
        loss = self.lambda_lr * CONFIDENCE[self.confidence](logits) + self.lambda_cb * self.balance_loss(logits)
        return loss + self.lambda_align * self.aligned.cost(self.align_reduction)

    @torch.no_grad()
    def predict_bypassed(self, x: Tensor) -> Tensor:
        """Return the logits of a batch without the alignment but with the adapted normalisation."""
        with self.aligned.bypassed():
            return self.predict(x)

    def describe(self) -> dict[str, Any]:
        """Add the dimensions of the alignment, the origin of the source basis and the curves of the stability rule."""
        facts = super().describe()
        if self.aligned.enabled:
            facts["d_target"], facts["d_source"] = self.aligned.optimum.shape
        facts["source_basis"] = "data" if self.source.count else "classifier"
        if self.target.known is not None:
            subspace = self.target.known
            facts["dimension"] = stability_curve(
                self._source_spectrum(),
                subspace.eigenvalues,
                subspace.count,
                self.delta,
                self.epsilon,
                self.relative_rule,
            )
        return facts

    def state_loaded(self) -> None:
        """Complete ``load_state_dict``; if the loaded weights have another row space, take theirs as the source's."""
        if not self.source.count:
            weight = self._follower_weight(self.model) if self.layer else self.aligned.weight
            basis = self.source.basis.to(weight)
            if not torch.allclose(weight @ basis @ basis.T, weight, rtol=1e-3, atol=1e-4 * weight.abs().max().item()):
                self.source = classifier_subspace(weight).to(weight.device)
        super().state_loaded()

    @property
    def unfoldable(self) -> str:
        """Why ``fold`` would fail: no linear layer follows the aligned one, or it has no bias for the shift."""
        behind = "a linear layer or 1x1 convolution that receives its output directly"
        if self.layer and self.follower is None:
            return f"layer {self.layer!r} is not followed by {behind}; align at one that is"
        if self.layer and not self._follower_checked:
            return f"whether layer {self.layer!r} is followed by {behind} shows the first batch; predict one"
        if self.centering == "shift" and not self._bias_behind():
            return f"{self.node}.CENTERING = 'shift' needs a bias in the linear layer behind; choose 'pca'"
        return super().unfoldable

    def _bias_behind(self) -> bool:
        """Return whether the linear layer behind the alignment has a bias."""
        layer = self.aligned if self.follower is None else self.model.get_submodule(self.follower)
        return layer.bias is not None

    @contextmanager
    def at_start(self) -> Iterator[None]:
        """Also use ``Phi*`` of the subspace that ``prepare`` fitted, or no alignment without one."""
        with super().at_start():
            if self.target.known is None:
                with self.aligned.bypassed():
                    yield
            else:
                self._load_adapted({f"{self.aligned_name}.phi".lstrip("."): self.aligned.optimum})
                yield

    def plain_network(self) -> nn.Module:
        """Return a plain copy of the source architecture with the alignment folded into the linear layer behind it."""
        plain = super().plain_network()
        aligned = plain.get_submodule(self.aligned_name)
        if self.follower is None:
            return replace_module(plain, self.aligned_name, aligned.fold())
        plain = replace_module(plain, self.aligned_name, aligned.inner)
        folded = compose_linear(plain.get_submodule(self.follower), *aligned.linear_map())
        return replace_module(plain, self.follower, folded.requires_grad_(False).eval())

    def _align(self, target: Subspace) -> None:
        """Align a target subspace with the source's by the closed form."""
        shifted = self.centering == "shift"
        self.aligned.align(
            target.basis,
            self._source_basis(target.d),
            target_mean=target.mean if shifted else None,
            source_mean=self.source.mean if shifted else None,
        )

    def _start_tracking(self) -> None:
        """Start tracking at the source subspace, before any target data is seen."""
        d = self.d or self._rule(self.source.eigenvalues, self.source.count)
        source = self.source.to(self.aligned.like.device)
        tracker = SubspaceTracker(source, d, self.centering != "none", self.decay, self.prior)
        self.target.tracker = tracker
        self._align(Subspace(tracker.basis, tracker.energy, tracker.mean, 0, source.centered))
        self.begin_updates()

    def _absorb(self, features: Tensor) -> None:
        """Update the tracked subspace with the features of a batch before they pass the alignment."""
        rows = features.flatten(0, -2)
        # Keep these out of the subspace: the update on a NaN is skipped, another shape is rejected after the pass, and
        # the squares of huge features would overflow.
        misplaced = not self.layer and features.ndim != 2
        if misplaced or not torch.linalg.vector_norm(rows.float()) < _LARGEST_FEATURES:
            return
        tracker = self.target.tracker
        with torch.autocast(features.device.type, enabled=False):  # in bfloat16 the basis would not stay orthonormal
            basis = tracker.update(rows.float())
            mean = tracker.mean if self.centering == "shift" else None
            self.aligned.move_target(basis, self._source_basis(basis.shape[1]), mean)

    def _source_basis(self, d: int) -> Tensor:
        """Return ``W_s``: the first d directions, or the classifier's whole row space."""
        basis = self.source.basis.to(self.aligned.like.device)
        return basis[:, :d] if self.source.count else basis

    def _rule(self, target_eigenvalues: Tensor, n_target: int) -> int:
        """Choose d by the stability rule; the classifier's row space has no spectrum, so only the target's counts."""
        if not n_target:  # online from the classifier alone: no spectrum to choose by
            return self.source.d
        source = self._source_spectrum()
        source = target_eigenvalues if source is None else source
        return select_dimension(source, target_eigenvalues, n_target, self.delta, self.epsilon, self.relative_rule)

    def _source_spectrum(self) -> Tensor | None:
        """Return the source eigenvalues for the stability rule; the classifier's row space has none."""
        # The rule looks one eigenvalue past d; a file may hold more eigenvalues than directions.
        return self.source.eigenvalues[: self.source.d + 1] if self.source.count else None

    def _follower_weight(self, model: nn.Module) -> Tensor:
        if self.follower is None:
            raise UserError(
                f"no linear layer follows {self.layer!r}, so it has no row space to stand in for the source basis: "
                "pass source_subspace, fitted to source features of that layer (`tta-cattan fit-source`)"
            )
        return effective_linear(model.get_submodule(self.follower))[0].flatten(1)

    def _check_follower(self, x: Tensor) -> None:
        """Check whether the linear layer behind the aligned one receives its output; without source data it must."""
        self._follower_checked = True
        if self.follower is None:
            return
        with receives(self.model, self.aligned_name, self.follower) as connected, torch.no_grad():
            self.infer(x, adapting=False)
        if connected:
            return
        if not self.source.count:
            raise UserError(
                f"the linear layer {self.follower!r} does not receive the output of {self.layer!r} directly, so its "
                "row space says nothing about it: pass source_subspace, fitted to source features of that layer"
            )
        self.follower = None

    def _check_source(self, source: Subspace, dim: int | None) -> None:
        """Reject a source subspace that does not match the features, the layer, d or the centring."""
        if not isinstance(source, Subspace):
            raise UserError(
                f"source_subspace is {type(source).__name__} {str(source)[:60]!r}: give a Subspace, from "
                "fit_source(net, loader), fit_subspace(features) or Subspace.load(file)"
            )
        centering = f"{self.node}.CENTERING = {self.centering!r}"
        if dim is not None and source.dim != dim:
            raise UserError(
                f"the source subspace is of {source.dim} features and the classifier takes {dim}: it was made for "
                "another model or layer. Make one for this model with `tta-cattan fit-source`"
            )
        if source.count == 0:
            if self.centering == "shift":
                raise UserError(f"{centering} needs the mean source feature, which the classifier's row space lacks")
            return
        if source.layer is not None and source.layer != self.layer:
            raise UserError(
                f"the source subspace was fitted at layer {source.layer or 'input of the classifier'!r}, and "
                f"{self.node}.LAYER is {self.layer!r}: fit one at this layer with `tta-cattan fit-source`"
            )
        if self.d > source.d:
            raise UserError(
                f"{self.node}.D = {self.d}: the source subspace holds {source.d} directions; lower d or fit more"
            )
        if source.centered != (self.centering != "none"):
            made = "centred (PCA)" if source.centered else "uncentred"
            raise UserError(f"{centering}, but the source subspace is {made}: fit it with the same centring")
        if self.centering == "shift" and source.mean is None:
            raise UserError(
                f"{centering} needs the mean source feature, and this source subspace was saved without it: fit it "
                "anew or choose 'pca'"
            )
