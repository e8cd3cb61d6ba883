"""Watching a stream without labels: drift from the source, changes of domain, accuracy, concentration of classes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tta_cattan.alignment import Subspace, fit_subspace
from tta_cattan.alignment.aligned import AlignedHead
from tta_cattan.methods import AdaptationMethod
from tta_cattan.network.layers import channel_place, find_classifier, find_layer
from tta_cattan.util.errors import UserError, nearest
from tta_cattan.util.keys import Key, above, at_least, key, one_of
from tta_cattan.util.state import pack, stateful, unpack

logger = logging.getLogger(__name__)

EVENTS = ("drift", "change", "collapse", "worse")
REACTIONS = ("ignore", "warn", "reset", "source")

_NORMAL_90 = 1.645  # half width of a 90 % interval, in standard deviations
_UNKNOWN_DEVIATION = 0.1  # of the estimate, where no labelled shift shows it: a guess
_NULL_WINDOWS = 100  # windows of clean data that show how far chance alone takes the drift score


@dataclass(frozen=True)
class Estimate:
    """An accuracy estimated without labels, and the interval that should hold the true one in nine of ten windows."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Reading:
    """What the monitor says after a batch, about the last ``window`` samples."""

    seen: int
    drift: float  # distance from the source in W_s over the source's variance
    outside: float  # share of the features' energy outside W_s
    drifted: bool
    changed: bool  # a new domain began, at most a window ago
    accuracy: Estimate | None  # None until the window is full
    frozen: Estimate | None  # of the frozen network, where its logits are given
    classes: float  # effective number of predicted classes, exp(entropy)
    collapsed: bool
    events: tuple[str, ...]  # of EVENTS, those that began with this batch


def frechet_distance(rows: Tensor, variances: Tensor) -> float:
    """``sum_j m_j^2 + (s_j - sqrt(e_j))^2`` over ``sum_j e_j``, of rows in the source's eigenbasis around its mean.

    Note: the source's covariance is diagonal there (e); of the rows' own only the diagonal (s^2) is taken.
    """
    mean, deviation = rows.mean(0), rows.std(0, unbiased=False)
    return ((mean.square() + (deviation - variances.sqrt()).square()).sum() / variances.sum()).item()


def mean_shift(recent: Tensor, count: float, mean: Tensor, second: Tensor) -> float:
    """Return by how many deviations ``T = sum_j (m_j - m'_j)^2 / (v_j (1/n + 1/n'))`` exceeds chance.

    The recent rows have mean m, those before mean m' and second moment ``second`` (n' = ``count``); v is their pooled
    variance, ``(T - d) / sqrt(2 d)`` is returned: T has the mean d and the variance 2 d where nothing changed.
    """
    n, d = recent.shape
    mine = recent.mean(0)
    before = second - mean.square()
    pooled = (n * recent.var(0, unbiased=False) + count * before) / (n + count)
    t = ((mine - mean).square() / pooled.clamp_min(1e-12)).sum().item() / (1 / n + 1 / count)
    return (t - d) / math.sqrt(2 * d)


