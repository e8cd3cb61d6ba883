"""CATTAn+: the alignment as a correction of the source classifier, from the checkpoint alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tta_cattan.alignment import FeatureMoments, TargetClasses, change_weight, fit_class_structure, sample_weight
from tta_cattan.methods.balance import FirstPredictions, RunningBalance
from tta_cattan.methods.base import ADAPTATION_REGISTRY, Batches
from tta_cattan.methods.cattan import CATTAn, CATTAnTarget, Prepared
from tta_cattan.network.input_transform import TransformedModel, image_channels, transformed_parameters
from tta_cattan.network.layers import replace_module
from tta_cattan.network.mirror import mean_prediction, with_mirror_images
from tta_cattan.util.keys import at_least, key, within
from tta_cattan.util.state import stateful

DIRECTIONS = 64  # of the target subspace, where d is left open


@stateful
@dataclass
class CATTAnPlusTarget(CATTAnTarget):
    """Also what the network first said of the target, and which fraction of that has changed in the end."""

    first: FirstPredictions = field(default_factory=FirstPredictions)
    changed: float | None = None


@ADAPTATION_REGISTRY.register("cattan_plus")
class CATTAnPlus(CATTAn):
    """CATTAn with ``W_s`` the row space of the classifier, a residual path, and both ends of the network free.

    ``y = h(z) + (z W_t) (Phi - Phi*) (W_s^T H^T)`` starts as the source classifier and loses nothing of ``z``;
    ``L = lambda_lr L_lr + lambda_align mean((W_t Phi - W_s)^2) + lambda_cb KL(m || uniform)`` with the running mean
    prediction ``m``, over the norm affines, ``Phi`` and, with ``transform``, IP's input transformation. With ``mirror``
    ``y`` is ``log((softmax(y(x)) + softmax(y(x mirrored))) / 2)``, in the loss as in the prediction. Layers of batch
    normalisation use statistics between the source's and the batch's. With ``classes``, offline, the final predictions
    take into account where the target's classes lie in ``W_t``, weighted by the share of predictions that adaptation
    changed, with class priors pulled towards uniform. With ``balance_guard`` neither the loss nor the priors assume
    balanced classes where the first predictions contradict them. docs/study.md says what each departure bought.
    """

    title = "CATTAn+"
    node = "CATTAN_PLUS"
    lr = 1e-3
    statistics = "blend"
    lambda_cb = 3.0
    source_basis = "classifier"
    align_reduction = "mean"
    class_balance = "running"
    phi_lr = 0.3
    residual = True
    watches_first = True

    balance_guard: bool = key(True, "drop the class balance where the first predictions contradict balanced classes")
    transform: bool = key(True, "adapt IP's input transformation too; False for features and point clouds")
    width: int = key(16, "channels of the input transformation", within(1, 1024))
    depth: int = key(2, "convolutions of the input transformation", within(1, 64))
    mirror: bool = key(
        False, "adapt and predict by the mean over an image and its mirror image; not for digits or text"
    )
    classes: bool = key(True, "offline: one pass after the last epoch finds the target's classes in its subspace")
    class_shrinkage: float = key(0.3, "share of the classes' covariance that is isotropic", within(0, 1))
    class_prior_count: float = key(10.0, "samples per class at which the classes count half", at_least(0))
    class_uniformity: float = key(0.5, "how strongly the class priors are pulled towards uniform", within(0, 1))
    class_change: float = key(
        0.05, "fraction of predictions changed by adaptation at which the classes count half; 0 = in full", at_least(0)
    )

    target: CATTAnPlusTarget

    def inspect(self, model: nn.Module) -> None:
        """Find the channels of the images, and settle d where it is open."""
        self._channels = image_channels(model) if self.transform else 0
        super().inspect(model)
        self._d_is_open = not self.d
        self.d = self.d or min(DIRECTIONS, self._new.in_features)

    def fitted_d(self, moments: FeatureMoments) -> int:
        """Return the number of directions to fit: fewer than asked for where d was left open and samples are few."""
        most = moments.sample_count() - (self.centering != "none")
        return min(self.d, most) if self._d_is_open and most >= 1 else self.d

    def configure_model(self, model: nn.Module) -> nn.Module:
        """Put the input transformation, the identity at first, before the configured model."""
        model = super().configure_model(model)
        self.target_classes = TargetClasses()
        if not self.transform:
            return model
        self.aligned_name = self._inner_name(self.aligned_name)
        return TransformedModel.of(model, self._channels, self.width, self.depth)

    def affine_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return what adapts beside ``Phi``: the affines and the input transformation."""
        return transformed_parameters(self.model) if self.transform else super().affine_params()

    def begin_target(self, known: Prepared | None = None) -> None:
        """Drop the target's classes too."""
        self.target_classes.clear()
        super().begin_target(known)

    def new_target(self, known: Prepared | None) -> CATTAnPlusTarget:
        """Return a target with the first predictions that ``prepare`` saw, or none."""
        first = FirstPredictions() if known is None else known.first
        return CATTAnPlusTarget(known, balance=RunningBalance(self.kappa), first=first)

    def state_loaded(self) -> None:
        """Follow ``load_state_dict``; a state from another device has left its classes there."""
        self.target_classes.to(self.aligned.like.device)
        super().state_loaded()

    def balance_loss(self, logits: Tensor) -> Tensor:
        """``KL(m || uniform)`` of the running mean prediction, or 0 where the classes are not balanced."""
        if self.target.known is None and self.new_batch:
            self.target.first.add(logits)
        return super().balance_loss(logits) * self.assumes_balance()

    def assumes_balance(self) -> Tensor | bool:
        """Return whether the target's classes are taken to be balanced; with ``lambda_cb`` 0 they never are."""
        if not self.lambda_cb:
            return False
        return self.target.first.balanced() if self.balance_guard else True

    @torch.no_grad()
    def finish(self, batches: Batches) -> None:
        """Find the target's classes in ``W_t``, from the adapted features and predictions of all batches.

        Note: kept per sample are its d coordinates and its logits; a sample that is not finite has no say.
        """
        if not self.classes:
            return
        self.target_classes.clear()
        basis = self.aligned.target_basis
        found, places = [], []
        for indices, x in batches:
            logits, features = self.logits_and_features(x, adapting=False)
            coordinates = self._per_sample(features.to(basis), len(logits)) @ basis
            rows = torch.cat([coordinates, logits.to(coordinates)], 1)
            finite = rows.isfinite().all(1)
            found.append(rows[finite])
            if indices is not None:
                places.append(indices.cpu()[finite.cpu()])
        rows = torch.cat(found) if found else torch.empty(0)
        if not len(rows):
            return
        coordinates, logits = rows.tensor_split([basis.shape[1]], 1)
        self.target.changed = self.target.first.changed(logits, torch.cat(places)) if places else 1.0
        known = sample_weight(len(logits), logits.shape[1], self.class_prior_count)
        rho = known * change_weight(self.target.changed, self.class_change)
        level = rho * self.class_uniformity if self.assumes_balance() else 0.0
        self.target_classes.set(basis, *fit_class_structure(coordinates, logits, rho, self.class_shrinkage, level))

    def describe(self) -> dict[str, Any]:
        """Add whether the classes are taken to be balanced, and what fraction of the predictions changed."""
        facts = {**super().describe(), "balanced": bool(self.assumes_balance())}
        return facts if self.target.changed is None else {**facts, "changed": self.target.changed}

    @property
    def views(self) -> int:
        """An image and, with ``mirror``, its mirror image."""
        return 2 if self.mirror else 1

    def _per_sample(self, rows: Tensor, n: int) -> Tensor:
        """Return the mean of each sample's rows, over its views and, of feature maps, over the positions."""
        return rows.unflatten(0, (self.views, n, -1)).mean((0, 2))

    def logits_and_features(self, x: Tensor, adapting: bool) -> tuple[Tensor, Tensor]:
        """Return the logits, those of the mean prediction with ``mirror``, and the features that are aligned."""
        if not self.mirror:
            return super().logits_and_features(x, adapting)
        logits, features = super().logits_and_features(with_mirror_images(x), adapting)
        return mean_prediction(logits), features

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of a batch by the network and, once ``finish`` found them, the classes; update nothing."""
        logits, features = self.logits_and_features(x, adapting=False)
        if not self.aligned.enabled or not self.target_classes.found:
            return logits
        return self.target_classes(logits, self._per_sample(features, len(logits)))

    def predict_bypassed(self, x: Tensor) -> Tensor:
        """Return the logits of a batch without alignment and transformation; the adapted normalisation stays."""
        if not self.transform:
            return super().predict_bypassed(x)
        with self.model.bypassed():
            return super().predict_bypassed(x)

    @property
    def unfoldable(self) -> str:
        """The input transformation, the mirror image, or classes that no linear layer can hold."""
        if self.transform or self.mirror:
            return (
                "an input transformation or a mirror image is in no source architecture; set CATTAN_PLUS.TRANSFORM False "
                "and CATTAN_PLUS.MIRROR False (transform=False, mirror=False)"
            )
        if self.classes and self.layer:
            return (
                f"the classes found at layer {self.layer!r} fit into no linear layer; set CATTAN_PLUS.CLASSES False "
                "(classes=False), or align at the input of the classifier"
            )
        if self.classes and not self._bias_behind():
            return "the classes need a bias in the classifier; set CATTAN_PLUS.CLASSES False (classes=False)"
        return super().unfoldable

    def fold(self) -> nn.Module:
        """Return a plain copy of the source architecture, the target's classes in its classifier."""
        plain = super().fold()
        if not self.target_classes.found:
            return plain
        classifier = plain.get_submodule(self.aligned_name)
        return replace_module(plain, self.aligned_name, self.target_classes.fold_into(classifier))

    def _inner_name(self, name: str) -> str:
        return f"model.{name}".rstrip(".") if self.transform else name
