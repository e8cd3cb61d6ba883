"""What every adaptation method shares: optimiser, reset, statistics, mixed precision, folding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tta_cattan.methods.arguments import (
    built_optimizer,
    checked_batch,
    checked_fraction,
    checked_scale,
    checked_steps,
)
from tta_cattan.methods.last_batch import LastBatch
from tta_cattan.methods.optim import OptimizerFactory, adam, optimizer_from_cfg
from tta_cattan.methods.safety import Safety, all_finite
from tta_cattan.methods.update import backward, update
from tta_cattan.network.blended_statistics import blending
from tta_cattan.network.normalization import (
    STATISTICS,
    affine_parameters,
    require_affine,
    require_module,
    statistics_layers,
    use_statistics,
)
from tta_cattan.network.plain import plain_copy
from tta_cattan.util.errors import chosen
from tta_cattan.util.precision import Precision
from tta_cattan.util.registry import Registry

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from tta_cattan.alignment import Subspace

# Unlabelled target data as a method sees it: (indices, inputs), again and again in the same order.
Batches = Iterable[tuple[Tensor, Tensor]]


class AdaptationMethod(nn.Module):
    """A model that adapts to the unlabelled data it predicts.

    Note: like TENT, it takes the model over: pass a copy to keep the original.
    """

    title = ""  # as papers write its name; empty: the registered name
    adapts = True  # whether forward updates anything; False needs no normalisation layers
    needs_images = False
    needs_source_subspace = False
    d = 0  # directions of the target subspace that `prepare` fits; 0: there is none, or it is chosen then
    default_lr = 1e-3  # of Adam, where no optimiser is given: TENT's
    default_statistics = "batch"  # TENT's
    views = 1  # rows of the model's input per sample
    config_node: str | None = None  # the node of the config that only this method reads

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: OptimizerFactory | None = None,
        steps: int = 1,
        episodic: bool = False,
        statistics: str = "auto",
        momentum: float | None = None,
        blend: float = 0.05,
        mixed_precision: bool = False,
        safety: Safety | None = None,
    ) -> None:
        """Configure ``model``; ``optimizer`` maps parameters to any torch optimiser (default: Adam).

        ``statistics="auto"`` is the method's own choice; ``momentum`` is of ``"running"``, ``blend`` of ``"blend"``.
        """
        super().__init__()
        self.steps = checked_steps(steps)
        self.episodic = episodic
        statistics = self.default_statistics if statistics == "auto" else statistics
        self.statistics = chosen("statistics", statistics, STATISTICS)
        self.blend = checked_scale("blend", blend)
        self.make_optimizer = optimizer or adam(self.default_lr)
        self.new_batch = True  # False at the second and later updates on one batch, which counts once
        self.last_batch = LastBatch()
        self.precision = Precision(mixed_precision)
        self.safety = safety or Safety()
        self.model = self.configure_model(model)
        self.statistics_layers = statistics_layers(self.model)
        if statistics == "running" and momentum is not None:
            for layer in self.statistics_layers:
                layer.momentum = checked_fraction("momentum", momentum)
        self._source_state = self._adapted_state()
        self.optimizer: torch.optim.Optimizer | None = None
        self.restart_optimizer()
        # A function of the module, not a bound method or closure: copies and pickles call their own.
        self.register_load_state_dict_post_hook(_state_loaded)

    @classmethod
    def from_cfg(
        cls,
        model: nn.Module,
        cfg: CfgNode,
        num_classes: int | None = None,
        source_subspace: Subspace | None = None,
    ) -> AdaptationMethod:
        """Build the method from a config; what is not this method's concern is ignored."""
        return cls(
            model,
            optimizer=optimizer_from_cfg(cfg),
            steps=cfg.OPTIM.STEPS,
            episodic=cfg.MODEL.EPISODIC,
            statistics=cfg.BN.STATISTICS,
            momentum=cfg.BN.MOM,
            blend=cfg.BN.BLEND,
            mixed_precision=cfg.MIXED_PRECISION,
            safety=Safety(cfg.SAFETY.ON_COLLAPSE, cfg.SAFETY.ON_DIVERGENCE, cfg.SAFETY.WINDOW),
            **cls.options_from_cfg(cfg, num_classes, source_subspace),
        )

    @classmethod
    def options_from_cfg(
        cls, cfg: CfgNode, num_classes: int | None, source_subspace: Subspace | None
    ) -> dict[str, Any]:
        """Return the keyword arguments that only this method has."""
        return {}

    def configure_model(self, model: nn.Module) -> nn.Module:
        """Freeze the model and free the scale and shift of its normalisation layers."""
        require_module(model)
        # Evaluation mode: dropout and stochastic depth would make predictions random; statistics are set apart.
        model.eval()
        model.requires_grad_(False)
        if self.adapts:
            require_affine(model, type(self).__name__)
            for param in affine_parameters(model)[0]:
                param.requires_grad_(True)
        return model

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return the parameters that are updated, and their names."""
        return affine_parameters(self.model) if self.adapts else ([], [])

    def restart_optimizer(self) -> None:
        """Begin anew with an optimiser that remembers nothing."""
        params, _ = self.collect_params()
        self.optimizer = built_optimizer(self.make_optimizer, params) if params else None
        self.precision.restart()

    def prepare(self, batches: Batches) -> None:
        """Learn from the whole target set before the first epoch (offline protocol)."""

    def start_epoch(self, batches: Batches) -> None:
        """Learn from the whole target set before an epoch (offline protocol)."""

    def finish(self, batches: Batches) -> None:
        """Learn from the whole target set after the last epoch (offline protocol)."""

    def forward(self, x: Tensor, indices: Tensor | None = None) -> Tensor:
        """Infer and adapt; the logits are those from before the last update."""
        checked_batch(x)
        if self.episodic:
            self.reset()
        self.begin_batch()
        for _ in range(self.steps):
            logits = self.forward_and_adapt(x, indices)
        return logits

    @torch.enable_grad()  # hosts call their models under no_grad
    def forward_and_adapt(self, x: Tensor, indices: Tensor | None = None) -> Tensor:
        """Update once on a batch and return its logits from before the update.

        Note: ``indices`` are the samples' places in the target set, for methods that keep something per sample.
        """
        if self.optimizer is None:
            return self.predict(x)
        self.new_batch = self.last_batch.differs_from(x)
        # In mode "running" the pass moves the statistics before the loss shows whether it should have.
        layers = self.statistics_layers if self.statistics == "running" else []
        moved = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
        logits, loss = self.loss_calculation(x, indices)
        value = loss.item()
        fault = backward(loss, value, [buffer for buffer, _ in moved], self.optimizer, self.precision)
        if fault:
            for buffer, before in moved:
                buffer.copy_(before)
            restart = self.safety.skip(fault, x)
        else:
            lost = not update(self.optimizer, self.precision)
            restart = self.safety.lost() if lost else self.safety.watch(logits, value)
        self.optimizer.zero_grad()
        if restart:
            self.safety.resets += 1
            self.start_again()
        return logits.detach()

    def begin_batch(self) -> None:
        """Say that what comes next is another batch, even if it is the same tensor again."""
        self.last_batch.forget()

    def loss_calculation(self, x: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the logits of a batch and the loss to be minimised on it."""
        logits = self.infer(x, adapting=True)
        return logits, self.guarded_loss(logits)

    def guarded_loss(self, logits: Tensor) -> Tensor:
        """Return the loss, or NaN where the logits are not finite.

        Note: binary cross-entropy raises on NaN, and on a GPU it ends the process.
        """
        return self.loss(logits) if all_finite(logits.detach()) else torch.full_like(logits[0, 0], float("nan"))

    def loss(self, logits: Tensor) -> Tensor:
        """Return the loss of a batch of logits."""
        raise NotImplementedError(f"{type(self).__name__} updates parameters but has no loss")

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of a batch and update nothing."""
        return self.infer(x, adapting=False)

    def infer(self, x: Tensor, adapting: bool) -> Tensor:
        """Run the model under the method's statistics and precision; the logits are float32.

        Note: one sample is no basis for statistics. It does not move running ones and is not blended in, and where a
        BatchNorm layer has no spatial extent to take them from, the whole pass uses the source's.
        """
        self.model.eval()  # a host may have called train() on something inside
        single = len(x) == self.views
        adapting = adapting and not (single and self.statistics == "running")
        use_statistics(self.statistics_layers, self.statistics, adapting)
        blended = self.statistics_layers if self.statistics == "blend" and not single else []
        with self.precision.autocast(x.device), blending(blended, self.blend, self.views):
            try:
                logits = self.model(x)
            except ValueError as error:
                if not single or "more than 1 value per channel" not in str(error):
                    raise
                use_statistics(self.statistics_layers, "source", adapting)
                logits = self.model(x)
        return logits.float()

    def reset(self) -> None:
        """Restore the source state, bit for bit, the optimiser's included."""
        state = self.model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, value in self._source_state.items():
                state[name].copy_(value)
        self.begin_batch()
        self.forget()
        self.safety.restart()
        self.restart_optimizer()

    def start_again(self) -> None:
        """Go back to where adaptation began, with what was learnt from the whole target set beforehand."""
        self.reset()

    def forget(self) -> None:
        """Drop what the method itself has learnt from the target data."""

    def state_loaded(self) -> None:
        """Follow ``load_state_dict``: the optimiser's moments belong to the state that was there before."""
        self.restart_optimizer()

    def describe(self) -> dict[str, Any]:
        """Return facts about the adapted state that belong to a result."""
        return dict(self.safety.describe())

    def fold(self) -> nn.Module:
        """Return a plain copy of the adapted model that does not need this package.

        Note: with ``statistics="batch"`` the copy normalises by the batch it is given, as the method does.
        """
        return plain_copy(self.model, self.statistics)

    def train(self, mode: bool = True) -> AdaptationMethod:
        """Set the mode of the wrapper only: the model's modes belong to the method."""
        self.training = mode
        return self

    def _adapted_state(self) -> dict[str, Tensor]:
        """Copy what adaptation can change: the free parameters and the buffers of the normalisation layers."""
        moving = {id(p) for p in self.model.parameters() if p.requires_grad}
        moving |= {id(b) for layer in self.statistics_layers for b in layer.buffers()}
        state = self.model.state_dict(keep_vars=True)
        return {name: value.detach().clone() for name, value in state.items() if id(value) in moving}


def _state_loaded(method: AdaptationMethod, incompatible_keys: Any) -> None:
    method.state_loaded()


ADAPTATION_REGISTRY: Registry[type[AdaptationMethod]] = Registry("adaptation method")