def transport_confidence(probabilities: Tensor, prior: Tensor, blur: float = 0.05, rounds: int = 50) -> float:
    """Mean probability of the classes that samples get when each class must get its share of them.

    ``max_G sum_ic G_ic p_ic`` over ``G >= 0`` with row sums 1 / n and column sums ``prior``, smoothed by ``blur``
    (Sinkhorn): the confidence-by-transport estimate of Lu et al. (2023). With all samples in one class it is near that
    class's share, however confident the network.
    """
    p = probabilities.double()
    kernel = (p / blur).exp()  # at most exp(20)
    share = prior.double().clamp_min(1e-12) * len(p)
    column = torch.ones_like(share)
    for _ in range(rounds):
        row = 1 / (kernel @ column)
        column = share / (row @ kernel)
    row = 1 / (kernel @ column)
    return (row @ (kernel * p) @ column).item() / len(p)


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T that minimises the cross-entropy of ``softmax(logits / T)`` (Guo et al. 2017).

    Note: by ``b = 1 / T`` its derivative is ``mean(sum_c p_c y_c - y_label)``, which grows with b: bisection finds it.
    """
    y = logits.double()
    own = y.gather(1, labels[:, None])[:, 0]
    low, high = math.log(1e-3), math.log(1e3)
    for _ in range(60):
        middle = (low + high) / 2
        slope = (((y * math.exp(middle)).softmax(1) * y).sum(1) - own).mean()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return math.exp(-low)


def effective_classes(predicted: Tensor, classes: int) -> float:
    """``exp(-sum_c m_c log m_c)`` of the shares m of predicted classes: as many as there seem to be."""
    shares = torch.bincount(predicted, minlength=classes).double() / len(predicted)
    return math.exp(torch.special.entr(shares).sum().item())


@stateful
@dataclass(frozen=True)
class Calibration:
    """The line from a network's confidence to its accuracy, from labelled data.

    The confidence is `transport_confidence` at the ``temperature`` that calibrates the clean predictions, with the
    ``prior`` of clean labels. The line is fitted to all labelled sets, or has slope 1 through one; ``deviation`` is the
    spread around it.
    """

    prior: Tensor
    temperature: float
    slope: float
    intercept: float
    deviation: float

    @classmethod
    def of(cls, sets: Sequence[tuple[Tensor, Tensor]], window: int = 250) -> Calibration:
        """Fit (logits, labels) of several sets, the clean one first; shares of classes count one sample more each."""
        sets = [(logits.detach().float().cpu(), labels.cpu()) for logits, labels in sets]
        logits, labels = sets[0]
        classes = logits.shape[1]
        prior = (torch.bincount(labels, minlength=classes).double() + 1) / (len(labels) + classes)
        temperature = fitted_temperature(logits, labels)
        points = [(_window_score(y / temperature, prior, window), _accuracy(y, truth)) for y, truth in sets]
        return cls(prior, temperature, *_line(points))

    def estimate(self, logits: Tensor) -> Estimate:
        """Return the accuracy that n logits suggest; the interval holds the line's spread and that of n coin tosses."""
        score = transport_confidence((logits / self.temperature).softmax(1), self.prior)
        value = min(max(self.slope * score + self.intercept, 0.0), 1.0)
        spread = _NORMAL_90 * math.sqrt(self.deviation**2 + value * (1 - value) / len(logits))
        return Estimate(value, max(value - spread, 0.0), min(value + spread, 1.0))


def _window_score(logits: Tensor, prior: Tensor, window: int) -> float:
    """Return the mean confidence of whole windows: chance moves the classes' shares in a window, which lowers it."""
    parts = logits.split(window)
    whole = parts[:-1] if len(parts) > 1 and len(parts[-1]) < window else parts
    return sum(transport_confidence(part.softmax(1), prior) for part in whole) / len(whole)


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(1) == labels).double().mean().item()


