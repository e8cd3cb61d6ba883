"""Domains that follow each other or come mixed, told apart by the signatures of their images."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tta_cattan.alignment.modes import drift, gain_of_two, k_means
from tta_cattan.alignment.recolouring import Moments, matrix_power
from tta_cattan.util.state import stateful

FEWEST = 4  # images of a domain before anything is done about it
# A domain that is known from so many images absorbs only every so many-th batch.
_SETTLED, _EVERY = 512, 4
_REFRESH = 1 / 16  # share of new images at which the maps are computed again
_WINDOW = 16  # images that smaller batches are judged by
_JUMP = 4.0  # distance at which the window begins anew
_SEEN = 512  # images by which a stream is judged: are its domains mixed?
_BLOCKS, _DRIFT = 8, 2.0  # of these images, and how much more than by chance the blocks may differ in a mixture
_TWO = 0.15  # nats per image by which two modes have to be likelier than one
_KINDS = 6  # domains that a mixture is taken apart into
_MIXED = 3.0  # squared distance, in units of the source's spread, that known domains save the images of a mixed batch
_PREDICTIONS, _LAST = 500.0, 128.0  # that the class frequencies of a domain remember, and those across domains


@dataclass(frozen=True)
class Rules:
    """How domains are told apart, and what the present batch may change.

    ``centre`` (p) and ``precision`` (p x p) are those of the source's signatures: ``fitted`` to images, or guessed.
    """

    centre: Tensor
    precision: Tensor
    fitted: bool
    near: float  # distance up to which a batch is of the source
    far: float  # distance beyond which an image is rubbish
    slots: int  # domains that are remembered
    memory: float  # images that a domain remembers
    adapting: bool
    whole: bool  # whether all images are of one domain

    def distance(self, signature: Tensor, other: Tensor) -> Tensor:
        """Return the squared distance of signatures (... x p), in units of the source's spread."""
        difference = signature - other
        return ((difference @ self.precision) * difference).sum(-1) / len(self.centre)


