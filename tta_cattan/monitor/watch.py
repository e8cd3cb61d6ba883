"""The monitor of a stream: a reading after each batch, and the policies that react to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tta_cattan.alignment.aligned import AlignedHead
from tta_cattan.methods import AdaptationMethod
from tta_cattan.methods.guard import Lock
from tta_cattan.methods.safety import Collapse
from tta_cattan.monitor.estimate import Calibration, Estimate, Reference, mean_shift
from tta_cattan.network.layers import (
    channel_place,
    find_classifier,
    find_layer,
    keeping_modes,
    require_logits,
    watched,
)
from tta_cattan.util.batches import refusing_one_image, require_batch
from tta_cattan.util.errors import UserError, nearest
from tta_cattan.util.keys import Key, at_least, key, one_of
from tta_cattan.util.state import pack, stateful, unpack

logger = logging.getLogger(__name__)

EVENTS = ("drift", "change", "collapse", "worse")
REACTIONS = ("ignore", "warn", "reset", "source")

_CHANGED = 10.0  # standard deviations by which the window's means must move for a new domain


@stateful
@dataclass(frozen=True)
class Reading:
    """The monitor's result after a batch, about the last ``window`` samples."""

    seen: int
    drift: float  # distance from the source in W_s, relative to the source's variance
    outside: float  # fraction of the features' energy outside W_s
    accuracy: Estimate | None  # None until the window is full
    frozen: Estimate | None  # of the frozen network, if its logits are given
    classes: float  # effective number of recently predicted classes
    state: tuple[str, ...]  # those of EVENTS that hold
    events: tuple[str, ...]  # those that began with this batch


@stateful
@dataclass
class _Past:
    """A monitor's memory: the last samples, the moments of the domain before them, and the last state."""

    seen: int = 0
    collapse: Collapse = field(default_factory=Collapse)
    rows: Tensor = field(default_factory=lambda: torch.empty(0))
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    frozen: Tensor = field(default_factory=lambda: torch.empty(0))
    count: int = 0  # samples of the current domain that have left the window
    mean: Tensor = field(default_factory=lambda: torch.empty(0))
    second: Tensor = field(default_factory=lambda: torch.empty(0))
    state: tuple[str, ...] = ()

    def leave(self, rows: Tensor) -> None:
        """Add rows that have left the window to the moments of the current domain."""
        if not self.count:
            self.mean, self.second = torch.zeros(2, rows.shape[1])
        self.count += len(rows)
        self.mean = self.mean + (rows - self.mean).sum(0) / self.count
        self.second = self.second + (rows.square() - self.second).sum(0) / self.count


