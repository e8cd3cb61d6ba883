"""Domains of a stream, one after the other or mixed, told apart by the signatures of their images."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tta_cattan.alignment.modes import drift, gain_of_two, k_means
from tta_cattan.alignment.recolouring import Moments
from tta_cattan.util.state import stateful

FEWEST = 4  # images needed for a domain's maps, and for a spread
# A domain with at least `_SETTLED` images is updated only by every `_EVERY`-th batch.
_SETTLED, _EVERY = 512, 4
_REFRESH = 1 / 16  # share of new images at which the maps are recomputed
_WINDOW = 16  # images; smaller batches are pooled with the preceding ones up to this number
_JUMP = 4.0  # distance at which this pooling starts over
_SEEN = 512  # last images, which show whether domains come mixed
_BLOCKS, _DRIFT = 8, 2.0  # blocks of these images; how much more than by chance their means may vary in a mixture
_TWO = 0.15  # nats per image by which two modes have to be likelier than one
_KINDS = 6  # most domains that a mixture is split into
_MIXED = 3.0  # squared Mahalanobis distance that known domains must save per image for a batch to be mixed
PREDICTIONS, LAST = 500.0, 128.0  # memory of the class frequencies, in predictions: per domain, and across domains


@dataclass(frozen=True)
class Rules:
    """How domains are told apart, and what the current batch may change.

    Signatures are whitened: the source's images have mean 0 and unit covariance, ``fitted`` to images or guessed.
    """

    fitted: bool
    near: float  # distance up to which a batch belongs to the source
    far: float  # distance beyond which an image is invalid
    slots: int  # most domains that are kept
    memory: float  # images that a domain's running moments cover
    skew: float  # of the last predicted classes
    adapting: bool
    whole: bool  # whether all images belong to one domain


@stateful
@dataclass(eq=False)  # == of tensors is not a single bool
class Seen:
    """Signatures of the last images, and how many came since they were last tested for a mixture."""

    signatures: Tensor | None = None
    untested: int = 0

    def add(self, found: Tensor) -> None:
        """Add the signatures of a batch."""
        known = found if self.signatures is None else torch.cat([self.signatures, found])
        self.signatures, self.untested = known[-_SEEN:].clone(), self.untested + len(found)

    def kinds(self, most: int) -> list[Tensor]:
        """Cluster the signatures into at most ``most`` kinds if the images come mixed; otherwise return an empty list.

        Note: if domains follow each other, the images drift.
        """
        if self.signatures is None or len(self.signatures) < _SEEN or self.untested < _SEEN // 2:
            return []
        self.untested = 0
        if drift(self.signatures, _SEEN // _BLOCKS) > _DRIFT or gain_of_two(self.signatures) <= _TWO:
            return []
        cluster = k_means(self.signatures, most)
        found = [self.signatures[cluster == number] for number in range(most)]
        return [kind for kind in found if len(kind) >= FEWEST]


@stateful
@dataclass(eq=False)  # == of tensors is not a single bool
class Domain:
    """One target domain: its signature, its moments at each layer, and the maps computed from them.

    A map is ``(T, b)`` of ``x -> x T + b``, or the mean and variance to normalise with.
    """

    signature: Tensor
    signature_count: float
    spread: float  # mean distance of one of its images from its signature
    last: int = 0  # clock at its last batch
    count: float = 0.0  # images in its moments
    batches: int = 0
    fresh: float = 0.0  # images in its moments since its maps were computed
    frequencies: Tensor | None = None  # of the predicted classes, as decaying sums
    moments: dict[str, Moments] = field(default_factory=dict)
    maps: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    mixed: bool = False  # whether its images come mixed with those of other domains

    def moved(self, signature: Tensor, n: float, spread: float, memory: float) -> None:
        """Update the signature and spread with those of ``n`` images."""
        self.signature_count = min(self.signature_count + n, memory)
        share = min(1.0, n / self.signature_count)
        self.signature = torch.lerp(self.signature, signature, share)
        self.spread += share * (spread - self.spread)

    def plan(self, images: float, clock: int, whole: bool, memory: float) -> tuple[float, bool]:
        """Return the weight of ``images`` new ones in the moments (0: skip them), and whether to recompute the maps."""
        self.last = clock
        self.batches += 1
        if not (whole or self.count < _SETTLED or self.batches % _EVERY == 0):
            return 0.0, False
        self.count = self.count + images if whole else min(self.count + images, memory)
        self.fresh += images
        again = self.fresh >= _REFRESH * self.count
        self.fresh = 0.0 if again else self.fresh
        return min(1.0, images / self.count), again


@dataclass(eq=False)
class Part:
    """The images of a batch that belong to one domain (None: the source), and how they update it.

    ``rows`` are their indices in the batch (None: all); ``kept`` is a mask of the valid ones (None: all).
    """

    domain: Domain | None = None
    rows: Tensor | None = None
    kept: Tensor | None = None
    usable: bool = True
    share: float = 0.0  # weight of the new images in the domain's moments; 0: no update
    maps: bool = False  # whether to recompute the domain's maps

    def of(self, x: Tensor, views: int = 1) -> Tensor:
        """Return the part's valid rows of ``x``, which has ``views`` rows per image."""
        x = self.all_of(x, views)
        return x if self.kept is None else x[self.kept.repeat(views)]

    def all_of(self, x: Tensor, views: int) -> Tensor:
        """Return the part's rows of ``x``."""
        return x if self.rows is None else x[self.places(len(x), views)]

    def places(self, n: int, views: int) -> Tensor:
        """Return the part's indices among ``n`` rows."""
        assert self.rows is not None
        return torch.cat([self.rows + view * (n // views) for view in range(views)])


@stateful
@dataclass
class Domains:
    """The domains seen so far by the signatures of one layer, and the current one (-1: the source)."""

    domains: list[Domain] = field(default_factory=list)
    current: int = -1
    clock: int = 0
    recent: Tensor | None = None  # mean signature of the last small batches
    recent_count: float = 0.0
    seen: Seen = field(default_factory=Seen)  # across domains

    @property
    def domain(self) -> Domain | None:
        """The current domain; None for the source."""
        return self.domains[self.current] if self.current >= 0 else None

    def sort(self, found: Tensor, finite: Tensor | None, rules: Rules) -> list[Part]:
        """Split a batch by domain (known, new or the source), from the signatures ``found`` of its images.

        ``finite`` is a mask of the images without NaN or Inf (None: all).
        """
        usable = distance(found) <= rules.far  # False for NaN
        usable = usable if finite is None else usable & finite
        found = found[usable]
        if not len(found):
            return [Part(usable=False)]
        if rules.adapting:
            self.clock += 1
        parts = self._several(found, usable, rules) or [self._one(found, usable, rules)]
        # With a guessed spread, clean images would be taken for part of a mixture.
        if rules.adapting and rules.fitted and not rules.whole and len(found) >= _WINDOW:
            self.seen.add(found)
            known = any(domain.mixed for domain in self.domains)
            if not known and (kinds := self.seen.kinds(min(_KINDS, rules.slots))):
                self._split(kinds, rules)
        return parts

    def _one(self, found: Tensor, usable: Tensor, rules: Rules) -> Part:
        """Assign the batch as a whole to one domain, known or new, or to the source."""
        n, signature = float(len(found)), found.mean(0)
        if n < _WINDOW:
            signature, n = self._smoothed(signature, n, rules)
        elif rules.adapting:
            self.recent, self.recent_count = signature, float(_WINDOW)
        from_source = float(distance(signature)) - 1 / n
        distances = [
            float(distance(signature, domain.signature)) - 1 / n - 1 / domain.signature_count for domain in self.domains
        ]
        place = min(range(len(distances)), key=distances.__getitem__, default=-1)
        near = rules.near + 0.5 / n
        if not rules.fitted:  # to an unfitted signature, a single class looks like another domain
            near += 0.5 * rules.skew
        # With too few images the spread is unknown: the distance from the source alone decides.
        spread = float(distance(found, signature).mean()) if len(found) >= FEWEST else from_source
        if rules.whole:
            place = 0 if self.domains else self._begin(signature, n, spread, rules) if rules.adapting else -1
        elif from_source <= near:
            place = -1
        elif place < 0 or distances[place] > _reach(self.domains[place], from_source, rules):
            place = self._begin(signature, n, spread, rules) if rules.adapting else -1
        elif rules.adapting:
            self.domains[place].moved(signature, n, spread, rules.memory)
        domain = self.domains[place] if place >= 0 else None
        return self._planned(domain, len(found), rules, kept=None if usable.all() else usable)

    def _several(self, found: Tensor, usable: Tensor, rules: Rules) -> list[Part]:
        """Assign each image to the nearest of the mixed domains; return an empty list if one mean describes the batch.

        Note: the images of a mixed batch are far from its mean, but each is near one of the domains.
        """
        n, known = len(found), [domain for domain in self.domains if domain.mixed]
        if n < _WINDOW or len(known) < 2:
            return []
        nearest = torch.stack([distance(found, domain.signature) for domain in known], 1).min(1)
        own = distance(found, found.mean(0)) * (n / (n - 1))
        if float((own - nearest.values).mean()) * found.shape[1] <= _MIXED:
            return []
        rows, parts = usable.nonzero().flatten(), []
        for number, domain in enumerate(known):
            here = nearest.indices == number
            if not here.any():
                continue
            if rules.adapting:
                mean = found[here].mean(0)
                spread = float(distance(found[here], mean).mean()) if here.sum() >= FEWEST else domain.spread
                domain.moved(mean, float(here.sum()), spread, rules.memory)
            parts.append(self._planned(domain, int(here.sum()), rules, rows=rows[here]))
        if not usable.all():
            parts.append(Part(rows=(~usable).nonzero().flatten(), usable=False))
        return parts

    def _planned(self, domain: Domain | None, images: int, rules: Rules, **which: Any) -> Part:
        """Return the images of a domain (None: the source) as a part, and decide how they update the domain."""
        part = Part(domain, **which)
        if rules.adapting:
            self.current = -1 if domain is None else self.domains.index(domain)
            if domain is not None:
                part.share, part.maps = domain.plan(images, self.clock, rules.whole, rules.memory)
        return part

    def _smoothed(self, signature: Tensor, n: float, rules: Rules) -> tuple[Tensor, float]:
        """Return the mean signature of the last 16 images, or of those since its last jump, and their number."""
        before, recent, count = self.recent_count, signature, n
        if self.recent is not None and distance(signature, self.recent) <= _JUMP * (1 + 1 / n + 1 / before):
            count = min(before + n, float(_WINDOW))
            recent = torch.lerp(self.recent, signature, n / count)
        if rules.adapting:
            self.recent, self.recent_count = recent, count
        return recent, count

    def _begin(self, signature: Tensor, n: float, spread: float, rules: Rules) -> int:
        """Add a new domain, in place of the one unseen for longest if no slot is free; return its index."""
        if len(self.domains) >= rules.slots:
            self.domains.remove(min(self.domains, key=lambda domain: domain.last))
        self.domains.append(Domain(signature.clone(), n, spread))
        return len(self.domains) - 1

    def _split(self, kinds: list[Tensor], rules: Rules) -> None:
        """Replace the current domain with one per kind of images, which start from its moments."""
        whole, made = self.domain, []
        for kind in kinds:
            mean = kind.mean(0)
            spread = float(distance(kind, mean).mean())
            made.append(Domain(mean, float(len(kind)), spread, self.clock, mixed=True))
            if whole is not None:
                made[-1].count, made[-1].maps = float(_WINDOW), dict(whole.maps)
                made[-1].moments = copy.deepcopy(whole.moments)
        if all(float(distance(domain.signature)) <= rules.near for domain in made):
            return  # several kinds of source images
        others = sorted((d for d in self.domains if d is not whole), key=lambda domain: domain.last)
        others = others[max(0, len(others) + len(made) - rules.slots) :]
        self.domains, self.current = [*others, *made], len(others)


def _reach(domain: Domain, from_source: float, rules: Rules) -> float:
    """Return the distance up to which a batch, ``from_source`` away from the source, belongs to a domain.

    Note: if all domains are far from the source, half that distance is too much: their own spread decides.
    """
    return max(rules.near, 0.5 * min(from_source, domain.spread))


def distance(signature: Tensor, other: Tensor | float = 0.0) -> Tensor:
    """Return the mean squared difference of whitened signatures (... x k); without ``other``, from the source."""
    return (signature - other).square().mean(-1)


def decayed(past: Tensor | None, found: Tensor, memory: float) -> Tensor:
    """Return decaying sums of predictions (n x K) with a memory of about ``memory`` samples."""
    return found.sum(0) if past is None else past * max(0.0, 1 - len(found) / memory) + found.sum(0)


def skew_of(frequencies: Tensor | None) -> float:
    """Return how far frequencies are from uniform, beyond chance: 0 if uniform, about 1 for a single class."""
    if frequencies is None:
        return 0.0
    total, classes = float(frequencies.sum()), len(frequencies)
    share = frequencies / total
    return max(0.0, float((share - 1 / classes).square().sum()) / (1 - 1 / max(classes, 2)) - 1 / total)
