"""CATTAn+: the alignment as a correction of the source classifier, from the checkpoint alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tta_cattan.errors import UserError
from tta_cattan.methods.base import ADAPTATION_REGISTRY
from tta_cattan.methods.cattan import CATTAn
from tta_cattan.methods.mirror import mean_prediction, with_mirror_images
from tta_cattan.methods.running_balance import RunningBalance
from tta_cattan.models.input_transform import TransformedModel, image_channels, transformed_parameters

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from tta_cattan.subspace import Subspace

DIRECTIONS = 64  # of the target subspace, where d is left open


@ADAPTATION_REGISTRY.register("cattan_plus")
class CATTAnPlus(CATTAn):
    """CATTAn with ``W_s`` the row space of the classifier, a residual path, and both ends of the network free.

    ``y = h(z) + (z W_t) (Phi - Phi*) (W_s^T H^T)`` starts as the source classifier and loses nothing of ``z``;
    ``L = lambda_lr L_lr + lambda_align mean((W_t Phi - W_s)^2) + lambda_cb KL(m || uniform)`` with the running mean
    prediction ``m``, over the norm affines, ``Phi`` and, with ``transform``, IP's input transformation. With ``mirror``
    ``y`` is ``log((softmax(y(x)) + softmax(y(x mirrored))) / 2)``, in the loss as in the prediction. Layers of batch
    normalisation use statistics between the source's and the batch's.
    docs/study.md says what each departure from the paper bought.
    """

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
        transform: bool = True,
        width: int = 16,
        depth: int = 2,
        mirror: bool = False,
        classifier: str = "",
        num_classes: int | None = None,
        **options: Any,
    ) -> None:
        self._shape = {"channels": image_channels(model), "width": width, "depth": depth} if transform else None
        self.balance = RunningBalance(kappa)
        self.mirror, self.views = mirror, 2 if mirror else 1
        super().__init__(
            model,
            d=d,
            lambda_lr=lambda_lr,
            lambda_cb=lambda_cb,
            lambda_align=lambda_align,
            align_reduction="mean",
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
        self.d = self.d or min(DIRECTIONS, model.get_submodule(self.classifier).in_features)
        if self._shape is None:
            return model
        self.classifier = f"model.{self.classifier}".rstrip(".")
        return TransformedModel.of(model, **self._shape)

    def affine_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return what adapts before the head: the affines and the input transformation."""
        return super().affine_params() if self._shape is None else transformed_parameters(self.model)

    def forget(self) -> None:
        """Drop the target subspace and the running mean prediction."""
        super().forget()
        self.balance.forget()

    def balance_loss(self, logits: Tensor) -> Tensor:
        """``KL(m || uniform)`` of the running mean prediction."""
        return self.balance(logits, self.new_batch)

    def logits_and_features(self, x: Tensor, adapting: bool) -> tuple[Tensor, Tensor]:
        """Return the logits, those of the mean prediction with ``mirror``, and what entered the classifier."""
        if not self.mirror:
            return super().logits_and_features(x, adapting)
        logits, features = super().logits_and_features(with_mirror_images(x), adapting)
        return mean_prediction(logits), features

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of a batch, those of the mean prediction with ``mirror``, and update nothing."""
        return self.logits_and_features(x, adapting=False)[0]

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
        return super().fold()
