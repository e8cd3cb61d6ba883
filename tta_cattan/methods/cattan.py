"""CATTAn: test-time adaptation by deep subspace alignment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tta_cattan.alignment import (
    REDUCTIONS,
    FeatureMoments,
    Subspace,
    SubspaceTracker,
    classifier_subspace,
    select_dimension,
    stability_curve,
    subspace_of_moments,
)
from tta_cattan.alignment.aligned_head import AlignedHead
from tta_cattan.losses import CLASS_BALANCE, CONFIDENCE
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod, Batches
from tta_cattan.methods.running_balance import RunningBalance
from tta_cattan.methods.source_check import check_source
from tta_cattan.network.classifier import find_classifier, only_head_call, replace_module, watch_head
from tta_cattan.network.normalization import require_affine
from tta_cattan.util.errors import UserError, chosen

if TYPE_CHECKING:
    from yacs.config import CfgNode


CENTERINGS = ("pca", "none", "shift")
_LARGEST_FEATURES = 1e15


@ADAPTATION_REGISTRY.register("cattan")
class CATTAn(AdaptationMethod):
    """Align the target's feature subspace with the source's while the normalisation layers adapt.

    ``L = lambda_lr L_lr + lambda_align L_Phi + lambda_cb L_CB`` over the norm affines and ``Phi``. Offline, ``prepare``
    fits ``W_t`` to all target features and sets ``Phi* = W_t^T W_s``; online, ``W_t`` starts at ``W_s`` and is tracked
    from the batches. ``source_subspace=None`` takes the row space of the classifier for ``W_s``: no source data.
    """

    title = "CATTAn"
    config_node = "CATTAN"
    needs_source_subspace = True
    default_lr = 1e-4  # the paper's
    residual = False  # whether the source classifier stays beside the alignment

    def __init__(
        self,
        model: nn.Module,
        *,
        source_subspace: Subspace | None = None,
        d: int = 0,
        lambda_lr: float = 0.025,
        lambda_cb: float = 1.0,
        lambda_align: float = 1.0,
        centering: str = "pca",
        align_reduction: str = "sum",
        class_balance: str = "bce",
        kappa: float = 0.9,
        confidence: str = "hlr",
        phi_lr: float = 1.0,
        delta: float = 0.1,
        epsilon: float = 1e6,
        decay: float = 1.0,
        prior: float = 200.0,
        classifier: str = "",
        num_classes: int | None = None,
        **options: Any,
    ) -> None:
        require_affine(model, "CATTAn")  # before the model is changed
        self.classifier = find_classifier(model, classifier, num_classes)
        head = AlignedHead(model.get_submodule(self.classifier), self.residual)
        source = classifier_subspace(head.weight) if source_subspace is None else source_subspace
        self.source = check_source(source, head.in_features, d, centering).to(head.weight.device)
        self.d, self.delta, self.epsilon = d, delta, epsilon
        self.centering = chosen("centering", centering, CENTERINGS)
        self.decay, self.prior, self.phi_lr = decay, prior, phi_lr
        self.lambda_lr, self.lambda_cb, self.lambda_align = lambda_lr, lambda_cb, lambda_align
        self.align_reduction = chosen("align_reduction", align_reduction, REDUCTIONS)
        self.class_balance = chosen("class_balance", class_balance, (*CLASS_BALANCE, "running"))
        self.balance = RunningBalance(kappa)
        self.confidence = CONFIDENCE[chosen("confidence", confidence, CONFIDENCE)]
        super().__init__(replace_module(model, self.classifier, head), **options)
        self.forget()
        self.restart_optimizer()

    @classmethod
    def options_from_cfg(
        cls, cfg: CfgNode, num_classes: int | None, source_subspace: Subspace | None
    ) -> dict[str, Any]:
        node = cfg.CATTAN
        if source_subspace is None and node.SOURCE_BASIS == "auto":
            raise UserError(
                "CATTAn needs a source subspace: pass source_subspace=fit_subspace(source_features), set "
                "CATTAN.SOURCE_BASIS to a file that `tta-cattan fit-source` wrote, or to 'classifier' "
                "where there is no source data"
            )
        if source_subspace is None and node.SOURCE_BASIS != "classifier":
            source_subspace = Subspace.load(node.SOURCE_BASIS)
        return {
            "source_subspace": source_subspace,
            "d": node.D,
            "lambda_lr": node.LAMBDA_LR,
            "lambda_cb": node.LAMBDA_CB,
            "lambda_align": node.LAMBDA_ALIGN,
            "centering": node.CENTERING,
            "align_reduction": node.ALIGN_REDUCTION,
            "class_balance": node.CLASS_BALANCE,
            "confidence": node.CONFIDENCE,
            "phi_lr": node.PHI_LR,
            "delta": node.DELTA,
            "epsilon": node.EPSILON,
            "decay": node.DECAY,
            "prior": node.PRIOR,
            "classifier": cfg.MODEL.CLASSIFIER,
            "num_classes": num_classes,
        }

    @property
    def head(self) -> AlignedHead:
        """The classifier with its alignment."""
        return self.model.get_submodule(self.classifier)

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return the affines of the normalisation layers and ``Phi``."""
        params, names = self.affine_params()
        if self.head.phi is not None:
            params.append(self.head.phi)
            names.append(f"{self.classifier}.phi".lstrip("."))
        return params, names

    def affine_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return what adapts before the head."""
        return super().collect_params()

    def restart_optimizer(self) -> None:
        """Begin anew, with ``Phi`` at ``phi_lr`` times the learning rate of the rest."""
        super().restart_optimizer()
        group, phi = self.optimizer.param_groups[0], self.head.phi
        if phi is not None and self.phi_lr != 1:
            group["params"] = [param for param in group["params"] if param is not phi]
            self.optimizer.add_param_group({"params": [phi], "lr": self.phi_lr * group["lr"]})

    def forget(self) -> None:
        """Drop the target subspace: until the next target data the head is the plain source classifier."""
        self.tracker: SubspaceTracker | None = None
        self.prepared: Subspace | None = None
        self.balance.forget()
        # Only a placeholder of Phi: where d is open, one direction is enough until the rule has chosen.
        source = self._source_basis(self.d or 1)
        self.head.align(source, source, enabled=False)

    def state_loaded(self) -> None:
        """Go on with the alignment that was loaded; what was tracked before belongs to another one."""
        self.tracker = None
        super().state_loaded()

    @torch.no_grad()
    def prepare(self, batches: Batches) -> None:
        """Fit ``W_t`` to the features of all batches, choose d where it is open, and set ``Phi`` to ``Phi*``."""
        moments = FeatureMoments(self.head.in_features, self.head.weight.device)
        for indices, x in batches:
            logits, features = self.logits_and_features(x, adapting=False)
            self.seen_first(logits, indices)
            moments.update(features.float())
        target = subspace_of_moments(moments, self.d or None, center=self.centering != "none")
        d = self.d or self._rule(target.eigenvalues, target.count)
        self.prepared = target.truncate(d)
        self._start_alignment(self.prepared)

    def seen_first(self, logits: Tensor, indices: Tensor) -> None:
        """Learn what else a method wants to know of the batches of ``prepare``."""

    def start_again(self) -> None:
        """Go back to ``Phi*`` of the target subspace from ``prepare``, or to the source where it is tracked."""
        prepared = self.prepared
        self.reset()
        if prepared is not None:
            self.prepared = prepared
            self._start_alignment(prepared)

    def loss_calculation(self, x: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the logits and the loss.

        Note: without a target subspace from ``prepare`` the batch first moves the tracked one, and its logits see that.
        """
        if not self.head.enabled:
            self._start_tracking()
        with self._tracking():
            logits, _ = self.logits_and_features(x, adapting=True)
        return logits, self.guarded_loss(logits)

    def logits_and_features(self, x: Tensor, adapting: bool) -> tuple[Tensor, Tensor]:
        """Return the logits of a batch and what entered the classifier, which must be the model's last step."""
        with watch_head(self.head) as calls:
            logits = self.infer(x, adapting)
        return logits, only_head_call(calls, logits, self.classifier).features

    def loss(self, logits: Tensor) -> Tensor:
        """``L = lambda_lr L_lr + lambda_align L_Phi + lambda_cb L_CB``."""
        loss = self.lambda_lr * self.confidence(logits) + self.lambda_cb * self.balance_loss(logits)
        return loss + self.lambda_align * self.head.cost(self.align_reduction)

    def balance_loss(self, logits: Tensor) -> Tensor:
        """``L_CB`` of a batch, or the divergence of the running mean prediction."""
        if self.class_balance == "running":
            return self.balance(logits, self.new_batch)
        return CLASS_BALANCE[self.class_balance](logits)

    @torch.no_grad()
    def predict_bypassed(self, x: Tensor) -> Tensor:
        """Return the logits of a batch without the alignment; the adapted normalisation stays."""
        enabled, self.head.enabled = self.head.enabled, False
        try:
            return self.predict(x)
        finally:
            self.head.enabled = enabled

    def describe(self) -> dict[str, Any]:
        """Add the dimensions of the alignment, the origin of the source basis and what the rule of d compares."""
        d_target, d_source = self.head.optimum.shape
        basis = "data" if self.source.count else "classifier"
        facts = {**super().describe(), "d_target": d_target, "d_source": d_source, "source_basis": basis}
        if self.prepared is not None:
            target, n = self.prepared.eigenvalues, self.prepared.count
            facts["dimension"] = stability_curve(self._source_spectrum(), target, n, self.delta, self.epsilon)
        return facts

    def fold(self) -> nn.Module:
        """Return a plain copy of the source architecture with the alignment folded into its linear classifier."""
        plain = super().fold()
        linear = plain.get_submodule(self.classifier).fold()
        return replace_module(plain, self.classifier, linear.requires_grad_(False).eval())

    def _start_alignment(self, target: Subspace) -> None:
        """Align a target subspace with the source's, from the closed form."""
        shifted = self.centering == "shift"
        self.head.align(
            target.basis,
            self._source_basis(target.d),
            target_mean=target.mean if shifted else None,
            source_mean=self.source.mean if shifted else None,
        )
        self.restart_optimizer()

    def _start_tracking(self) -> None:
        """Begin at the source subspace, before any target data was seen."""
        d = self.d or self._rule(self.source.eigenvalues, self.source.count)
        source = self.source.to(self.head.weight.device)
        self.tracker = SubspaceTracker(source, d, self.centering != "none", self.decay, self.prior)
        self._start_alignment(Subspace(self.tracker.basis, self.tracker.energy, self.tracker.mean, 0, source.centered))

    @contextmanager
    def _tracking(self) -> Iterator[None]:
        """Let the features that enter the head move the target subspace first, where it is tracked."""
        if self.tracker is None or not self.new_batch:
            yield
            return
        handle = self.head.register_forward_pre_hook(lambda _, args: self._absorb(args[0]))
        try:
            yield
        finally:
            handle.remove()

    def _absorb(self, features: Tensor) -> None:
        # None of it belongs to a subspace: the step on a NaN is skipped, another shape is refused after the pass, and
        # squares of larger features would overflow.
        if features.ndim != 2 or not torch.linalg.vector_norm(features.float()) < _LARGEST_FEATURES:
            return
        with torch.autocast(features.device.type, enabled=False):  # in bfloat16 the basis would not stay orthonormal
            basis = self.tracker.update(features.float())
            mean = self.tracker.mean if self.centering == "shift" else None
            self.head.move_target(basis, self._source_basis(basis.shape[1]), mean)

    def _source_basis(self, d: int) -> Tensor:
        """Return ``W_s``: the first d directions, or the classifier's whole row space."""
        basis = self.source.basis.to(self.head.weight.device)
        return basis[:, :d] if self.source.count else basis

    def _rule(self, target_eigenvalues: Tensor, n_target: int) -> int:
        """Choose d by the stability rule; the classifier's row space has no spectrum and leaves it to the target."""
        if not n_target:  # online from the classifier alone: no spectrum to choose by
            return self.source.d
        source = self._source_spectrum()
        source = target_eigenvalues if source is None else source
        return select_dimension(source, target_eigenvalues, n_target, self.delta, self.epsilon)

    def _source_spectrum(self) -> Tensor | None:
        """Return the source eigenvalues that the rule may look at; the classifier's row space has none."""
        # The rule looks one eigenvalue past d; a file may hold more eigenvalues than directions.
        return self.source.eigenvalues[: self.source.d + 1] if self.source.count else None