def _line(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return slope, intercept and residual deviation of the least-squares line; through few points the slope is 1."""
    x, y = torch.tensor(points, dtype=torch.float64).T
    if len(points) < 3:
        return 1.0, (y - x).mean().item(), _UNKNOWN_DEVIATION
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum().clamp_min(1e-12)
    intercept = y.mean() - slope * x.mean()
    residual = (y - slope * x - intercept).square().sum() / (len(points) - 2)
    return slope.item(), intercept.item(), residual.sqrt().item()


@stateful
@dataclass(frozen=True)
class Reference:
    """What a network does on data without shift: the subspace of its features, and how far chance takes the drift."""

    subspace: Subspace
    drift_limit: float
    calibration: Calibration
    frozen: Calibration | None = None  # of the source network, where the watched one adapts

    @classmethod
    def of(
        cls,
        features: Tensor,
        calibration: Calibration,
        frozen: Calibration | None = None,
        d: int = 16,
        window: int = 250,
    ) -> Reference:
        """Fit the clean features (n x D)."""
        if len(features) < 4 * d:
            raise UserError(f"{len(features)} samples without shift and d = {d}: give at least {4 * d}, or a smaller d")
        features = features.detach().float().cpu()
        limit = _drift_limit(features, d, min(window, len(features) // 4))
        return cls(fit_subspace(features, d), limit, calibration, frozen)

    @property
    def variances(self) -> Tensor:
        """The source's variance along each direction of ``W_s``."""
        return self.subspace.eigenvalues[: self.subspace.d]


def _coordinates(features: Tensor, subspace: Subspace) -> tuple[Tensor, Tensor]:
    """Return the coordinates in ``W_s`` around the source's mean (n x d), and each row's share of energy outside."""
    centred = features - subspace.mean
    rows = centred @ subspace.basis
    total = centred.square().sum(1).clamp_min(1e-12)
    return rows, (1 - rows.square().sum(1) / total).clamp_min(0)


def _drift_limit(features: Tensor, d: int, window: int) -> float:
    """Return the mean plus eight deviations of the drift score of clean windows, against a fit to other clean data."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(features), generator=generator)
    fitted, held = features[order[: len(order) // 2]], features[order[len(order) // 2 :]]
    subspace = fit_subspace(fitted, d)
    rows, _ = _coordinates(held, subspace)
    draws = [rows[torch.randperm(len(rows), generator=generator)[:window]] for _ in range(_NULL_WINDOWS)]
    scores = torch.tensor([frechet_distance(draw, subspace.eigenvalues[:d]) for draw in draws])
    return (scores.mean() + 8 * scores.std()).item()


@stateful
@dataclass
class _Past:
    """What a monitor remembers: the last samples, the moments of the domain before them, and what was said."""

    seen: int = 0
    rows: Tensor = field(default_factory=lambda: torch.empty(0))
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    frozen: Tensor = field(default_factory=lambda: torch.empty(0))
    count: int = 0  # samples of the present domain that have left the window
    mean: Tensor = field(default_factory=lambda: torch.empty(0))
    second: Tensor = field(default_factory=lambda: torch.empty(0))
    standing: dict[str, bool] = field(default_factory=dict)


class Monitor:
    """Watches a stream by the logits and features of a network, whoever adapts it.

    ``observe`` takes a batch and returns a `Reading`; ``watch`` wraps a method so that it observes itself and the
    policies act. ``callback`` gets (event, reading) for each event that is not ignored.
    """

    keys: ClassVar[dict[str, Key]] = {}

    window: int = key(250, "samples that a reading is about", at_least(16))
    change_limit: float = key(10.0, "deviations by which a window's means move with a new domain", above(0))
    collapse_share: float = key(0.35, "share of the effective classes below which it is a collapse", above(0))
    on_drift: str = key("warn", "reaction to data unlike the source's", one_of(*REACTIONS))
    on_change: str = key("warn", "reaction to a new domain", one_of(*REACTIONS))
    on_collapse: str = key("warn", "reaction to predictions that fall into few classes", one_of(*REACTIONS))
    on_worse: str = key("warn", "reaction to an estimate below the frozen network's", one_of(*REACTIONS))
    without_drift: str = key("adapt", "what to do on data without drift", one_of("adapt", "predict"))
    frozen_every: int = key(4, "batches between two passes of the frozen network", at_least(1))

    def __init__(
        self, reference: Reference, callback: Callable[[str, Reading], None] | None = None, **options: Any
    ) -> None:
        """Begin a stream; the options are the keys of the class."""
        if not isinstance(reference, Reference):
            raise UserError(
                f"reference is a {type(reference).__name__}: make one with Monitor.fit(model, clean_batches)"
            )
        for name in options:
            if name not in self.keys:
                raise UserError(f"Monitor has no option {name!r}.{nearest(name, self.keys)}")
        for name, declared in self.keys.items():
            setattr(self, name, declared.accept(name, options.get(name, declared.default)))
        self.reference, self.callback = reference, callback
        self._past = _Past()

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        batches: Iterable[tuple[Tensor, Tensor]],
        shifts: Iterable[Iterable[tuple[Tensor, Tensor]]] = (),
        frozen: nn.Module | None = None,
        layer: str = "",
        d: int = 16,
        **options: Any,
    ) -> Monitor:
        """Return a monitor of ``model`` from (inputs, labels) without shift, that it was not trained on.

        ``shifts`` are further labelled sets, such as the same images blurred or noisy: they make the estimate of
        accuracy and its interval better. ``frozen`` is the source network, to estimate its accuracy too. ``layer``
        names the layer to watch; empty: the input of the classifier. A method of ours adapts to one set after the
        other, as it will on the stream, and is reset at the end; with ``without_drift="predict"`` it only predicts the
        clean one.
        """
        window = cls.keys["window"].accept("window", options.get("window", cls.keys["window"].default))
        with Tap(model, layer) as tap:
            clean = tap.collect(batches, frozen, adapting=options.get("without_drift") != "predict")
            sets = [clean, *(tap.collect(shift, frozen) for shift in shifts)]
        if isinstance(model, AdaptationMethod):
            model.reset()
        features = sets[0][0]
        own = Calibration.of([(logits, labels) for _, logits, _, labels in sets], window)
        other = None if frozen is None else Calibration.of([(logits, labels) for _, _, logits, labels in sets], window)
        return cls(Reference.of(features, own, other, min(d, features.shape[1]), window), **options)

    def restart(self) -> None:
        """Forget the last samples: those to come are of another stream, or of a network that was reset."""
        self._past = _Past(self._past.seen)

    @torch.no_grad()
    def observe(self, logits: Tensor, features: Tensor, frozen: Tensor | None = None) -> Reading:
        """Take note of a batch: its logits (B x C), its features (B x D), and the frozen network's logits if known."""
        past, source = self._past, self.reference.subspace
        features = _per_sample(features, len(logits))
        if logits.ndim != 2 or features.shape != (len(logits), source.dim) or logits.shape[1] != len(self._prior):
            raise UserError(
                f"logits of shape {tuple(logits.shape)} and features of shape {tuple(features.shape)}: the reference "
                f"is of {len(self._prior)} classes and {source.dim} features"
            )
        finite = logits.isfinite().all(1) & features.isfinite().all(1)
        logits, features = logits[finite].float().cpu(), features[finite].float().cpu()
        past.seen += len(finite)
        past.rows, leaving = _slide(past.rows, self._summary(logits, features), self.window)
        past.logits, _ = _slide(past.logits, logits, self.window)
        if frozen is not None:
            past.frozen, _ = _slide(past.frozen, frozen[frozen.isfinite().all(1)].float().cpu(), self.window)
        return self._read(leaving, len(logits))

    @property
    def drifted(self) -> bool:
        """Whether the last window was unlike the source's."""
        return self._past.standing.get("drift", False)

    @property
    def seen(self) -> int:
        """Samples observed so far."""
        return self._past.seen

    def _summary(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return each sample's coordinates in ``W_s``, log energy, share of it outside, and entropy: B x (d + 3)."""
        rows, outside = _coordinates(features, self.reference.subspace)
        energy = rows.square().sum(1).clamp_min(1e-12).log()
        entropy = torch.special.entr((logits / self.reference.calibration.temperature).softmax(1)).sum(1)
        return torch.cat([rows, torch.stack([energy, outside, entropy], 1)], 1)

    @property
    def _prior(self) -> Tensor:
        return self.reference.calibration.prior

    def _read(self, leaving: Tensor, batch: int) -> Reading:
        """Return the reading of the present window and react to what is new in it."""
        past, reference = self._past, self.reference
        full = len(past.logits) >= self.window
        d, some = reference.subspace.d, len(past.rows) > 0
        drift = frechet_distance(past.rows[:, :d], reference.variances) if some else 0.0
        changed = self._change(leaving, batch)
        recent = past.logits[-max(2 * batch, 64) :].argmax(1) if len(past.logits) else torch.zeros(1, dtype=torch.long)
        classes = effective_classes(recent, len(self._prior))
        usual = min(math.exp(torch.special.entr(self._prior).sum().item()), len(recent))
        most = 1 + self.collapse_share * (usual - 1)
        if len(past.frozen) >= len(recent):  # a hard domain has few classes for the frozen network too
            most = min(most, 0.75 * effective_classes(past.frozen[-len(recent) :].argmax(1), len(self._prior)))
        accuracy = reference.calibration.estimate(past.logits) if full else None
        compared = reference.frozen or reference.calibration
        frozen = compared.estimate(past.frozen) if len(past.frozen) >= self.window else None
        states = {
            "drift": full and drift > reference.drift_limit,
            "change": changed,
            "collapse": len(recent) >= 32 and classes < most,
            "worse": accuracy is not None and frozen is not None and accuracy.high < frozen.low,
        }
        events = tuple(name for name in EVENTS if states[name] and not past.standing.get(name, False))
        past.standing = states
        reading = Reading(
            past.seen, drift, past.rows[:, d + 1].mean().item() if some else 0.0, states["drift"], changed,
            accuracy, frozen, classes, states["collapse"], events,
        )  # fmt: skip
        for event in events:
            if self.reaction(event) != "ignore":
                logger.warning("%s after %d samples: %s", event, past.seen, _SIGHTS[event](reading))
                if self.callback is not None:
                    self.callback(event, reading)
        return reading

    def _change(self, leaving: Tensor, batch: int) -> bool:
        """Tell whether the window's mean is not that of the domain before it; if so, the last batch begins a domain.

        Note: statistics of the batch hide a domain from the mean feature, not from energy and entropy; and adapting
        moves the mean feature of one domain too, so that it counts half.
        """
        past = self._past
        if len(leaving):
            total = past.count + len(leaving)
            if not past.count:
                past.mean, past.second = torch.zeros(leaving.shape[1]), torch.zeros(leaving.shape[1])
            past.mean = past.mean + (leaving.sum(0) - len(leaving) * past.mean) / total
            past.second = past.second + (leaving.square().sum(0) - len(leaving) * past.second) / total
            past.count = total
        if past.count < self.window // 2:
            return False
        d = self.reference.subspace.d
        features, others = (
            mean_shift(past.rows[:, one], past.count, past.mean[one], past.second[one])
            for one in (slice(d), slice(d, None))
        )
        if max(features / 2, others) <= self.change_limit:
            return False
        past.count = 0
        past.rows = past.rows[-batch:]
        return True

    def reaction(self, event: str) -> str:
        """Return the reaction to one of EVENTS."""
        return getattr(self, f"on_{event}")

    def watch(self, model: nn.Module, frozen: nn.Module | None = None, layer: str = "") -> Watched:
        """Return ``model``, a method of ours or any network, as a module that observes itself and obeys the policies.

        ``frozen`` is the source network, to compare with and to fall back to.
        """
        return Watched(self, model, frozen, layer)

    def state_dict(self) -> dict[str, Any]:
        """Return the reference, the stream's state and the options: safe to load with ``weights_only=True``."""
        options = {name: getattr(self, name) for name in self.keys}
        return pack({"reference": self.reference, "past": self._past, "options": options})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where the state was taken."""
        found = unpack(state)
        self.reference, self._past = found["reference"], found["past"]
        for name, value in found["options"].items():
            setattr(self, name, value)


Monitor.keys = {name: value for name, value in vars(Monitor).items() if isinstance(value, Key)}

_SIGHTS: dict[str, Callable[[Reading], str]] = {
    "drift": lambda r: f"the features are unlike the source's (drift {r.drift:.2f})",
    "change": lambda r: "a new domain began",
    "collapse": lambda r: f"the last predictions fall into about {r.classes:.1f} classes",
    "worse": lambda r: f"the estimated accuracy {_shown(r.accuracy)} is below the frozen network's {_shown(r.frozen)}",
}


def _shown(estimate: Estimate | None) -> str:
    return "?" if estimate is None else f"{estimate.value:.2f}"


def _per_sample(features: Tensor, n: int) -> Tensor:
    """Return the mean of each sample's rows, where a method looks at mirror images too."""
    return features.unflatten(0, (-1, n)).mean(0) if n and len(features) > n and len(features) % n == 0 else features


def _slide(window: Tensor, new: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the last ``size`` rows of both, and the rows that drop out."""
    both = torch.cat([window, new]) if len(window) else new
    cut = max(len(both) - size, 0)
    return both[cut:].clone(), both[:cut]


class Tap:
    """Takes the features of each forward pass from a network, at the input of its classifier or at a layer."""

    def __init__(self, model: nn.Module, layer: str = "") -> None:
        self.model, self.layer = model, layer
        self.features = torch.empty(0)  # of the last pass
        inner = model.model if isinstance(model, AdaptationMethod) else model
        aligned = getattr(model, "aligned", None)
        if layer:
            module: nn.Module = find_layer(inner, layer)
        else:
            module = aligned if isinstance(aligned, AlignedHead) else inner.get_submodule(find_classifier(inner))
        self._handle = module.register_forward_hook(self._take)

    def _take(self, _: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if not self.layer:
            self.features = args[0].detach()
            return
        z = output.detach()
        rows = z.movedim(channel_place(z), -1)
        self.features = rows.flatten(1, -2).mean(1) if rows.ndim > 2 else rows

    def collect(
        self, batches: Iterable[tuple[Tensor, Tensor]], frozen: nn.Module | None = None, adapting: bool = True
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the features and logits of all batches, the frozen network's logits (or none), and the labels."""
        found: list[tuple[Tensor, ...]] = []
        method = isinstance(self.model, AdaptationMethod)
        run = self.model.predict if method and not adapting else self.model if method else self.model.eval()
        with torch.no_grad():
            for x, y in batches:
                logits = run(x)
                other = logits[:0] if frozen is None else frozen.eval()(x)
                found.append((_per_sample(self.features, len(logits)).cpu(), logits.cpu(), other.cpu(), y.cpu()))
        if not found:
            raise UserError("no batches were given: a monitor is fitted to labelled data without shift")
        features, logits, others, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
        return features, logits, others, labels

    def remove(self) -> None:
        """Leave the network as it was."""
        self._handle.remove()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Watched(nn.Module):
    """A network or method with a monitor beside it: ``forward`` predicts, observes and obeys the policies.

    ``reading`` is the last one; ``on_source`` says that the frozen network predicts, until the next change of domain.
    """

    def __init__(self, monitor: Monitor, model: nn.Module, frozen: nn.Module | None, layer: str) -> None:
        super().__init__()
        wanted = {event: monitor.reaction(event) for event in EVENTS}
        if frozen is None and "source" in wanted.values():
            raise UserError("a policy is 'source', and no frozen network is given: pass frozen=, a copy of the source")
        if "reset" in wanted.values() and not hasattr(model, "reset"):
            raise UserError(f"a policy is 'reset', and {type(model).__name__} has no reset(): use 'warn' or 'source'")
        if monitor.without_drift == "predict" and not hasattr(model, "predict"):
            raise UserError(f"without_drift = 'predict', and {type(model).__name__} has no predict(): use 'adapt'")
        self.monitor, self.model, self.frozen = monitor, model, frozen
        self.on_source = False
        self.reading: Reading | None = None
        self._batches = 0
        self._taps = [Tap(model, layer), *([Tap(frozen, layer)] if frozen is not None else [])]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        frozen = None
        if self.frozen is not None and (self.on_source or self._batches % self.monitor.frozen_every == 0):
            with torch.no_grad():
                frozen = self.frozen.eval()(x)
        self._batches += 1
        if self.on_source:
            logits, tap = frozen, self._taps[1]
        else:
            idle = self.monitor.without_drift == "predict" and self.monitor.seen > 0 and not self.monitor.drifted
            logits, tap = (self.model.predict(x) if idle else self.model(x)), self._taps[0]
        self.reading = self.monitor.observe(logits, tap.features, frozen)
        self._react(self.reading)
        return logits

    def get_extra_state(self) -> dict[str, Any]:
        """Return the monitor's state and that of the policies, for ``state_dict``."""
        return {"monitor": self.monitor.state_dict(), "on_source": self.on_source, "batches": self._batches}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken."""
        self.monitor.load_state_dict(state["monitor"])
        self.on_source, self._batches = state["on_source"], state["batches"]

    def _react(self, reading: Reading) -> None:
        """Reset or fall back as the policies say; a new domain ends a fall-back."""
        if "change" in reading.events:
            self.on_source = False
        reactions = {self.monitor.reaction(event) for event in reading.events}
        if not reactions & {"reset", "source"}:
            return
        if hasattr(self.model, "reset"):
            self.model.reset()
        self.on_source = "source" in reactions
        self.monitor.restart()