class Monitor:
    """Monitors a stream through the logits and features of a network, whatever adapts it.

    ``observe`` takes a batch and returns a `Reading`; ``watch`` wraps a method so that every batch is observed and the
    policies are applied. ``callback`` receives (event, reading) for each event that is not ignored.
    """

    keys: ClassVar[dict[str, Key]] = {}

    window: int = key(250, "samples that a reading is about", at_least(16))
    on_drift: str = key("warn", "reaction to data unlike the source's", one_of(*REACTIONS))
    on_change: str = key("warn", "reaction to a new domain", one_of(*REACTIONS))
    on_collapse: str = key("warn", "reaction to predictions that fall into few classes", one_of(*REACTIONS))
    on_worse: str = key("warn", "reaction to an estimate below the frozen network's", one_of(*REACTIONS))
    without_drift: str = key("adapt", "what to do on data without drift", one_of("adapt", "predict"))

    def __init__(
        self, reference: Reference, callback: Callable[[str, Reading], None] | None = None, **options: Any
    ) -> None:
        """Start monitoring a stream; the options are the keys of the class."""
        if not isinstance(reference, Reference):
            raise UserError(
                f"reference is a {type(reference).__name__}: make one with Monitor.fit(model, clean_batches)"
            )
        for name, value in self._accepted(options).items():
            setattr(self, name, value)
        if callback is not None and not callable(callback):
            raise UserError(f"callback = {str(callback)[:60]!r}: give a function of (event, reading)")
        self.reference, self.callback = reference, callback
        self._past = _Past()
        self.reading: Reading | None = None  # the last one

    @classmethod
    def _accepted(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of every key: the given one, checked, or the default."""
        for name in options:
            if name not in cls.keys:
                raise UserError(f"Monitor has no option {name!r}.{nearest(name, cls.keys)}")
        return {name: one.accept(name, options.get(name, one.default)) for name, one in cls.keys.items()}

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        batches: Iterable[tuple[Tensor, Tensor]],
        shifts: Iterable[Iterable[tuple[Tensor, Tensor]]] = (),
        frozen: nn.Module | None = None,
        layer: str = "",
        d: int = 16,
        callback: Callable[[str, Reading], None] | None = None,
        **options: Any,
    ) -> Monitor:
        """Return a monitor of ``model``, fitted to (inputs, labels) without shift that it was not trained on.

        ``shifts`` are further labelled sets, such as the same images blurred or noisy, which improve the accuracy
        estimate and its interval. ``frozen`` is the source network, to estimate its accuracy too. ``layer`` names the
        layer to watch; empty: the input of the classifier. An adaptation method is reset, adapts to one set after the
        other, as it will on the stream, and is reset again; with ``without_drift="predict"`` it only predicts the clean
        set.
        """
        accepted = cls._accepted(options)
        window = accepted["window"]
        _require_apart(model, frozen)
        tap = Tap(model, layer)
        quiet = isinstance(model, AdaptationMethod) and accepted["without_drift"] == "predict"
        with keeping_modes(model, frozen):
            model.eval()
            try:
                _reset(model)
                sets = [_outputs(tap, model.predict if quiet else model, frozen, batches)]
                sets += [_outputs(tap, model, frozen, shift) for shift in shifts]
            finally:
                _reset(model)
        features = sets[0][0]
        own = Calibration.of([(logits, labels) for _, logits, _, labels in sets], window)
        other = None if frozen is None else Calibration.of([(logits, labels) for _, _, logits, labels in sets], window)
        return cls(Reference.of(features, own, other, min(d, features.shape[1]), window), callback, **options)

    def restart(self) -> None:
        """Forget the last samples, for a new stream or after the network was reset."""
        self._past = _Past(self._past.seen)

    @torch.no_grad()
    def observe(self, logits: Tensor, features: Tensor, frozen: Tensor | None = None) -> Reading:
        """Add a batch, by its logits (B x C), features (B x D) and, if known, frozen logits; return a reading."""
        past, reference = self._past, self.reference
        classes = reference.calibration.classes
        if logits.ndim != 2 or features.shape != (len(logits), reference.subspace.dim) or logits.shape[1] != classes:
            raise UserError(
                f"logits of shape {tuple(logits.shape)} and features of shape {tuple(features.shape)}: the reference "
                f"is of {classes} classes and {reference.subspace.dim} features"
            )
        if frozen is not None:
            _require_like(frozen, logits)
        finite = logits.isfinite().all(1) & features.isfinite().all(1)
        logits, features = logits[finite].float().cpu(), features[finite].float().cpu()
        past.seen += len(finite)
        past.rows, leaving = _slide(past.rows, reference.summary(logits, features), self.window)
        past.logits, _ = _slide(past.logits, logits, self.window)
        if frozen is not None:
            frozen = frozen[frozen.isfinite().all(1)].float().cpu()
            past.frozen, _ = _slide(past.frozen, frozen, self.window)
        if len(leaving):
            past.leave(leaving)
        collapsed = past.collapse.add(logits.argmax(1), None if frozen is None else frozen.argmax(1))
        return self._read(self._change(len(logits)), collapsed)

    def _read(self, changed: bool, collapsed: bool) -> Reading:
        """Return the reading of the current window, and report its new events."""
        past, reference = self._past, self.reference
        d, some = reference.subspace.d, len(past.rows) > 0
        full, both = len(past.logits) >= self.window, len(past.frozen) >= self.window
        drift = reference.drift(past.rows[:, :d]) if some else 0.0
        accuracy = reference.calibration.estimate(past.logits) if full else None
        frozen = (reference.frozen or reference.calibration).estimate(past.frozen) if both else None
        holds = {
            "drift": full and drift > reference.drift_limit,
            "change": changed,
            "collapse": collapsed,
            "worse": accuracy is not None and frozen is not None and accuracy.high < frozen.low,
        }
        before, past.state = past.state, tuple(event for event in EVENTS if holds[event])
        events = tuple(event for event in past.state if event not in before)
        outside = past.rows[:, d + 1].mean().item() if some else 0.0
        self.reading = reading = Reading(
            past.seen, drift, outside, accuracy, frozen, past.collapse.classes, past.state, events
        )
        for event in events:
            if self.reaction(event) != "ignore":
                logger.warning("%s after %d samples: %s", event, past.seen, _SIGHTS[event](reading))
                if self.callback is not None:
                    self.callback(event, reading)
        return reading

    def _change(self, batch: int) -> bool:
        """Return whether the window's mean differs from the domain before it; if so, start a domain at the last batch.

        Note: batch statistics hide a new domain from the mean feature, but not from energy and entropy. Adaptation also
        moves the mean feature within a domain, so it counts half.
        """
        past, d = self._past, self.reference.subspace.d
        if past.count < self.window // 2:
            return False
        features, others = (
            mean_shift(past.rows[:, one], past.count, past.mean[one], past.second[one])
            for one in (slice(d), slice(d, None))
        )
        if max(features / 2, others) <= _CHANGED:
            return False
        past.count = 0
        past.rows = past.rows[-batch:]
        return True

    def reaction(self, event: str) -> str:
        """Return the reaction to one of EVENTS."""
        return getattr(self, f"on_{event}")

    def watch(self, model: nn.Module, frozen: nn.Module | None = None, layer: str = "") -> Watched:
        """Wrap ``model``, an adaptation method or any network, so that batches are observed and policies applied.

        ``frozen`` is the source network, to compare with and to fall back to.
        """
        return Watched(self, model, frozen, layer)

    def state_dict(self) -> dict[str, Any]:
        """Return the reference, the stream's state and the options: safe to load with ``weights_only=True``."""
        options = {name: getattr(self, name) for name in self.keys}
        return pack({"reference": self.reference, "past": self._past, "reading": self.reading, "options": options})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume exactly where the state was saved."""
        found = unpack(state)
        self.reference, self._past, self.reading = found["reference"], found["past"], found["reading"]
        for name, value in found["options"].items():
            setattr(self, name, value)


Monitor.keys = {name: value for name, value in vars(Monitor).items() if isinstance(value, Key)}

_SIGHTS: dict[str, Callable[[Reading], str]] = {
    "drift": lambda r: f"the features are unlike the source's (drift {r.drift:.2f})",
    "change": lambda r: "a new domain began",
    "collapse": lambda r: f"the last predictions fall into about {r.classes:.1f} classes",
    "worse": lambda r: f"the estimated accuracy {r.accuracy} is below the frozen network's {r.frozen}",
}


def _slide(window: Tensor, new: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Append ``new`` to a window; return its last ``size`` rows, and the rows that drop out."""
    both = torch.cat([window, new]) if len(window) else new
    cut = max(len(both) - size, 0)
    return both[cut:].clone(), both[:cut]


class Tap:
    """Runs a network and captures the features on the way, at the input of its classifier or the output of a layer."""

    def __init__(self, model: nn.Module, layer: str = "") -> None:
        self.layer = layer
        first = next(model.parameters(), None)
        self.device = None if first is None else first.device
        inner = model.model if isinstance(model, AdaptationMethod) else model
        aligned = getattr(model, "aligned", None)
        if layer:
            self.module: nn.Module = find_layer(inner, layer)
        else:
            self.module = aligned if isinstance(aligned, AlignedHead) else _classifier(inner)

    def __call__(self, run: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits ``run(x)`` and the features (B x D), averaged over positions and mirror images."""
        require_batch(x)
        with watched(self.module) as calls, refusing_one_image(x):
            logits = run(x)
        require_logits(logits, len(x))
        if not calls:
            place = f"layer {self.layer!r}" if self.layer else "last linear layer"
            raise UserError(f"the network does not call its {place}: name another one with layer=")
        z = (calls[-1].output if self.layer else calls[-1].features).detach()
        rows = z.movedim(channel_place(z), -1)
        rows = rows.flatten(1, -2).mean(1) if rows.ndim > 2 else rows
        return logits, rows.unflatten(0, (-1, len(logits))).mean(0) if len(rows) % len(logits) == 0 else rows


def _classifier(model: nn.Module) -> nn.Module:
    """Return the classifier, whose input is watched."""
    try:
        return model.get_submodule(find_classifier(model))
    except UserError:
        raise UserError(
            f"{type(model).__name__} has no linear classifier to watch the input of: name a layer with layer="
        ) from None


def _reset(model: nn.Module) -> None:
    """Reset an adaptation method; any other network has no state."""
    if isinstance(model, AdaptationMethod):
        model.reset()


@torch.no_grad()
def _outputs(
    tap: Tap, run: Callable[[Tensor], Tensor], frozen: nn.Module | None, batches: Iterable[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the features and logits of all batches, the frozen network's logits (or none), and the labels."""
    found = []
    for batch in batches:
        if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and _one_label_each(*batch)):
            raise UserError("a monitor is fitted to batches of (inputs, labels): tensors, one class number per input")
        x, y = batch
        x = x if tap.device is None else x.to(tap.device)
        logits, features = tap(run, x)
        if not 0 <= y.min() <= y.max() < logits.shape[1]:
            raise UserError(
                f"labels lie in {y.min()}..{y.max()} and the network has {logits.shape[1]} classes: give class numbers "
                f"0..{logits.shape[1] - 1}"
            )
        other = logits[:0] if frozen is None else frozen.eval()(x)
        if frozen is not None:
            _require_like(other, logits)
        found.append((features.cpu(), logits.cpu(), other.cpu(), y.cpu().long()))
    if not found:
        raise UserError("no batches were given: a monitor is fitted to labelled data without shift")
    features, logits, others, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    return features, logits, others, labels


def _one_label_each(x: object, y: object) -> bool:
    return isinstance(x, Tensor) and isinstance(y, Tensor) and not y.is_floating_point() and y.shape == x.shape[:1]


def _require_like(frozen: Tensor, logits: Tensor) -> None:
    """Reject outputs of a frozen network that are not logits of the same classes."""
    require_logits(frozen, len(logits))
    if frozen.shape != logits.shape:
        raise UserError(
            f"the frozen network has {frozen.shape[1]} classes and the watched one {logits.shape[1]}: give the source "
            "network of the watched one"
        )


def _require_apart(model: nn.Module, frozen: nn.Module | None) -> None:
    """Reject anything but networks, and a frozen network that shares layers with the model."""
    for name, one in (("model", model), ("frozen", frozen)):
        if one is not None and not isinstance(one, nn.Module):
            raise UserError(f"{name} = {str(one)[:60]!r}: give a torch.nn.Module")
    if frozen is not None and set(frozen.modules()) & set(model.modules()):
        raise UserError(
            "frozen shares layers with the model, which adapts them: give a copy (copy.deepcopy) of the network from "
            "before it was wrapped"
        )


class Watched(nn.Module):
    """A network or method with a monitor beside it: ``forward`` predicts, observes and applies the policies.

    ``reading`` is the last one; while ``on_source`` is set, the frozen network predicts, until the next new domain.
    """

    def __init__(self, monitor: Monitor, model: nn.Module, frozen: nn.Module | None, layer: str) -> None:
        super().__init__()
        wanted = {monitor.reaction(event) for event in EVENTS}
        if frozen is None and "source" in wanted:
            raise UserError("a policy is 'source', and no frozen network is given: pass frozen=, a copy of the source")
        _require_apart(model, frozen)
        if "reset" in wanted and not hasattr(model, "reset"):
            raise UserError(f"a policy is 'reset', and {type(model).__name__} has no reset(): use 'warn' or 'source'")
        if monitor.without_drift == "predict" and not hasattr(model, "predict"):
            raise UserError(f"without_drift = 'predict', and {type(model).__name__} has no predict(): use 'adapt'")
        self.monitor, self.model, self.frozen = monitor, model, frozen
        self.on_source = False
        self.lock = model.lock if isinstance(model, AdaptationMethod) else Lock()
        self._taps = [Tap(one, layer) for one in (model, frozen) if one is not None]

    @property
    def reading(self) -> Reading | None:
        """The monitor's last reading."""
        return self.monitor.reading

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch; concurrent calls wait for each other."""
        with self.lock:
            return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        frozen = None
        if self.frozen is not None:
            with torch.no_grad():
                frozen, features = self._taps[1](self.frozen.eval(), x)
        logits = frozen
        if not self.on_source:
            last = self.monitor.reading
            idle = self.monitor.without_drift == "predict" and last is not None and "drift" not in last.state
            logits, features = self._taps[0](self.model.predict if idle else self.model, x)
        self._react(self.monitor.observe(logits, features, frozen))
        return logits

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state of the monitor and the policies, for ``state_dict``."""
        return {"monitor": self.monitor.state_dict(), "on_source": self.on_source}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved."""
        self.monitor.load_state_dict(state["monitor"])
        self.on_source = state["on_source"]

    def _react(self, reading: Reading) -> None:
        """Reset or fall back to the source as the policies say; a new domain ends the fallback."""
        if "change" in reading.events:
            self.on_source = False
        reactions = {self.monitor.reaction(event) for event in reading.events}
        if not reactions & {"reset", "source"}:
            return
        if hasattr(self.model, "reset"):
            self.model.reset()
        self.on_source = "source" in reactions
        self.monitor.restart()
