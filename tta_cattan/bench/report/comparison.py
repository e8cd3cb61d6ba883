"""Groups of runs on the same data, source model and protocol, with a unique name for each method."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tta_cattan.bench.report.reading import Run, StreamFacts, Variant
from tta_cattan.bench.results.store import Record, row_label
from tta_cattan.bench.results.summary import Summary, summarise_rows
from tta_cattan.config import shared_keys
from tta_cattan.methods import method_title

_ABSENT = "—"


@dataclass(frozen=True)
class Comparison:
    """Variants of methods on one benchmark, by their names in the report."""

    title: str
    runs: Sequence[Run]
    variants: Mapping[str, Variant]

    @property
    def records(self) -> dict[str, Sequence[Record]]:
        """The records of each variant."""
        return {name: variant.records for name, variant in self.variants.items()}

    @cached_property
    def summary(self) -> Summary:
        """Means and standard deviations over seeds."""
        return summarise_rows(self.records)

    @cached_property
    def streams(self) -> dict[str, list[StreamFacts]]:
        """The facts of each variant's streams, one per seed; variants without any are left out."""
        found = {name: list(filter(None, map(StreamFacts.of, records))) for name, records in self.records.items()}
        return {name: facts for name, facts in found.items() if facts}

    @property
    def protocol(self) -> str:
        """``offline``, ``online``, ...; empty if unknown."""
        return str(self.runs[0].fact("extra", "protocol") or "")

    def config_differences(self) -> dict[str, list[str]]:
        """Return the keys in which the variants differ, with the value of each variant."""
        return _differences([variant.config for variant in self.variants.values()])


def group_runs(runs: Iterable[Run]) -> list[Comparison]:
    """Return one comparison per data set, source model and protocol, in the order of the runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_setting(run), []).append(run)
    titles = [_title(members[0]) for members in groups.values()]
    comparisons = []
    for place, (title, members) in enumerate(zip(titles, groups.values(), strict=True)):
        alike = titles[:place].count(title)
        title = f"{title} ({alike + 1})" if alike else title
        comparisons.append(Comparison(title, members, _named([v for run in members for v in run.variants])))
    return comparisons


def _setting(run: Run) -> str:
    """Return what two runs must share to be compared; a run without a description is compared with no other."""
    if not run.description:
        return str(run.folder.resolve())
    dataset = run.fact("dataset")
    dataset = {k: v for k, v in dataset.items() if not k.endswith("dir")} if isinstance(dataset, dict) else dataset
    swept = bool(run.fact("extra", "sweep"))
    parts = [dataset, run.fact("model_sha256"), run.fact("extra", "protocol"), run.folder.name if swept else ""]
    return json.dumps(parts, sort_keys=True, default=str)


def _title(run: Run) -> str:
    """Return data set, model and protocol, or else the folder's name."""
    parts = [
        run.fact("config", "CORRUPTION", "DATASET"),
        run.fact("config", "MODEL", "ARCH"),
        run.fact("extra", "protocol"),
    ]
    found = [str(part) for part in parts if part]
    return " · ".join(found) if found else run.folder.name


def _named(variants: Sequence[Variant]) -> dict[str, Variant]:
    """Name each variant by its method, and by the settings that distinguish it from others of that method."""
    names = [row_label(method_title(variant.method), variant.settings) for variant in variants]
    for name, times in Counter(names).items():
        if times == 1:
            continue
        places = [place for place, other in enumerate(names) if other == name]
        differences = _differences([variants[place].config for place in places])
        for number, place in enumerate(places):
            settings = [f"{key}={values[number]}" for key, values in differences.items()]
            names[place] = f"{name} [{', '.join(settings[:2])}]" if settings else name
    taken: Counter[str] = Counter()
    named = {}
    for name, variant in zip(names, variants, strict=True):
        taken[name] += 1
        named[f"{name} #{taken[name]}" if taken[name] > 1 else name] = variant
    return named


def _differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the keys in which the known configs differ, with each config's value as text."""
    keys = dict.fromkeys(key for config in configs for key in config if _distinguishes(key))
    shown = {key: [_text(config[key]) if key in config else _ABSENT for config in configs] for key in keys}
    known = [place for place, config in enumerate(configs) if config]
    return {key: values for key, values in shown.items() if len({values[place] for place in known}) > 1}


def _distinguishes(key: str) -> bool:
    """Return whether a key can make two results of the same method, domain and seed different."""
    return key not in ("MODEL.ADAPTATION", *shared_keys("place", "presentation", "seed", "selection"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
