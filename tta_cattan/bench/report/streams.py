"""What records say about a stream: accuracy in windows and per domain, the bands of its domains, collapses."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tta_cattan.bench.results.store import Record


@dataclass(frozen=True)
class StreamFacts:
    """One stream: (middle, accuracy) of its windows, accuracy by domain, bands (domain, first, last), collapses.

    A monitor's ``readings`` are (seen, estimate, low, high, drift), its ``changes`` the samples seen when it found a
    new domain.
    """

    windows: tuple[tuple[float, float], ...]
    domains: Mapping[str, float]
    bands: tuple[tuple[str, int, int], ...]
    collapsed_at: tuple[int, ...]
    readings: tuple[tuple[float, ...], ...] = ()
    changes: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: Record) -> StreamFacts | None:
        """Return the facts of a record, or None where it is not of a stream or is damaged."""
        try:
            info, n = record.info, int(record.metrics["n"])
            size, hits = int(info["windows"]["size"]), info["windows"]["correct"]
            starts = range(0, n, size)
            windows = tuple(
                ((start + min(start + size, n)) / 2, right / (min(start + size, n) - start))
                for start, right in zip(starts, hits, strict=True)
            )
            seen: dict[str, int] = {}
            right_of: dict[str, int] = {}
            for visit in info["visits"]:
                name = str(visit["domain"])
                seen[name] = seen.get(name, 0) + int(visit["n"])
                right_of[name] = right_of.get(name, 0) + int(visit["correct"])
            domains = {name: right_of[name] / seen[name] for name in seen}
            names = [str(visit["domain"]) for visit in info["visits"]]
            bands = [(name, int(a), int(b)) for name, (a, b) in zip(names, info["bands"], strict=False)]
            watched = info.get("monitor", {"readings": (), "changes": ()})
            readings = tuple(tuple(map(float, one)) for one in watched["readings"] if len(one) == 5)
            collapses, changes = (tuple(map(int, one)) for one in (info["collapsed_at"], watched["changes"]))
            return cls(windows, domains, tuple(bands), collapses, readings, changes)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None


def corruption_bands(bands: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return the bands with neighbouring severities of one corruption joined: fog1, fog2 and so on are fog."""
    joined: list[tuple[str, int, int]] = []
    for label, start, end in bands:
        name = re.sub(r"[1-5]$", "", label)
        if joined and joined[-1][0] == name:
            joined[-1] = (name, joined[-1][1], end)
        else:
            joined.append((name, start, end))
    return joined


def accuracy_by_domain(streams: Iterable[StreamFacts]) -> dict[str, float]:
    """Return the accuracy per domain that all streams have, all visits together, as the mean over them."""
    first, *others = streams
    shared = [domain for domain in first.domains if all(domain in facts.domains for facts in others)]
    return {domain: statistics.fmean(facts.domains[domain] for facts in (first, *others)) for domain in shared}
