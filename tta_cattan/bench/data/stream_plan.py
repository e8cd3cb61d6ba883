"""Plan a stream: which sample of which domain comes when. Pure functions of labels, setting and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from yacs.config import CfgNode

from tta_cattan.bench import Domain
from tta_cattan.util.errors import UserError

Indices: TypeAlias = NDArray[np.int64]

_UP_AND_DOWN = (1, 2, 3, 4, 5, 4, 3, 2, 1)


@dataclass(frozen=True)
class StreamSetting:
    """How a stream is composed: the order of its domains and of its classes."""

    order: str = "continual"
    correlated: bool = False
    delta: float = 0.0  # of the Dirichlet draw; 0 sorts the classes
    rounds: int = 10
    imbalance: float = 1.0

    @classmethod
    def of(cls, cfg: CfgNode) -> StreamSetting:
        name = cfg.SETTING
        order = name.removesuffix("correlated").removesuffix("_") or "continual"
        correlated = name.endswith("correlated")
        return cls(order, correlated, cfg.TEST.DELTA_DIRICHLET, cfg.STREAM.ROUNDS, cfg.STREAM.IMBALANCE)


@dataclass(frozen=True)
class Segment:
    """Samples whose batches are formed together: a batch never spans two segments.

    ``visit[i]`` is the number of the visit that the i-th sample belongs to, ``index[i]`` its index in that domain.
    """

    visit: Indices
    index: Indices
    reset: bool = False  # whether the method is reset before it

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class StreamPlan:
    """A whole stream: the visits of domains, the samples in order, and the range in which each visit dominates."""

    visits: tuple[Domain, ...]
    segments: tuple[Segment, ...]
    bands: tuple[tuple[int, int], ...]  # first and last sample + 1 of each visit; empty if domains are mixed
    at_once: int  # number of domains that are read alternately

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    @property
    def visit(self) -> Indices:
        return np.concatenate([segment.visit for segment in self.segments])


def sequence_of(domains: Sequence[Domain], setting: StreamSetting) -> list[Domain]:
    """Return the visits of a stream: corruption by corruption, each at its severities.

    Note: as in mariodoebler's benchmark, 'gradual' takes the severities as they are if several are given.
    """
    severities: dict[str, list[int]] = {}
    for domain in domains:
        severities.setdefault(domain.name, []).append(domain.severity)
    if setting.order == "gradual":
        if any(0 in given for given in severities.values()):
            raise UserError("SETTING gradual goes up and down the severities 1 to 5: these domains have none, or 0")
        severities = {name: list(_UP_AND_DOWN) if len(found) == 1 else found for name, found in severities.items()}
    visits = [Domain(name, severity) for name, found in severities.items() for severity in found]
    return visits * (setting.rounds if setting.order == "recurring" else 1)


def plan_stream(
    visits: Sequence[Domain], labels: Mapping[Domain, Indices], setting: StreamSetting, seed: int
) -> StreamPlan:
    """Return the stream of ``visits``, each of which shows every sample of its domain once, in an order of its own.

    With ``imbalance``, every visit of a domain shows the same subset of its samples.
    """
    kept = {domain: long_tailed(labels[domain], setting.imbalance, seed) for domain in dict.fromkeys(visits)}
    orders, within = [], setting.correlated and setting.order != "mixed_domains"
    for number, domain in enumerate(visits):
        rng = np.random.default_rng([seed, 1, number])
        order = rng.permutation(kept[domain])
        orders.append(order[by_class(labels[domain][order], setting.delta, rng)] if within else order)
    rng = np.random.default_rng([seed, 2])
    if setting.order == "mixed_domains":
        return _mixed(visits, orders, labels, setting, rng)
    return _smooth(visits, orders, rng) if setting.order == "smooth" else _in_turn(visits, orders, setting)


def _in_turn(visits: Sequence[Domain], orders: Sequence[Indices], setting: StreamSetting) -> StreamPlan:
    """Return the visits in sequence, each a segment; resets come before a new corruption, not a new severity."""
    resets = [setting.order == "reset_each_shift" and b.name != a.name for a, b in pairwise(visits)]
    segments = [
        Segment(np.full(len(order), number), order, reset)
        for number, (order, reset) in enumerate(zip(orders, [True, *resets], strict=True))
    ]
    bands = pairwise([0, *accumulate(map(len, orders))])
    return StreamPlan(tuple(visits), tuple(segments), tuple(bands), at_once=1)


def _mixed(
    visits: Sequence[Domain],
    orders: Sequence[Indices],
    labels: Mapping[Domain, Indices],
    setting: StreamSetting,
    rng: np.random.Generator,
) -> StreamPlan:
    """Return all samples shuffled, then grouped by class if the setting is correlated."""
    whole = _joined(orders)
    places = rng.permutation(len(whole))
    if setting.correlated:
        every = np.concatenate([labels[domain][order] for domain, order in zip(visits, orders, strict=True)])
        places = places[by_class(every[places], setting.delta, rng)]
    return StreamPlan(tuple(visits), (_taken(whole, places),), (), at_once=len(set(visits)))


def _smooth(visits: Sequence[Domain], orders: Sequence[Indices], rng: np.random.Generator) -> StreamPlan:
    """Return the visits blending into each other; a band ends where the next domain becomes the more frequent one."""
    times = passing_times([len(order) for order in orders], rng)
    ends = [int((times < number + 0.5).sum()) for number in range(len(visits) - 1)]
    segment = _taken(_joined(orders), times.argsort(kind="stable"))
    return StreamPlan(tuple(visits), (segment,), tuple(pairwise([0, *ends, len(times)])), at_once=3)


def by_class(labels: Indices, delta: float, rng: np.random.Generator) -> Indices:
    """Return an order of samples in which those of one class come in runs.

    ``delta = 0``: sorted by class. Otherwise there are as many stretches as classes; each class is divided among them
    by shares drawn from Dirichlet(delta, ..., delta), and each stretch has its own random order of classes: the
    smaller delta, the longer the runs.
    """
    if delta == 0:
        return labels.argsort(kind="stable")
    classes = np.unique(labels)
    pieces = []
    for label in classes:
        places = np.flatnonzero(labels == label)
        shares = rng.dirichlet(np.full(len(classes), delta))
        pieces.append(np.split(places, (shares.cumsum()[:-1] * len(places)).round().astype(np.int64)))
    return np.concatenate(
        [pieces[c][stretch] for stretch in range(len(classes)) for c in rng.permutation(len(classes))]
    )


def long_tailed(labels: Indices, imbalance: float, seed: int) -> Indices:
    """Return the indices of a subset whose class frequencies fall geometrically, to ``1 / imbalance`` at the last.

    Of the class of rank r among C, ``imbalance^(-r / (C - 1))`` of the samples are kept, at least one. Ranks and
    samples are drawn by the seed: the same classes are rare in all domains.
    """
    if imbalance == 1:
        return np.arange(len(labels))
    rng = np.random.default_rng([seed, 0])
    classes = np.unique(labels)
    ranks = rng.permutation(len(classes))
    parts = []
    for label, rank in zip(classes, ranks, strict=True):
        places = rng.permutation(np.flatnonzero(labels == label))
        share = imbalance ** (-rank / max(len(classes) - 1, 1))
        parts.append(places[: max(1, round(share * len(places)))])
    return np.sort(np.concatenate(parts))


def passing_times(sizes: Sequence[int], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a time for each sample, ascending in each visit, such that every visit passes smoothly into the next.

    The times of visit k have the density ``max(0, 1 - |t - k|)``: between k and k + 1 the share of visit k falls
    linearly from 1 to 0.
    """
    return np.concatenate([np.sort(k + rng.triangular(-1, 0, 1, size)) for k, size in enumerate(sizes)])


def _joined(orders: Sequence[Indices]) -> Segment:
    visit = np.concatenate([np.full(len(order), number) for number, order in enumerate(orders)])
    return Segment(visit, np.concatenate(orders), reset=True)


def _taken(segment: Segment, places: Indices) -> Segment:
    return Segment(segment.visit[places], segment.index[places], segment.reset)
