"""The base class of all adaptation methods: predict, update and reset; then fold and save."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from tta_cattan.alignment import TargetSamples
from tta_cattan.losses import CLASS_BALANCE
from tta_cattan.methods.guard import Guarded, Lock
from tta_cattan.methods.safety import REACTIONS, Safety, all_finite, in_range
from tta_cattan.methods.streams import DEFAULT, Streams
from tta_cattan.methods.target import Target
from tta_cattan.network.inputs import mean_prediction, with_mirror_images
from tta_cattan.network.layers import (
    Call,
    effective_linear,
    find_classifier,
    only_call,
    replace_module,
    require_logits,
    watched,
)
from tta_cattan.network.normalization import (
    STATISTICS,
    Notes,
    affine_parameters,
    blending,
    noting,
    statistics_layers,
    use_statistics,
)
from tta_cattan.network.ownership import mark_wrapped, plain_copy, require_adaptable, require_plain
from tta_cattan.util.batches import refusing_one_image, require_batch
from tta_cattan.util.errors import UserError
from tta_cattan.util.keys import Keyed, above, at_least, key, one_of, within
from tta_cattan.util.registry import Registry
from tta_cattan.util.state import pack, unpack

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from tta_cattan.alignment import SourceMoments, Subspace

# Unlabelled target data as a method sees it: (indices or None, inputs), iterable more than once. Callers may also pass
# batches of images or (images, labels).
Batches = Iterable[tuple[Tensor | None, Tensor]]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS = ("Adam", "AdamW", "SGD")
_HAS_FUSED_ADAM = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)


class AdaptationMethod(Guarded, Keyed, nn.Module):
    """A model that adapts to the unlabelled data it predicts.

    A method is one class: a ``title``, keys (declared once, for the constructor and for configs) and the operations it
    overrides.

    Note: like TENT, it modifies the model in place: pass a copy to keep the original.
    """

    title: ClassVar[str] = ""  # display name, as in papers; empty: the registered name
    adapts: bool = True  # whether forward updates parameters; if not, no normalisation layers are needed
    needs_images: ClassVar[bool] = False
    target_type: ClassVar[type[Target]] = Target  # the state it keeps per target
    source_argument: ClassVar[str] = ""  # constructor argument for the source statistics; empty: none
    resumable: ClassVar[bool] = True  # whether state_dict is enough to resume an unfinished stream

    steps: int = key(1, "updates per batch", at_least(1), origin="TENT", at="OPTIM.STEPS")
    lr: float = key(1e-3, "learning rate", at_least(0), origin="TENT", at="OPTIM.LR")
    optimizer_name: str = key("Adam", "optimiser", one_of(*OPTIMIZERS), origin="TENT; AdamW is ours", at="OPTIM.METHOD")
    beta: float = key(0.9, "first beta of Adam and AdamW", within(0, 1, "[)"), origin="TENT", at="OPTIM.BETA")
    sgd_momentum: float = key(0.9, "momentum of SGD", at_least(0), origin="TENT", at="OPTIM.MOMENTUM")
    dampening: float = key(0.0, "dampening of SGD's momentum", at_least(0), origin="TENT", at="OPTIM.DAMPENING")
    nesterov: bool = key(True, "Nesterov momentum in SGD", origin="TENT", at="OPTIM.NESTEROV")
    weight_decay: float = key(
        0.0, "weight decay; the authors' code has 5e-4", at_least(0), origin="TENT", at="OPTIM.WD"
    )
    episodic: bool = key(False, "reset the model before each batch", origin="TENT", at="MODEL.EPISODIC")
    classifier: str = key("", "dotted name of the final linear layer; '' = found", at="MODEL.CLASSIFIER")
    statistics: str = key(
        "batch",
        "statistics of batch normalisation: 'batch' = of the current batch (TENT); 'source' = the source model's; "
        "'running' = of the batch while adapting, which moves the running ones, and the running ones when predicting "
        "(authors' code); 'blend' = between source and batch, nearer to the batch the further it is from the source",
        one_of(*STATISTICS),
        at="BN.STATISTICS",
    )
    statistics_momentum: float = key(
        0.1, "momentum of the running statistics in mode 'running'", within(0, 1), origin="TENT", at="BN.MOM"
    )
    blend_scale: float = key(
        0.05, "divergence from the source at which 'blend' is halfway", above(0), at="BN.BLEND_SCALE"
    )
    mirror: bool = key(
        False, "adapt and predict by the mean over an image and its mirror image; not for digits or text", at="MIRROR"
    )
    classes: bool = key(
        False, "offline: after the last epoch find the target's classes, and predict by them too", at="CLASSES.USE"
    )
    class_change: float = key(
        0.05,
        "share of the source model's predictions that have changed at which the target's classes, and the updates of "
        "CATTAn+, count half; 0 = in full",
        at_least(0),
        at="CLASSES.CHANGE",
    )
    mixed_precision: bool = key(False, "run the network in bfloat16 where that is exact enough", at="MIXED_PRECISION")
    on_collapse: str = key(
        "reset",
        "reaction to overturned predictions that the fresh method is sure of",
        one_of(*REACTIONS),
        at="SAFETY.ON_COLLAPSE",
    )
    on_divergence: str = key(
        "reset", "reaction to a loss that stays far above its level", one_of(*REACTIONS), at="SAFETY.ON_DIVERGENCE"
    )

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: OptimizerFactory | str | None = None,
        num_classes: int | None = None,
        source_subspace: Subspace | SourceMoments | None = None,
        **options: Any,
    ) -> None:
        """Wrap ``model``; the options are the class's keys, checked as in a config.

        ``optimizer`` is a name, or a function from parameters to any torch optimiser (default: Adam); ``num_classes``
        helps to find the classifier of a model with several linear layers; ``source_subspace`` is for methods that
        align. Invalid arguments are rejected before ``model`` is changed.
        """
        super().__init__()
        self.lock = Lock()
        if isinstance(optimizer, str):
            options["optimizer_name"], optimizer = optimizer, None
        self.set_options(options)
        self.make_optimizer = optimizer
        self.num_classes = num_classes
        if source_subspace is not None and not self.source_argument:
            name = self.title or type(self).__name__
            raise UserError(f"{name} uses no source data: leave source_subspace out")
        self.source_subspace: Any = source_subspace  # the method checks its type
        self.safety = Safety(self.on_collapse, self.on_divergence)
        self.target, self.streams = self.target_type(), Streams()
        self.new_batch = True  # False at repeated updates on one batch, which counts only once
        self._loaded: dict[str, Any] | None = None
        self._notes: Notes | None = None  # statistics that normalised the current batch, while adapting
        self._pauses = 0
        self.optimizer: torch.optim.Optimizer | None = None
        self.inspect(model)
        self.new_optimizer([nn.Parameter(torch.zeros(1))])
        self.model = self.configure_model(model)
        self.statistics_layers = statistics_layers(self.model)
        if self.statistics == "running":
            for layer in self.statistics_layers:
                layer.momentum = self.statistics_momentum
        self._source_state = self._adapted_state()
        self.begin_target()
        # A module-level function, not a bound method or closure, so that a copied or unpickled method calls its own.
        self.register_load_state_dict_post_hook(_state_loaded)
        mark_wrapped(model, type(self).__name__)

    def inspect(self, model: nn.Module) -> None:
        """Find what the method needs in ``model`` and reject a model that lacks it, without changing it."""
        require_plain(model)
        if self.adapts:
            require_adaptable(model, type(self).__name__)
        if self.classes:
            try:
                self.classifier = find_classifier(model, self.classifier, self.num_classes)
            except UserError as error:
                raise UserError(f"classes=False (CLASSES.USE False) needs no linear classifier. {error}") from None

    def configure_model(self, model: nn.Module) -> nn.Module:
        """Freeze the model, except for the scale and shift of its normalisation layers."""
        # Evaluation mode: dropout and stochastic depth would make predictions random; statistics are set separately.
        model.eval()
        model.requires_grad_(False)
        for param in affine_parameters(model)[0] if self.adapts else []:
            param.requires_grad_(True)
        return model

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return the trainable parameters and their names."""
        return affine_parameters(self.model) if self.adapts else ([], [])

    def forward(self, x: Tensor, indices: Tensor | None = None) -> Tensor:
        """Predict a batch and adapt to it; the logits are those from before the last update.

        Note: it also adapts after ``eval()`` and under ``no_grad`` and ``inference_mode``, which host frameworks use,
        but not inside ``paused()``.
        """
        require_batch(x)
        if self._pauses:
            return self.predict(x)
        if self.episodic:
            self.reset(keep_known=True)
        for step in range(self.steps):
            logits = self.forward_and_adapt(x, indices, again=step > 0)
        return logits

    @torch.enable_grad()  # hosts call their models under no_grad
    def forward_and_adapt(self, x: Tensor, indices: Tensor | None = None, again: bool = False) -> Tensor:
        """Update once on a batch and return its logits from before the update.

        ``indices`` are the samples' positions in the target set, for methods with per-sample state; ``again`` marks a
        repeat of the last batch, which counts only once in the target's state.
        """
        if self._pauses:
            return self.predict(x)
        self._notes = {}
        try:
            return self._adapt(x, indices, again)
        finally:
            self._notes = None

    def _adapt(self, x: Tensor, indices: Tensor | None, again: bool) -> Tensor:
        """Update once, unless there is nothing to update, safety is resting, or the update is not finite."""
        self.new_batch = not again
        if self.optimizer is None or self.safety.rests(self.new_batch):
            logits = self.predict(x)
            if all_finite(logits):
                self.target.calibration.add(self._notes, self.statistics_momentum)
            return logits
        x = x.clone() if x.is_inference() else x
        fresh = self._fresh_logits(x) if self.new_batch and self.safety.compares() else None
        # In mode "running" the forward pass moves the statistics before the loss shows whether the update is valid.
        layers = self.statistics_layers if self.statistics == "running" else []
        moved = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
        logits, loss = self.loss_calculation(x, indices)
        value = loss.item()
        fault = self._backward(loss, value, [buffer for buffer, _ in moved])
        if fault:
            for buffer, before in moved:
                buffer.copy_(before)
            restart = self.safety.skip(fault, x)
        else:
            self.optimizer.step()
            self.target.calibration.add(self._notes, self.statistics_momentum)
            in_bounds = in_range(_params(self.optimizer))
            restart = self.safety.watch(value, logits.shape[1]) if in_bounds else self.safety.lost()
            restart = restart or (fresh is not None and self.safety.compare(logits, fresh))
        self.optimizer.zero_grad()
        if restart:
            self.reset(keep_known=True)
            self.safety.rest()
        return logits.detach()

    @torch.no_grad()
    def _fresh_logits(self, x: Tensor) -> Tensor:
        """Return the logits that the method would give after a reset.

        Note: this pass comes before the one that adapts, because a monitor reads the last pass over a batch.
        """
        notes, self._notes = self._notes, None
        with self.at_start():
            logits = self.infer(x, adapting=True)
        self._notes = notes
        return logits

    def loss_calculation(self, x: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the logits of a batch and the loss to minimise."""
        logits = self.infer(x, adapting=True)
        return logits, self.guarded_loss(logits)

    def guarded_loss(self, logits: Tensor) -> Tensor:
        """Return the loss, or NaN if any logit is not finite.

        Note: binary cross-entropy raises on NaN, and on a GPU it kills the process.
        """
        return self.loss(logits) if all_finite(logits.detach()) else torch.full_like(logits[0, 0], float("nan"))

    def loss(self, logits: Tensor) -> Tensor:
        """Return the loss of a batch of logits."""
        raise NotImplementedError(f"{type(self).__name__} updates parameters but has no loss")

    def balance_loss(self, logits: Tensor) -> Tensor:
        """Return ``L_CB`` of a batch or the divergence of the running mean prediction, as ``class_balance`` says."""
        if self.class_balance == "running":
            return self.target.balance(logits, self.new_batch)
        return CLASS_BALANCE[self.class_balance](logits)

    def _backward(self, loss: Tensor, value: float, statistics: list[Tensor]) -> str:
        """Back-propagate; return what is not finite and so rules out an update, or an empty string.

        ``value`` is the loss as a number, ``statistics`` the buffers that the forward pass has updated.
        """
        if not math.isfinite(value):
            return "loss"
        numbers = [buffer for buffer in statistics if buffer.is_floating_point()]
        if numbers and not in_range(numbers):
            return "running statistics"
        loss.backward()
        gradients = [param.grad for param in _params(self.optimizer) if param.grad is not None]
        return "gradient" if gradients and not in_range(gradients) else ""

    def infer(self, x: Tensor, adapting: bool) -> Tensor:
        """Run the model with the method's statistics and precision; half-precision logits are returned as float32.

        Note: one sample is too few for batch statistics. It is neither blended nor added to the running statistics,
        and if a BatchNorm layer has no spatial extent to take statistics from, the whole pass uses the source's.
        """
        if torch.jit.is_tracing():
            raise UserError(
                f"{type(self).__name__} cannot be traced: a trace keeps the first batch's size and updates nothing. "
                "Trace fold(), the adapted network"
            )
        require_batch(x)
        self.model.eval()  # a host may have called train() on a submodule
        single = len(x) == 1
        x = with_mirror_images(x) if self.mirror else x
        adapting = adapting and not (single and self.statistics == "running")
        use_statistics(self.statistics_layers, self.statistics, adapting)
        notes: Notes = {}
        precision = torch.autocast(x.device.type, torch.bfloat16) if self.mixed_precision else nullcontext()
        with refusing_one_image(x), precision:
            try:
                with self._normalizing(single) as notes:
                    logits = self.model(x)
            except (ValueError, RuntimeError) as error:
                if not single or "more than 1 value per channel" not in str(error):
                    raise
                use_statistics(self.statistics_layers, "source", adapting)
                logits = self.model(x)
        if self._notes is not None:
            self._notes = notes
        require_logits(logits, len(x))
        return self.joined(logits)

    def _normalizing(self, single: bool) -> AbstractContextManager[Notes]:
        """Blend the statistics if the method does, and record those of the batch if they will be needed."""
        if self.statistics == "blend" and not single:
            return blending(self.statistics_layers, self.blend_scale, self.views)
        if self.statistics == "batch" and self._notes is not None:
            return noting(self.statistics_layers)
        return nullcontext({})

    @property
    def views(self) -> int:
        """Rows of the model's input per sample: 2 with ``mirror`` (the image and its mirror image), otherwise 1."""
        return 2 if self.mirror else 1

    def mean_of_views(self, rows: Tensor) -> Tensor:
        """Return the mean over each sample's views."""
        return rows.unflatten(0, (self.views, -1)).mean(0) if self.mirror else rows

    def joined(self, logits: Tensor) -> Tensor:
        """Return one row of logits per sample, at least float32; with ``mirror``, those of the mean prediction."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return mean_prediction(logits) if self.mirror else logits

    def logits_and_head_input(self, x: Tensor, adapting: bool) -> tuple[Tensor, Tensor]:
        """Return the logits of a batch and the classifier's input, averaged over the views (n x D)."""
        with watched(self.network.get_submodule(self.classifier)) as calls:
            logits = self.infer(x, adapting)
        joined = [Call(self.mean_of_views(features), self.joined(output)) for features, output in calls]
        return logits, only_call(joined, self.classifier, logits).features.to(logits.dtype)

    @property
    def network(self) -> nn.Module:
        """The wrapped network, in which layer names are looked up."""
        return self.model

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of a batch, with the target's classes once ``finish`` has found them; update nothing."""
        if self.target.classes is None:
            return self.infer(x, adapting=False)
        return self.target.classes(*self.logits_and_head_input(x, adapting=False))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Predict without adapting inside the block, in all threads and streams."""
        with self.lock:
            self._pauses += 1
        try:
            yield
        finally:
            with self.lock:
                self._pauses -= 1

    def reset(self, keep_known: bool = False) -> None:
        """Restore the source state bit for bit and forget the target; ``keep_known`` keeps what ``prepare`` learnt."""
        self._load_adapted(self._source_state)
        self.safety.restart()
        self.begin_target(self.target.known if keep_known else None)

    def begin_target(self, known: Any = None) -> None:
        """Start a new target; ``known`` is what ``prepare`` learnt about it, if anything."""
        self.target = self.target_type(known)
        self.begin_updates()

    def begin_updates(self) -> None:
        """Start with a fresh optimiser."""
        params, _ = self.collect_params()
        self.optimizer = self.new_optimizer(params) if params else None

    def new_optimizer(self, params: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return an optimiser for ``params``, from the given factory or else from the options."""
        if self.make_optimizer is not None:
            made = self.make_optimizer(params) if callable(self.make_optimizer) else None
            if not isinstance(made, torch.optim.Optimizer):
                given = self.make_optimizer
                raise UserError(
                    f"optimizer = {type(given).__name__} {str(given)[:60]!r}: give a name ({', '.join(OPTIMIZERS)}) "
                    "or a function from parameters to a torch optimiser, such as functools.partial(torch.optim.SGD, "
                    "lr=1e-3)"
                )
            return made
        common: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        if self.optimizer_name == "SGD":
            if self.nesterov and (self.sgd_momentum == 0 or self.dampening > 0):
                raise UserError(
                    f"nesterov=True (OPTIM.NESTEROV) with momentum {self.sgd_momentum:g} and dampening "
                    f"{self.dampening:g}: it needs a momentum and no dampening; set nesterov=False"
                )
            momentum = {"momentum": self.sgd_momentum, "dampening": self.dampening, "nesterov": self.nesterov}
            return torch.optim.SGD(params, **common, **momentum)
        # On the CPU, a fused update is one pass over the parameters instead of ten; torch has it there since 2.4. On a
        # GPU, torch chooses.
        one_pass = _HAS_FUSED_ADAM and all(param.device.type == "cpu" for param in params)
        kind = getattr(torch.optim, self.optimizer_name)
        return kind(params, betas=(self.beta, 0.999), fused=True if one_pass else None, **common)

    def prepare(self, batches: Batches) -> None:
        """Learn from the whole target set before the first epoch (offline protocol)."""

    def start_epoch(self, batches: Batches) -> None:
        """Learn from the whole target set before an epoch (offline protocol)."""

    @torch.no_grad()
    def finish(self, batches: Batches) -> None:
        """Find the target's classes after the last epoch (offline protocol), if ``classes`` is set."""
        if not self.classes:
            return
        self.target.classes = None
        with self.as_source():
            before = [self.infer(x, adapting=False).argmax(1) for _, x in batches]
        samples = TargetSamples()
        for _, x in batches:
            samples.add(*self.logits_and_head_input(x, adapting=False))
        self.target.classes, self.target.changed = samples.classes(before, self.class_change)

    @contextmanager
    def at_start(self) -> Iterator[None]:
        """Use the initial parameters and buffers inside the block, as after ``reset(keep_known=True)``."""
        own = self._adapted_state()
        try:
            self._load_adapted(self._source_state)
            yield
        finally:
            self._load_adapted(own)

    @contextmanager
    def as_source(self) -> Iterator[None]:
        """Act as the source model inside the block: its parameters, its statistics, and no target."""
        target, statistics = self.target, self.statistics
        try:
            self.target, self.statistics = self.target_type(), "source"
            with self.at_start():
                yield
        finally:
            self.target, self.statistics = target, statistics

    def _adapted_state(self) -> dict[str, Tensor]:
        """Return copies of what adaptation can change: trainable parameters and buffers of the normalisation layers."""
        moving = {id(p) for p in self.model.parameters() if p.requires_grad}
        moving |= {id(b) for layer in self.statistics_layers for b in layer.buffers()}
        state = self.model.state_dict(keep_vars=True)
        return {name: value.detach().clone() for name, value in state.items() if id(value) in moving}

    @torch.no_grad()
    def _load_adapted(self, values: dict[str, Tensor]) -> None:
        state = self.model.state_dict(keep_vars=True)
        for name, value in values.items():
            state[name].copy_(value)

    def describe(self) -> dict[str, Any]:
        """Return facts about the adapted state to record with a result."""
        changed = self.target.changed
        return {**self.safety.describe(), **({} if changed is None else {"changed": changed})}

    def fold(self) -> nn.Module:
        """Return the adapted model as a plain network of the source architecture, whose state dict fits a fresh one.

        Note: its running statistics are the running mean of the statistics that normalised the batches, so its
        predictions do not depend on the batch size. ``unfoldable`` says why a method cannot be folded.
        """
        if self.unfoldable:
            raise UserError(f"{self.title or type(self).__name__} cannot be folded: {self.unfoldable}")
        plain = self.plain_network()
        if self.target.classes is None:
            return plain
        head = plain.get_submodule(self.classifier)
        return replace_module(plain, self.classifier, self.target.classes.fold_into(head))

    def plain_network(self) -> nn.Module:
        """Return a plain copy of the adapted network, without the target's classes."""
        return plain_copy(self.model, self.target.calibration)

    @property
    def unfoldable(self) -> str:
        """Why ``fold`` would fail and what to choose instead, or empty; some methods know only after a batch."""
        if self.mirror:
            return (
                "with MIRROR (mirror=True) a prediction is the mean of two passes, which no source architecture makes; "
                "adapt without it"
            )
        if not self.classes:
            return ""
        try:
            _, bias = effective_linear(self.network.get_submodule(self.classifier))
        except UserError:
            bias = None
        return "CLASSES (classes=True) needs a linear classifier with a bias; adapt without it" if bias is None else ""

    @contextmanager
    def stream(self, name: str) -> Iterator[AdaptationMethod]:
        """Switch to the stream ``name`` inside the block: calls and attributes are that stream's; other threads wait.

        A stream owns its adapted state and shares the frozen network; a new stream starts as the source model.
        """
        with self.lock:
            before = self.streams.switch(self, name)
            try:
                yield self
            finally:
                self.streams.switch(self, before)

    def begin_stream(self) -> None:
        """Start a stream from scratch, safety counts included."""
        self.safety = Safety(self.on_collapse, self.on_divergence)
        self.reset()

    def source_tensors(self) -> set[int]:
        """Return the ids of the tensors that ``reset`` writes to, in the current stream."""
        state = self.model.state_dict(keep_vars=True)
        return {id(state[name]) for name in self._source_state}

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the full state of all streams, whichever is active."""
        with self.stream(DEFAULT):
            return super().state_dict(*args, **options)

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """Load the full state of all streams, whichever is active."""
        with self.stream(DEFAULT):
            return super().load_state_dict(*args, **options)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what ``state_dict`` holds besides the model: target, safety, optimiser, source state and streams."""
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        own: dict[str, Any] = {"target": self.target, "safety": self.safety, "optimizer": optimizer}
        if self.streams.present == DEFAULT:
            own |= {"source": self._source_state, "streams": self.streams.states(self)}
        return {**self.state_identity(), **pack(own)}

    def state_identity(self) -> dict[str, Any]:
        """Return what a saved state and the method that loads it must have in common, besides parameters."""
        return {"method": type(self).__name__, "classes": self.classes}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Hold the state until the model's parameters are loaded; reject a state of another identity before that."""
        for name, own in self.state_identity().items():
            if (theirs := state.get(name, own)) != own:
                raise UserError(
                    f"the state is of {name} = {theirs!r}, and here it is {own!r}: load it into a model that was built "
                    "in the same way"
                )
        self._loaded = state

    def state_loaded(self) -> None:
        """Complete ``load_state_dict``: resume exactly where the state was saved.

        Note: a state that holds only the model restarts the optimiser and starts a new target.
        """
        loaded, self._loaded = self._loaded, None
        state = None if loaded is None else unpack(loaded, self.device)
        self.target = self.target_type() if state is None else state["target"]
        self.begin_updates()
        if state is None:
            return
        self.safety = state["safety"]
        if self.optimizer is not None and state["optimizer"] is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        if self.streams.present == DEFAULT:
            self._source_state = state["source"]
            self.streams.load(self, state["streams"])

    @property
    def device(self) -> torch.device | None:
        """The network's device, or None if it has no parameters."""
        first = next(self.model.parameters(), None)
        return None if first is None else first.device

    def train(self, mode: bool = True) -> AdaptationMethod:
        """Set the mode of the wrapper only: the method controls the model's modes."""
        self.training = mode
        return self

    def _replicate_for_data_parallel(self) -> Any:
        raise UserError(f"DataParallel({type(self).__name__}) would adapt copies and drop them: use one GPU")

    @classmethod
    def from_cfg(
        cls,
        model: nn.Module,
        cfg: CfgNode,
        num_classes: int | None = None,
        source_subspace: Subspace | SourceMoments | None = None,
    ) -> AdaptationMethod:
        """Build the method from a config; keys of other methods are ignored."""
        options = {name: cls.value_in(cfg, name) for name in cls.constructor_keys()}
        if cls.source_argument:
            options[cls.source_argument] = cls.source_in(cfg, source_subspace)
        return cls(model, num_classes=num_classes, **options)

    @classmethod
    def source_in(cls, cfg: CfgNode, given: Any) -> Any:
        """Return the source statistics of a method that aligns: ``given``, or those that the config names."""
        return None

    @classmethod
    def needs_source_subspace(cls, cfg: CfgNode) -> bool:
        """Return whether the method, as configured, needs statistics of source data."""
        return False

    @classmethod
    def identity(cls, cfg: CfgNode) -> str:
        """Return what else determines a result, besides the config and the versions; '' = nothing."""
        return ""


def _params(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _state_loaded(method: AdaptationMethod, incompatible_keys: Any) -> None:
    method.state_loaded()


ADAPTATION_REGISTRY: Registry[type[AdaptationMethod]] = Registry("adaptation method")
