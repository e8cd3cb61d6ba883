"""CATTAn+: the alignment as a correction of the source classifier, from the checkpoint alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tta_cattan.alignment import change_weight, fit_class_structure, sample_weight
from tta_cattan.alignment.target_classes import TargetClasses
from tta_cattan.methods.arguments import checked_fraction
from tta_cattan.methods.base import ADAPTATION_REGISTRY, Batches
from tta_cattan.methods.cattan import CATTAn
from tta_cattan.methods.first_predictions import FirstPredictions
from tta_cattan.network.classifier import replace_module
from tta_cattan.network.input_transform import TransformedModel, image_channels, transformed_parameters
from tta_cattan.network.mirror import mean_prediction, with_mirror_images
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from tta_cattan.alignment import Subspace

DIRECTIONS = 64  # of the target subspace, where d is left open


@ADAPTATION_REGISTRY.register("cattan_plus")
class CATTAnPlus(CATTAn):
    """CATTAn with ``W_s`` the row space of the classifier, a residual path, and both ends of the network free.

    ``y = h(z) + (z W_t) (Phi - Phi*) (W_s^T H^T)`` starts as the source classifier and loses nothing of ``z``;
    ``L = lambda_lr L_lr + lambda_align mean((W_t Phi - W_s)^2) + lambda_cb KL(m || uniform)`` with the running mean
    prediction ``m``, over the norm affines, ``Phi`` and, with ``transform``, IP's input transformation. With ``mirror``
    ``y`` is ``log((softmax(y(x)) + softmax(y(x mirrored))) / 2)``, in the loss as in the prediction. Layers of batch
    normalisation use statistics between the source's and the batch's. With ``structure``, offline, predictions
    in the end take into account where the target's classes lie in ``W_t``, the more the more of them adaptation
    changed, and ``level`` of the way to equal parts. With ``test_balance`` there is no balance, neither in the loss nor
    in these, where the first predictions refute it.
    docs/study.md says what each departure from the paper bought.
    """

    title = "CATTAn+"
    config_node = "CATTAN_PLUS"
    needs_source_subspace = False
    default_lr = 1e-3
    default_statistics = "blend"
    residual = True

    def __init__(
        self,
        model: nn.Module,
        *,
        d: int = 0,
        lambda_lr: float = 0.025,
        lambda_cb: float = 3.0,
        lambda_align: float = 1.0,
        confidence: str = "hlr",
        kappa: float = 0.9,
        phi_lr: float = 0.3,
        decay: float = 1.0,
        structure: bool = True,
        shrinkage: float = 0.3,
        doubt: float = 10.0,
        calm: float = 0.05,
        level: float = 0.5,
        test_balance: bool = True,
        transform: bool = True,
        width: int = 16,
        depth: int = 2,
        mirror: bool = False,
        classifier: str = "",
        num_classes: int | None = None,
        **options: Any,
    ) -> None:
        self._shape = {"channels": image_channels(model), "width": width, "depth": depth} if transform else None
        self.mirror, self.views = mirror, 2 if mirror else 1
        self.structure, self.doubt, self.calm = structure, doubt, calm
        self.test_balance = test_balance
        self.shrinkage = checked_fraction("shrinkage", shrinkage)
        self.level = checked_fraction("level", level)
        super().__init__(
            model,
            d=d,
            lambda_lr=lambda_lr,
            lambda_cb=lambda_cb,
            lambda_align=lambda_align,
            align_reduction="mean",
            class_balance="running",
            kappa=kappa,
            confidence=confidence,
            phi_lr=phi_lr,
            decay=decay,
            classifier=classifier,
            num_classes=num_classes,
            **options,
        )

    @classmethod
    def options_from_cfg(
        cls, cfg: CfgNode, num_classes: int | None, source_subspace: Subspace | None
    ) -> dict[str, Any]:
        keys = {key.lower(): value for key, value in cfg[cls.config_node].items()}
        return {**keys, "classifier": cfg.MODEL.CLASSIFIER, "num_classes": num_classes}

    def configure_model(self, model: nn.Module) -> nn.Module:
        """Put the input transformation, the identity at first, before the configured model."""
        model = super().configure_model(model)
        self.classes = TargetClasses()
        self.d = self.d or min(DIRECTIONS, model.get_submodule(self.classifier).in_features)
        if self._shape is None:
            return model
        self.classifier = f"model.{self.classifier}".rstrip(".")
        return TransformedModel.of(model, **self._shape)

    def affine_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return what adapts before the head: the affines and the input transformation."""
        return super().affine_params() if self._shape is None else transformed_parameters(self.model)

    def _meet_target(self) -> None:
        """Begin with a target of which nothing was predicted yet."""
        self.first = FirstPredictions()
        self.changed: float | None = None  # the part of the first predictions that is another in the end

    def forget(self) -> None:
        """Drop the target subspace, the first and the running predictions and the target's classes."""
        super().forget()
        self._meet_target()
        self.classes.clear()

    def state_loaded(self) -> None:
        """Follow ``load_state_dict``: what was predicted before belongs to another state.

        Note: a state from another device has left its classes there.
        """
        self._meet_target()
        self.classes.to(self.head.weight.device)
        super().state_loaded()

    def start_again(self) -> None:
        """Go back to where adaptation began; what ``prepare`` saw of the target stays known."""
        first = self.first
        super().start_again()
        if self.prepared is not None:
            self.first = first

    def prepare(self, batches: Batches) -> None:
        """Fit ``W_t`` to the features of all batches, whose predictions are the first of this target."""
        self._meet_target()
        super().prepare(batches)

    def seen_first(self, logits: Tensor, indices: Tensor) -> None:
        """Remember what the network says of a batch before it has learnt anything."""
        self.first.add(logits, indices)

    def balance_loss(self, logits: Tensor) -> Tensor:
        """``KL(m || uniform)`` of the running mean prediction, or 0 where the classes are not balanced."""
        if self.prepared is None and self.new_batch:
            self.first.add(logits)
        return super().balance_loss(logits) * self.believes_balance()

    def believes_balance(self) -> Tensor | bool:
        """Return whether the target's classes are taken for balanced; with ``lambda_cb`` 0 they never are."""
        if not self.lambda_cb:
            return False
        return self.first.balanced() if self.test_balance else True

    @torch.no_grad()
    def finish(self, batches: Batches) -> None:
        """Find the target's classes in ``W_t``, from the adapted features and predictions of all batches.

        Note: kept per sample are its d coordinates and its logits; a sample that is not finite has no say.
        """
        if not self.structure:
            return
        self.classes.clear()
        found, places = [], []
        for indices, x in batches:
            logits, features = self.logits_and_features(x, adapting=False)
            coordinates = self._mean_of_views(features.float()) @ self.head.target_basis
            rows = torch.cat([coordinates, logits], 1)
            finite = rows.isfinite().all(1)
            found.append(rows[finite])
            places.append(indices.cpu()[finite.cpu()])
        rows = torch.cat(found) if found else torch.empty(0)
        if not len(rows):
            return
        basis = self.head.target_basis
        coordinates, logits = rows.tensor_split([basis.shape[1]], 1)
        self.changed = self.first.changed(logits, torch.cat(places))
        known = sample_weight(len(logits), logits.shape[1], self.doubt)
        rho = known * change_weight(self.changed, self.calm)
        level = rho * self.level if self.believes_balance() else 0.0
        self.classes.set(basis, *fit_class_structure(coordinates, logits, rho, self.shrinkage, level))

    def describe(self) -> dict[str, Any]:
        """Add whether the classes are taken for balanced, and what part of the predictions changed."""
        facts = {**super().describe(), "balanced": bool(self.believes_balance())}
        return facts if self.changed is None else {**facts, "changed": self.changed}

    def _mean_of_views(self, features: Tensor) -> Tensor:
        return features.unflatten(0, (self.views, -1)).mean(0)

    def logits_and_features(self, x: Tensor, adapting: bool) -> tuple[Tensor, Tensor]:
        """Return the logits, those of the mean prediction with ``mirror``, and what entered the classifier."""
        if not self.mirror:
            return super().logits_and_features(x, adapting)
        logits, features = super().logits_and_features(with_mirror_images(x), adapting)
        return mean_prediction(logits), features

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of a batch by the network and, once ``finish`` found them, the classes; update nothing."""
        logits, features = self.logits_and_features(x, adapting=False)
        return self.classes(logits, self._mean_of_views(features)) if self.head.enabled else logits

    def predict_bypassed(self, x: Tensor) -> Tensor:
        """Return the logits of a batch without alignment and transformation; the adapted normalisation stays."""
        if self._shape is None:
            return super().predict_bypassed(x)
        with self.model.bypassed():
            return super().predict_bypassed(x)

    def fold(self) -> nn.Module:
        """Return a plain copy of the source architecture; with the transformation or the mirror there is none."""
        if self._shape is not None or self.mirror:
            raise UserError(
                "CATTAn+ has an input transformation or a mirror image that no source architecture has: it cannot be "
                "folded. Set CATTAN_PLUS.TRANSFORM False and CATTAN_PLUS.MIRROR False (transform=False, mirror=False) "
                "for a model that can"
            )
        plain = super().fold()
        return replace_module(plain, self.classifier, self.classes.fold_into(plain.get_submodule(self.classifier)))
