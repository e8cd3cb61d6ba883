"""CATTAn-F: adaptation without a backward pass, from running moments and closed forms."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils.hooks import RemovableHandle

from tta_cattan.alignment.domains import (
    FEWEST,
    LAST,
    PREDICTIONS,
    Domain,
    Domains,
    Part,
    Rules,
    decayed,
    skew_of,
)
from tta_cattan.alignment.recolouring import (
    Moments,
    Signature,
    feature_signatures,
    matrix_power,
    projected,
    recolouring,
    sampled,
    sampling,
    shift_weight,
    signatures,
    with_ridge,
)
from tta_cattan.alignment.source_moments import SourceMoments
from tta_cattan.alignment.subspace import require_model
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod, Batches
from tta_cattan.methods.safety import all_finite
from tta_cattan.methods.target import Target
from tta_cattan.network.batch_norms import (
    LINEAR_MAPS,
    Uses,
    batch_norms,
    joint_map,
    normalized,
    own_forward,
    replaced_forward,
    sizes_behind,
)
from tta_cattan.network.layers import compose_linear, find_layer, hooked, replace_module
from tta_cattan.network.normalization import StreamStatistics
from tta_cattan.network.ownership import plain_copy
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_tensors
from tta_cattan.util.keys import NOT_EMPTY, above, at_least, key
from tta_cattan.util.state import stateful

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

_MAKE_SOME = "Make some for this one with `tta-cattan fit-source`"

Colours = dict[str, tuple[Tensor, Tensor, Tensor]]


@stateful
@dataclass
class ForwardTarget(Target):
    """The domains seen so far, and what folding and updates of ``Phi`` need."""

    first: Domains = field(default_factory=Domains)  # by the signatures of the first layer
    second: Domains = field(default_factory=Domains)  # by those of a deeper one, among what the first calls source
    frequencies: Tensor | None = None  # of the last predicted classes, across domains
    producers: dict[str, str] | None = None  # by BatchNorm, the layer that feeds it alone; None: no batch yet
    consumer: str = ""  # the linear layer directly behind the projection
    phi: Tensor | None = None  # of the projection, if it is updated; None: the identity
    warned: bool = False  # whether a batch whose images are all beyond FAR was reported

    @property
    def domains(self) -> list[Domain]:
        """All domains."""
        return self.first.domains + self.second.domains

    @property
    def domain(self) -> Domain | None:
        """The current domain; None for the source."""
        return self.first.domain or self.second.domain

    def predicted(self, domain: Domain | None, logits: Tensor) -> None:
        """Add predictions to the class frequencies, the domain's and those across domains."""
        found = logits.float().softmax(1)
        if torch.isfinite(found).all():
            self.frequencies = decayed(self.frequencies, found, LAST)
            if domain is not None:
                domain.frequencies = decayed(domain.frequencies, found, PREDICTIONS)

    def skew(self, domain: Domain | None) -> float:
        """Return the class skew of a domain or, before its first predictions, that across domains."""
        known = None if domain is None else domain.frequencies
        return skew_of(self.frequencies if known is None else known)