@stateful
@dataclass(eq=False)  # tensors have no one truth
class Seen:
    """Signatures of the last images, and how many came since they were last looked at for two modes."""

    signatures: Tensor | None = None
    untested: int = 0

    def add(self, found: Tensor) -> None:
        """Take in the signatures of a batch."""
        known = found if self.signatures is None else torch.cat([self.signatures, found])
        self.signatures, self.untested = known[-_SEEN:].clone(), self.untested + len(found)

    def kinds(self, precision: Tensor, most: int) -> list[Tensor]:
        """Return the signatures of each kind of images, where at least two and at most ``most`` come by turns.

        ``precision`` is that of the source's signatures. Note: where domains follow each other, the images drift.
        """
        if self.signatures is None or len(self.signatures) < _SEEN or self.untested < _SEEN // 2:
            return []
        self.untested = 0
        scaled = self.signatures @ matrix_power(precision, 0.5)
        if drift(scaled, _SEEN // _BLOCKS) > _DRIFT or gain_of_two(scaled) <= _TWO:
            return []
        cluster = k_means(scaled, most)
        found = [self.signatures[cluster == number] for number in range(most)]
        return [kind for kind in found if len(kind) >= FEWEST]


@stateful
@dataclass(eq=False)  # tensors have no one truth
class Domain:
    """One target domain: its signature, its moments at each layer, and the maps that were made of them.

    A map is ``(T, b)`` of ``x -> x T + b``, or mean and variance to normalise by.
    """

    signature: Tensor
    signature_count: float
    spread: float  # mean distance of one of its images from its signature
    last: int = 0  # when it was met last
    count: float = 0.0  # images in its moments
    batches: int = 0
    fresh: float = 0.0  # images in its moments that its maps do not know
    frequencies: Tensor | None = None  # of the predicted classes, decaying sums
    moments: dict[str, Moments] = field(default_factory=dict)
    maps: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    mixed: bool = False  # whether its images come mixed with those of others

    def moved(self, signature: Tensor, n: float, spread: float, memory: float) -> None:
        """Move signature and spread by those of ``n`` images."""
        self.signature_count = min(self.signature_count + n, memory)
        share = min(1.0, n / self.signature_count)
        self.signature = torch.lerp(self.signature, signature, share)
        self.spread += share * (spread - self.spread)

    def plan(self, images: float, clock: int, whole: bool, memory: float) -> tuple[float, bool]:
        """Return the share of ``images`` new ones in the moments (0: left out), and whether to compute new maps."""
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
    """The images of a batch that are of one domain (None: the source), and what they do to it.

    ``rows`` are their places in the batch (None: all); ``kept`` are those that are not rubbish (None: all).
    """

    domain: Domain | None = None
    rows: Tensor | None = None
    kept: Tensor | None = None
    usable: bool = True
    share: float = 0.0  # of the new images in the domain's moments; 0: they do not move them
    maps: bool = False  # whether the domain's maps are made anew

    def of(self, x: Tensor, views: int = 1) -> Tensor:
        """Return what is kept of the part's rows of ``x``, which has ``views`` rows per image."""
        x = self.all_of(x, views)
        return x if self.kept is None else x[self.kept.repeat(views)]

    def all_of(self, x: Tensor, views: int) -> Tensor:
        """Return the part's rows of ``x``."""
        return x if self.rows is None else x[self.places(len(x), views)]

    def places(self, n: int, views: int) -> Tensor:
        """Return the part's places among ``n`` rows."""
        assert self.rows is not None
        return torch.cat([self.rows + view * (n // views) for view in range(views)])


@dataclass
class Domains:
    """The domains met so far, and the one at hand (-1: the source)."""

    domains: list[Domain] = field(default_factory=list)
    current: int = -1
    clock: int = 0
    recent: Tensor | None = None  # mean signature of the last small batches
    recent_count: float = 0.0
    frequencies: Tensor | None = None  # of the classes predicted last, in whatever domain
    seen: Seen = field(default_factory=Seen)  # in whatever domain

    @property
    def domain(self) -> Domain | None:
        """The domain at hand; None for the source."""
        return self.domains[self.current] if self.current >= 0 else None

    def sort(self, found: Tensor, finite: Tensor | None, rules: Rules) -> list[Part]:
        """Return the parts of a batch by domain, known, new or the source, from its images' signatures.

        ``finite`` are the images that hold no NaN (None: all).
        """
        usable = rules.distance(found, rules.centre) <= rules.far  # not for NaN
        usable = usable if finite is None else usable & finite
        found = found[usable]
        if not len(found):
            return [Part(usable=False)]
        if rules.adapting:
            self.clock += 1
        parts = self._several(found, usable, rules) or [self._one(found, usable, rules)]
        # By a spread that is a guess, clean images would be taken for a part of a mixture.
        if rules.adapting and rules.fitted and not rules.whole and len(found) >= _WINDOW:
            self.seen.add(found)
            known = any(domain.mixed for domain in self.domains)
            if not known and (kinds := self.seen.kinds(rules.precision, min(_KINDS, rules.slots))):
                self._split(kinds, rules)
        return parts

    def predicted(self, domain: Domain | None, logits: Tensor) -> None:
        """Add predictions to the class frequencies, the domain's and the last ones."""
        found = logits.float().softmax(1)
        if torch.isfinite(found).all():
            self.frequencies = decayed(self.frequencies, found, _LAST)
            if domain is not None:
                domain.frequencies = decayed(domain.frequencies, found, _PREDICTIONS)

    def skew(self, domain: Domain) -> float:
        """Return the skew of a domain's classes; before its first predictions, that of the last ones."""
        return skew_of(self.frequencies if domain.frequencies is None else domain.frequencies)

    def _one(self, found: Tensor, usable: Tensor, rules: Rules) -> Part:
        """Return the batch as images of one domain, known or new, or of the source."""
        n, signature = float(len(found)), found.mean(0)
        if n < _WINDOW:
            signature, n = self._smoothed(signature, n, rules)
        elif rules.adapting:
            self.recent, self.recent_count = signature, float(_WINDOW)
        from_source = float(rules.distance(signature, rules.centre)) - 1 / n
        distances = [
            float(rules.distance(signature, domain.signature)) - 1 / n - 1 / domain.signature_count
            for domain in self.domains
        ]
        place = min(range(len(distances)), key=distances.__getitem__, default=-1)
        near = rules.near + 0.5 / n
        if not rules.fitted:  # one class looks like another domain to a signature that nobody has fitted
            near += 0.5 * skew_of(self.frequencies)
        # Of too few images the spread is not known: the distance from the source alone decides then.
        spread = float(rules.distance(found, signature).mean()) if len(found) >= FEWEST else from_source
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
        """Return the images by domain where they are of several that come mixed; empty where one mean describes them.

        Note: the mean of a mixed batch is far from its images, and one of the domains near each of them.
        """
        n, known = len(found), [domain for domain in self.domains if domain.mixed]
        if n < _WINDOW or len(known) < 2:
            return []
        nearest = torch.stack([rules.distance(found, domain.signature) for domain in known], 1).min(1)
        own = rules.distance(found, found.mean(0)) * (n / (n - 1))
        if float((own - nearest.values).mean()) * found.shape[1] <= _MIXED:
            return []
        rows, parts = usable.nonzero().flatten(), []
        for number, domain in enumerate(known):
            here = nearest.indices == number
            if not here.any():
                continue
            if rules.adapting:
                mean = found[here].mean(0)
                spread = float(rules.distance(found[here], mean).mean()) if here.sum() >= FEWEST else domain.spread
                domain.moved(mean, float(here.sum()), spread, rules.memory)
            parts.append(self._planned(domain, int(here.sum()), rules, rows=rows[here]))
        if not usable.all():
            parts.append(Part(rows=(~usable).nonzero().flatten(), usable=False))
        return parts

    def _planned(self, domain: Domain | None, images: int, rules: Rules, **which: Any) -> Part:
        """Return images of a domain (None: the source), and decide what they do to it."""
        part = Part(domain, **which)
        if rules.adapting:
            self.current = -1 if domain is None else self.domains.index(domain)
            if domain is not None:
                part.share, part.maps = domain.plan(images, self.clock, rules.whole, rules.memory)
        return part

    def _smoothed(self, signature: Tensor, n: float, rules: Rules) -> tuple[Tensor, float]:
        """Return the mean signature of the last 16 images, or of those since it jumped."""
        before, recent, count = self.recent_count, signature, n
        if self.recent is not None and rules.distance(signature, self.recent) <= _JUMP * (1 + 1 / n + 1 / before):
            count = min(before + n, float(_WINDOW))
            recent = torch.lerp(self.recent, signature, n / count)
        if rules.adapting:
            self.recent, self.recent_count = recent, count
        return recent, count

    def _begin(self, signature: Tensor, n: float, spread: float, rules: Rules) -> int:
        """Remember a new domain, in the place of the one not met for longest where there is no other."""
        if len(self.domains) >= rules.slots:
            self.domains.remove(min(self.domains, key=lambda domain: domain.last))
        self.domains.append(Domain(signature.clone(), n, spread))
        return len(self.domains) - 1

    def _split(self, kinds: list[Tensor], rules: Rules) -> None:
        """Put a domain for each kind of images in the place of the one at hand; they begin with its moments."""
        whole, made = self.domain, []
        for kind in kinds:
            mean = kind.mean(0)
            spread = float(rules.distance(kind, mean).mean())
            made.append(Domain(mean, float(len(kind)), spread, self.clock, mixed=True))
            if whole is not None:
                made[-1].count, made[-1].maps = float(_WINDOW), dict(whole.maps)
                made[-1].moments = copy.deepcopy(whole.moments)
        if all(float(rules.distance(domain.signature, rules.centre)) <= rules.near for domain in made):
            return  # several kinds of source images
        others = sorted((d for d in self.domains if d is not whole), key=lambda domain: domain.last)
        others = others[max(0, len(others) + len(made) - rules.slots) :]
        self.domains, self.current = [*others, *made], len(others)


def _reach(domain: Domain, from_source: float, rules: Rules) -> float:
    """Return the distance up to which a batch, ``from_source`` away from the source, is of a domain.

    Note: where all domains are far from the source, half of that is no measure: their own spread is.
    """
    return max(rules.near, 0.5 * min(from_source, domain.spread))


def decayed(past: Tensor | None, found: Tensor, memory: float) -> Tensor:
    """Return sums of predictions (n x K) that forget after about ``memory`` samples."""
    return found.sum(0) if past is None else past * max(0.0, 1 - len(found) / memory) + found.sum(0)


def skew_of(frequencies: Tensor | None) -> float:
    """Return how far frequencies are from equal, beyond chance: 0 for equal ones, 1 for a single class."""
    if frequencies is None:
        return 0.0
    total, classes = float(frequencies.sum()), len(frequencies)
    share = frequencies / total
    return max(0.0, float((share - 1 / classes).square().sum()) / (1 - 1 / max(classes, 2)) - 1 / total)