@ADAPTATION_REGISTRY.register("cattan_forward")
class CATTAnForward(AdaptationMethod):
    """Give the input of every BatchNorm the source's moments in closed form: no gradient, no learning rate.

    ``x -> x T + b`` with ``T = (V + r I)^-1/2 (C + r' I)^1/2`` whitens with the target's covariance and colours with
    the source's. How far a layer is aligned grows with the target's divergence from the source, beyond what chance and
    class frequencies explain. Moments are kept per domain, for at most ``slots`` domains told apart by the first
    layer's statistics; a batch that looks like the source passes through the source model unchanged.

    Layers of more than ``channels`` channels, where a covariance is expensive, align means and variances only. So do
    all layers without ``source_moments`` (``fit_source_moments``), using only the model's running statistics.

    If ``layer`` is set, its output is projected onto the ``d`` main directions of the source's:
    ``z -> m_s + (z - m_s) W_s W_s^T``.
    """

    title = "CATTAn-F"
    node = "CATTAN_FORWARD"
    adapts = False  # no parameter is updated
    source_argument = "source_moments"

    channels: int = key(
        128, "most channels of a layer with a full covariance; 0 = means and variances only", at_least(0)
    )
    slots: int = key(8, "domains that are remembered; the one not met for longest makes room", at_least(1))
    memory: int = key(1000, "images that the moments of a domain remember", at_least(1))
    near: float = key(0.1, "distance of signatures up to which a batch is of the source", at_least(0))
    far: float = key(1e3, "distance of signatures beyond which an image is predicted but not learnt from", above(0))
    scale: float = key(0.02, "divergence from the source at which a layer goes halfway to the target", above(0))
    skew: float = key(10.0, "weight of unequal class frequencies as the cause of a shift", at_least(0))
    layer: str = key("", "module whose output is projected onto the source's subspace; '' = none")
    d: int = key(256, "directions of that subspace, at most", at_least(1))
    source_moments: str = key(
        "auto",
        "'auto' = the file in CKPT_DIR, fitted and cached where the benchmark has source data; 'none' = the model's "
        "running statistics, no source data; otherwise a file",
        NOT_EMPTY,
        role="weights",
        config_only=True,
    )

    target_type = ForwardTarget
    target: ForwardTarget

    def __init__(self, model: nn.Module, *, source_moments: SourceMoments | None = None, **options: Any) -> None:
        """Wrap ``model``; without ``source_moments`` no source data is needed."""
        if "source_subspace" in options:
            raise UserError(f"{self.title} takes source_moments=fit_source_moments(net, loader), not a source_subspace")
        super().__init__(model, source_subspace=source_moments, **options)

    @classmethod
    def needs_source_subspace(cls, cfg: CfgNode) -> bool:
        """Return whether the config asks for moments of source data."""
        return cls.value_in(cfg, "source_moments") != "none"

    @classmethod
    def source_in(cls, cfg: CfgNode, given: SourceMoments | None) -> SourceMoments | None:
        """Return the given source moments or those that a config names; None means the model's running statistics."""
        choice = cls.value_in(cfg, "source_moments")
        if given is not None or choice == "none":
            return given
        if choice == "auto":
            logger.warning(
                "%s has no moments of source data: running statistics stand in, which align less. Set "
                "%s.SOURCE_MOMENTS to a file of `tta-cattan fit-source`, or to 'none' to say so",
                cls.title, cls.node,
            )  # fmt: skip
            return None
        return SourceMoments.load(choice)

    def inspect(self, model: nn.Module) -> None:
        """Find the BatchNorm layers and reject moments of another network."""
        super().inspect(model)
        self.statistics = "source"  # the layers keep their own; their inputs are mapped instead
        layers = batch_norms(model)
        if not layers:
            raise UserError(
                f"{type(model).__name__} has no BatchNorm with running statistics, and {self.title} aligns nothing "
                "else: choose another method (MODEL.ADAPTATION tent, cattan)"
            )
        given = self.source_subspace
        if given is not None and not isinstance(given, SourceMoments):
            raise UserError(
                f"source_moments is {type(given).__name__} {str(given)[:60]!r}: give SourceMoments, from "
                "fit_source_moments(model, loader) or SourceMoments.load(file)"
            )
        require_model("moments", {} if given is None else given.provenance, model)
        means: Mapping[str, Tensor] = {} if given is None else given.mean
        for name, mean in means.items():
            if name not in layers or layers[name].num_features != len(mean):
                raise UserError(
                    f"the source moments have {len(mean)} channels at the layer {name!r}, which "
                    f"{type(model).__name__} has not: they were made for another model. {_MAKE_SOME}"
                )
        deeper = None if given is None else given.second
        if deeper is not None and (
            deeper.layer not in layers or len(deeper.mean) not in (n := layers[deeper.layer].num_features, 2 * n)
        ):
            raise UserError(
                f"the source moments have a signature of the layer {deeper.layer!r} with {len(deeper.mean)} numbers, "
                f"which {type(model).__name__} does not give: they were made for another model. {_MAKE_SOME}"
            )
        # Without source data: a typical value, the divergence of one class at most layers of CIFAR's ResNet-20.
        self.class_shifts: Mapping[str, float] = dict.fromkeys(layers, 0.02) if given is None else given.classes
        if self.layer:
            find_layer(model, self.layer)
        self.source = None if given is None else given.to(next(iter(layers.values())).running_mean.device)
        self.colours: Colours = {} if self.source is None else self._colours(self.source)
        self.subspace = self._subspace() if self.layer else None

    def _apply(self, *args: Any, **options: Any) -> CATTAnForward:
        """Move the source moments to another device with the model."""
        super()._apply(*args, **options)
        device = self.device
        if self.source is not None and device is not None and self.source.first.mean.device != device:
            self.source = self.source.to(device)
            self.colours = {n: (m.to(device), c.to(device), r.to(device)) for n, (m, c, r) in self.colours.items()}
            self.subspace = self._subspace() if self.layer else None
        return self

    def _subspace(self) -> tuple[Tensor, Tensor]:
        """Return the source's basis and mean at ``layer``; raise an error if the moments lack them."""
        known = None if self.source is None else self.source.subspace
        if known is None or known.mean is None or known.layer != self.layer:
            held = "none" if known is None else f"that of {known.layer!r}"
            raise UserError(
                f"{self.title} needs the source's subspace at layer {self.layer!r}, and the moments hold {held}: "
                f"make them with fit_source_moments(model, batches, layer={self.layer!r}) or `tta-cattan fit-source`, "
                f"or set {self.node}.LAYER '' (layer='')"
            )
        return known.basis, known.mean

    def _colours(self, source: SourceMoments) -> Colours:
        """Return ``m_s``, ``C`` and ``(C + r' I)^1/2`` of the layers that have a full covariance."""
        few = {name: cov for name, cov in source.cov.items() if len(cov) <= self.channels}
        return {name: (source.mean[name], cov, matrix_power(with_ridge(cov), 0.5)) for name, cov in few.items()}

    @torch.no_grad()
    def prepare(self, batches: Batches) -> None:
        """Compute the moments of the whole target set as one domain (offline protocol)."""
        with self.whole_target(batches) as inputs:
            for x in inputs:
                self.infer(x, adapting=True)

    @contextmanager
    def whole_target(self, batches: Batches) -> Iterator[Iterator[Tensor]]:
        """Start a target that is one domain and yield its inputs; drop it if there are none or the block fails."""
        read = 0

        def inputs() -> Iterator[Tensor]:
            nonlocal read
            for _, x in batches:
                read += 1
                yield x

        self.begin_target(known=True)
        try:
            yield inputs()
            if not read:
                raise UserError("no batches were given: the moments of a target need its images")
        except BaseException:
            self.begin_target()
            raise

    @torch.no_grad()
    def forward_and_adapt(self, x: Tensor, indices: Tensor | None = None, again: bool = False) -> Tensor:
        """Update the moments with a batch, then predict it; a repeated batch or a paused model updates nothing."""
        return self.infer(x, adapting=not self._pauses and not again)

    def infer(self, x: Tensor, adapting: bool) -> Tensor:
        """Run the aligned model and, when adapting, record the predicted classes.

        Note: images do not interact in the network, so one that holds NaN or Inf corrupts only its own logits.
        """
        finite = None if all_finite(x) else torch.isfinite(x).flatten(1).all(1)
        if adapting and finite is not None and not finite.all():
            self.safety.leave_out()
        passing, logits = self._passed(x, adapting, finite)
        if passing.new:
            # How far a domain is aligned depends on how unusual its mix of classes is. Aligned features look like all
            # of the source's classes: for a new domain, only the source model's predictions, which these are, can tell.
            new = [(part.domain, part) for part in passing.new if part.domain is not None]
            for domain, part in new:
                domain.frequencies = part.of(logits).float().softmax(1).sum(0)
            passing, logits = self._passed(x, adapting, finite, passing.chosen)
            for domain, _ in new:
                domain.frequencies = None
        if adapting and finite is None and not self.target.warned and not any(part.usable for part in passing.parts):
            self.target.warned = True
            logger.warning(
                "all images of a batch are farther from the source's than %s.FAR = %g: nothing is learnt from them; "
                "are they scaled as the source images were?",
                self.node, self.far,
            )  # fmt: skip
        for part in passing.parts if adapting else ():
            if part.usable:
                self.target.predicted(part.domain, part.of(logits))
        return logits

    def _passed(
        self, x: Tensor, adapting: bool, finite: Tensor | None, chosen: Sequence[list[Part]] = ()
    ) -> tuple[_Pass, Tensor]:
        """Run the network once; ``chosen`` are the parts of the batch, if an earlier pass has found them."""
        passing = _Pass(self, adapting, finite, chosen)
        with ExitStack() as stack:
            stack.enter_context(replaced_forward(batch_norms(self.model), passing.forward))
            stack.enter_context(replaced_forward(self._convolutions(), passing.convolve))
            stack.enter_context(hooked(passing.hooks(self.model, self.layer)))
            if passing.uses is not None:
                stack.enter_context(passing.uses)
            logits = super().infer(x, adapting)
        if passing.uses is not None:
            self.target.producers = passing.uses.producers()
        return passing, logits

    def _convolutions(self) -> dict[str, _ConvNd]:
        """Return the ungrouped convolution that feeds each BatchNorm and nothing else, by the BatchNorm's name."""
        if self.mixed_precision or not self.target.producers or torch.is_grad_enabled():
            return {}
        found = {name: self.model.get_submodule(producer) for name, producer in self.target.producers.items()}
        return {
            name: conv
            for name, conv in found.items()
            if isinstance(conv, _ConvNd) and conv.groups == 1 and not self._is_watched(name, conv)
        }

    def _is_watched(self, name: str, conv: _ConvNd) -> bool:
        """Return whether a hook observes the tensor between a convolution and the BatchNorm ``name``."""
        return bool(conv._forward_hooks or self.model.get_submodule(name)._forward_pre_hooks)

    def merged(self, name: str, conv: _ConvNd, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight and bias of a convolution merged with the map and the BatchNorm ``name`` behind it.

        Note: cached until the map or the BatchNorm changes; that is what makes it cheaper than applying the map.
        """
        kept, layer = self._merged.get(name), self.model.get_submodule(name)
        state = [conv.weight.dtype, *((id(param), param._version) for param in layer.parameters())]
        if kept is None or kept[0] is not first or kept[1] != state:
            weight, bias = joint_map(layer, first, second)
            joint = (weight.to(conv.weight) @ conv.weight.flatten(1)).view_as(conv.weight)
            shift = bias if conv.bias is None else bias + weight @ conv.bias.to(weight)
            kept = self._merged[name] = first, state, joint, shift.to(joint)
        return kept[2:]

    def begin_target(self, known: Any = None) -> None:
        """Start a target without any domain."""
        self._merged: dict[str, tuple[Tensor, list[Any], Tensor, Tensor]] = {}  # map, affines, weight, bias
        super().begin_target(known)

    def signature_of(self, layer: Any, size: int) -> Signature:
        """Return the source's signature at the first layer, which has ``size`` entries there."""
        if self.source is None:
            return Signature.guessed(layer, size)
        if len(self.source.first.mean) != size:
            raise UserError(
                f"the source moments have a signature of {len(self.source.first.mean)} numbers, and the first layer "
                f"gives {size}: they were made for another model. {_MAKE_SOME}"
            )
        return self.source.first

    def state_identity(self) -> dict[str, Any]:
        """Add the layer that is projected and the hash of the source moments."""
        return {**super().state_identity(), "layer": self.layer, "source_moments": self._moments_hash}

    @cached_property
    def _moments_hash(self) -> str:
        return "none" if self.source is None else sha256_tensors(self.source.tensors())

    def describe(self) -> dict[str, Any]:
        """Add the number of domains and the origin of the source moments."""
        known = "running statistics" if self.source is None else "data"
        return {**super().describe(), "domains": len(self.target.domains), "source_moments": known}

    @property
    def unfoldable(self) -> str:
        """Why ``fold`` would fail, known after a batch: no layer to fold a map or the projection into."""
        known = self.target.producers
        if known is None:
            return super().unfoldable
        for name in self.colours:
            feeding = None if name not in known else self.model.get_submodule(known[name])
            if feeding is None or getattr(feeding, "groups", 1) != 1 or "weight" not in feeding._parameters:
                return (
                    f"no ungrouped convolution or linear layer feeds {name!r} directly, with a weight of its own, and "
                    f"nothing else; set {self.node}.CHANNELS 0 (channels=0) for a model that can"
                )
        if self.subspace is not None and not self.target.consumer:
            return (
                f"no linear layer takes the output of {self.layer!r} directly; set {self.node}.LAYER '' (layer='') "
                "for a model that can"
            )
        return super().unfoldable

    def plain_network(self) -> nn.Module:
        """Return a plain copy of the source architecture, aligned for the current domain.

        ``T`` is folded into the convolution directly before a BatchNorm and ``b`` into its running mean. Without such
        a convolution, only means and variances can be folded (``channels=0``).
        """
        plain, domain = plain_copy(self.model, StreamStatistics()), self.target.domain
        maps, producers = {} if domain is None else domain.maps, self.target.producers or {}
        if domain is not None and self.subspace is not None:
            plain = self._folded_projection(plain, *self.subspace)
        for name, (first, second) in maps.items():
            layer = plain.get_submodule(name)
            if first.ndim == 1:
                layer.running_mean.copy_(first)
                layer.running_var.copy_(second)
                continue
            producer = plain.get_submodule(producers[name])
            weight = producer.weight
            weight.copy_((first.T.to(weight) @ weight.flatten(1)).view_as(weight))
            if producer.bias is not None:
                producer.bias.copy_(producer.bias @ first.to(weight))
            layer.running_mean.sub_(second.to(layer.running_mean))
        return plain

    def _folded_projection(self, plain: nn.Module, basis: Tensor, mean: Tensor) -> nn.Module:
        """Return the network with the projection folded into the linear layer behind it."""
        behind = self.target.consumer
        basis, phi = basis[:, : self.d], self.target.phi
        weight = (basis if phi is None else basis @ phi.T) @ basis.T
        linear = compose_linear(plain.get_submodule(behind), weight, mean - weight @ mean)
        return replace_module(plain, behind, linear.requires_grad_(False).eval())


class _Pass:
    """One pass through the network: the first layer identifies the domain, and every layer is aligned for it."""

    def __init__(
        self, method: CATTAnForward, adapting: bool, finite: Tensor | None, chosen: Sequence[list[Part]] = ()
    ) -> None:
        self.method, self.target, self.adapting = method, method.target, adapting
        self.finite = finite  # mask of the images without NaN or Inf; None: all
        self.parts: list[Part] = []
        self.given = list(chosen)  # what an earlier pass has chosen at the first layer and, perhaps, at a deeper one
        self.chosen: list[list[Part]] = []
        self.new: list[Part] = []  # parts of domains without moments: such a pass only predicts, by the source model
        self.uses = Uses() if adapting and self.target.producers is None else None
        self.done: Tensor | None = None  # a convolution's output that already includes its BatchNorm
        self.absorbed: set[str] = set()  # the BatchNorms whose moments were updated by their convolution
        self.projection: Tensor | None = None
        self.deeper = None if method.source is None else method.source.second

    def forward(self, name: str, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Replace the forward of a BatchNorm."""
        if self.uses is None:
            return x if x is self.done else self.align(name, layer, x)
        self.uses.take(name, x)
        with torch._C.DisableTorchFunction():
            return self.align(name, layer, x)

    def align(self, name: str, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Update the moments with a layer's input, then return the layer's output for the aligned input."""
        if name not in self.absorbed:
            self.take(name, layer, x)

        def aligned(part: Part, rows: Tensor) -> Tensor:
            found = None if part.domain is None else part.domain.maps.get(name)
            return own_forward(layer)(rows) if found is None else normalized(layer, rows, *found)

        return self.by_part(aligned, x)

    def take(self, name: str, layer: _BatchNorm, x: Tensor) -> None:
        """Update the moments with a layer's input, or a part of its positions; the first one identifies the domain."""
        with torch.autocast(x.device.type, enabled=False):
            if not self.parts:
                found = signatures(x)
                self.choose(self.target.first, self.method.signature_of(layer, found.shape[1]), found)
            elif self.deeper is not None and name == self.deeper.layer and self.parts[0].domain is None:
                self.choose(self.target.second, self.deeper, signatures(x))
            for part in self.parts if not self.new else ():
                if part.domain is not None and part.share:
                    self.absorb(part.domain, part, name, layer, x)

    def by_part(self, function: Callable[[Part, Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply ``function`` to the rows of each part and return the results in the order of the batch."""
        if len(self.parts) == 1:
            return function(self.parts[0], x)
        result, views = torch.empty_like(x), self.method.views
        for part in self.parts:
            result[part.places(len(x), views)] = function(part, part.all_of(x, views)).to(x.dtype)
        return result

    def convolve(self, name: str, conv: _ConvNd, x: Tensor) -> Tensor:
        """Replace the forward of the convolution before the BatchNorm ``name``, and do the BatchNorm's work too.

        Note: the moments need the plain output, but of a large map only every s-th position, which the convolution
        gives with s times the stride. Merging does not pay off if a filter has more weights than the batch has
        positions.
        """
        sizes = sizes_behind(conv, x)
        one, layer = self.parts[0] if len(self.parts) == 1 else Part(), self.method.model.get_submodule(name)
        plain = type(layer).forward is _BatchNorm.forward
        if one.domain is None or not plain or conv.weight[0].numel() > len(x) * math.prod(sizes):
            return own_forward(conv)(x)
        if one.share:
            steps = sampling(sizes)
            if name not in self.method.colours or max(steps) == 1 or conv.padding == "same":  # which has no stride
                return own_forward(conv)(x)
            sparse = copy.copy(conv)
            sparse.stride = tuple(step * own for step, own in zip(steps, conv.stride, strict=True))
            self.take(name, layer, own_forward(sparse)(x))
            self.absorbed.add(name)
        found = one.domain.maps.get(name)
        if found is None or found[0].ndim == 1:
            return own_forward(conv)(x)
        self.done = conv._conv_forward(x, *self.method.merged(name, conv, *found))
        return self.done

    def hooks(self, model: nn.Module, layer: str) -> Iterator[RemovableHandle]:
        """Yield hooks that record where tensors come from and where the projection goes, and that project ``layer``."""
        uses = self.uses

        def note(name: str, module: nn.Module, args: Any, output: Tensor) -> None:
            assert uses is not None
            uses.given(name, output)
            if isinstance(module, nn.Linear) and args[0] is self.projection:
                self.target.consumer = name

        for name, module in model.named_modules() if uses is not None else ():
            if type(module).forward in LINEAR_MAPS:
                yield module.register_forward_hook(partial(note, name))
        if layer:
            yield model.get_submodule(layer).register_forward_hook(self.project)

    def project(self, module: nn.Module, args: Any, z: Tensor) -> Tensor:
        """Return a layer's output after the projection; if no BatchNorm came before, it identifies the domain."""
        assert self.method.source is not None and self.method.subspace is not None  # ensured by inspect
        basis, mean = self.method.subspace
        if not self.parts:
            found = feature_signatures(z, basis[:, : len(self.method.source.first.mean) - 1], mean)
            self.choose(self.target.first, self.method.source.first, found)
        basis, phi = basis[:, : self.method.d], self.target.phi
        self.projection = self.by_part(lambda part, z: z if part.domain is None else projected(z, basis, mean, phi), z)
        return self.projection

    def choose(self, domains: Domains, source: Signature, found: Tensor) -> None:
        """Assign a batch, or each of its images, to one of ``domains`` by the signatures ``found``, or start a new one.

        ``source`` is the signature of the source's images at this layer.
        """
        if self.given:
            self.parts = self.given.pop(0)
            return
        method = self.method
        rules = Rules(
            fitted=method.source is not None,
            near=method.near,
            far=method.far,
            slots=method.slots,
            memory=float(method.memory),
            skew=self.target.skew(None),
            adapting=self.adapting,
            whole=bool(self.target.known),
        )
        self.parts = domains.sort(source.coordinates(method.mean_of_views(found)), self.finite, rules)
        self.chosen.append(self.parts)
        self.new = [part for part in self.parts if part.share and part.domain is not None and not part.domain.moments]

    def absorb(self, domain: Domain, part: Part, name: str, layer: _BatchNorm, x: Tensor) -> None:
        """Update a layer's moments with a part of a batch and, if it is due, the layer's map."""
        rows = sampled(part.of(x, self.method.views))
        moments = domain.moments.get(name)
        if moments is None:
            moments = Moments.zeros(layer.num_features, name in self.method.colours, x.device)
            if moments.absorb(rows, 1.0):
                domain.moments[name] = moments
        else:
            moments.absorb(rows, part.share)
        if part.maps and name in domain.moments and domain.count >= FEWEST:
            self.map(domain, name, layer, moments)

    def map(self, domain: Domain, name: str, layer: _BatchNorm, moments: Moments) -> None:
        """Compute a layer's map from its moments; a layer without a shift needs none."""
        method = self.method
        mean, var = layer.running_mean.float(), layer.running_var.float()
        composition = method.skew * self.target.skew(domain) * method.class_shifts.get(name, 0.0)
        weight = shift_weight(moments, mean, var + layer.eps, domain.count, composition, method.scale)
        if not weight > 0:
            domain.maps.pop(name, None)
        elif name in method.colours:
            domain.maps[name] = recolouring(moments, *method.colours[name], weight, domain.count)
        else:
            domain.maps[name] = torch.lerp(mean, moments.mean, weight), torch.lerp(var, moments.var, weight)
