"""The figures of a comparison; those without data are left out."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tta_cattan.bench.report import figures
from tta_cattan.bench.report.comparison import Comparison
from tta_cattan.bench.report.figures import MOST_ROWS, Curve
from tta_cattan.bench.report.reading import StreamFacts
from tta_cattan.bench.results.store import Record, row_label
from tta_cattan.bench.results.summary import Statistic, Summary
from tta_cattan.methods import method_title
from tta_cattan.metrics import ReliabilityBins

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = "accuracy (%)"


@dataclass(frozen=True)
class Plot:
    """A figure with its title and caption and the name of its files."""

    name: str
    title: str
    caption: str
    figure: Figure


def plots_of(comparison: Comparison) -> list[Plot]:
    """Return the figures for which the comparison has data.

    Note: a large sweep has more rows than there are colours; its figures with a colour per row are left out.
    """
    by_row = (_by_domain, _over_epochs, _over_the_stream, _over_windows, _monitored, _reliability)
    found = [draw(comparison) for draw in by_row] if len(comparison.variants) <= MOST_ROWS else []
    found = [*_over_sweeps(comparison), *found, _cost(comparison.summary), *_dimensions(comparison)]
    return [plot for plot in found if plot is not None]


def _by_domain(comparison: Comparison) -> Plot | None:
    """Return bars of the accuracy on each domain."""
    summary = comparison.summary
    if "accuracy" not in summary.metrics:
        return None
    found = {m: [summary.cells.get((m, domain, "accuracy")) for domain in summary.domains] for m in summary.methods}
    several = any(one is not None and one.std is not None for row in found.values() for one in row)
    caption = "Mean over seeds; the thin lines are one standard deviation." if several else "One seed."
    return Plot("accuracy", "Accuracy by domain", caption, figures.bars(summary.domain_heads(), found, _POINTS))


def _over_epochs(comparison: Comparison) -> Plot | None:
    """Return lines of the accuracy in each epoch; a method without epochs is drawn as a level."""
    curves = _curves(comparison, lambda record: list(enumerate(record.info["epochs"], start=1)))
    averages = comparison.summary.averages
    level = {
        name: 100 * averages[name, "accuracy"].mean
        for name in comparison.variants
        if name not in curves and (name, "accuracy") in averages
    }
    if not curves:
        return None
    caption = (
        f"Mean over the domains of the predictions made while adapting, each before its batch's update{_band(curves)}. "
        f"{'Dashed: methods without epochs. ' if level else ''}The tables are of the last epoch's model."
    )
    return Plot("epochs", "Accuracy over epochs", caption, figures.lines(curves, "epoch", _POINTS, level=level))


def _over_sweeps(comparison: Comparison) -> Iterator[Plot]:
    """Yield a figure per swept numeric key: the mean accuracy against it, a line per method and other settings."""
    averages = comparison.summary.averages
    found = {name: averages[name, "accuracy"] for name in comparison.variants if (name, "accuracy") in averages}
    swept = dict.fromkeys(key for name in found for key, _ in comparison.variants[name].settings)
    for key in swept:
        points: dict[str, dict[float, Statistic]] = {}
        level = {}
        for name, average in found.items():
            variant = comparison.variants[name]
            value = dict(variant.settings).get(key)
            line = row_label(method_title(variant.method), tuple(pair for pair in variant.settings if pair[0] != key))
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                points.setdefault(line, {})[value] = average
            elif value is None:
                level[line] = 100 * average.mean
        curves = {line: Curve.of(found) for line, found in points.items() if len(found) > 1}
        if not curves:
            continue
        dashed = " Dashed: methods that do not read the key." if level else ""
        caption = f"Mean over the domains{_band(curves)}.{dashed}"
        yield Plot(f"sweep-{key}", f"Accuracy against {key}", caption, figures.swept(curves, key, level))


def _band(curves: Mapping[str, Curve]) -> str:
    """Return the caption's words for the band around lines, if there is one."""
    return "; the band is one standard deviation over seeds" if any(c.std is not None for c in curves.values()) else ""


def _over_the_stream(comparison: Comparison) -> Plot | None:
    """Return lines of the accuracy of all predictions so far."""

    def running(record: Record) -> list[tuple[float, float]]:
        stream = record.info["stream"]
        return [(n, right / n) for n, right in zip(stream["seen"], stream["correct"], strict=True)]

    curves = _curves(comparison, running)
    if not curves:
        return None
    caption = f"Of all predictions so far, mean over the domains{_band(curves)}."
    return Plot("stream", "Accuracy over the stream", caption, figures.lines(curves, "images seen", _POINTS))


def _over_windows(comparison: Comparison) -> Plot | None:
    """Return lines of the accuracy in windows of a stream, over its domains."""
    curves = _curves(comparison, _windows)
    if not curves:
        return None
    streams = comparison.streams
    collapses = {name: [one.collapsed_at[0] for one in seeds if one.collapsed_at] for name, seeds in streams.items()}
    cross = " A cross is where a method's predictions first fell into few classes." if any(collapses.values()) else ""
    caption = f"Accuracy in windows of the stream{_band(curves)}; the background shows its domains.{cross}"
    bands = corruption_bands(next(iter(streams.values()))[0].bands)
    figure = figures.stream(curves, bands, collapses, "images seen", _POINTS)
    return Plot("windows", "Accuracy in windows of the stream", caption, figure)


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


def _monitored(comparison: Comparison) -> Plot | None:
    """Return, per method that a monitor watched, its estimate beside the truth, and the drift, of the first seed."""
    watched = {name: [facts for facts in seeds if facts.readings] for name, seeds in comparison.streams.items()}
    shown = {name: seeds[0] for name, seeds in watched.items() if seeds}
    if not shown:
        return None
    caption = (
        "Above: accuracy (line) and what the monitor estimates without labels (dashed, with its 90 % interval), first "
        "seed. Below: the drift from the source; vertical lines are changes of domain that it found."
    )
    return Plot("monitor", "Accuracy estimated without labels", caption, figures.monitored(shown))


def _reliability(comparison: Comparison) -> Plot | None:
    """Return a reliability diagram per method, all domains and seeds together."""
    bins: dict[str, ReliabilityBins] = {}
    for name, records in comparison.records.items():
        for record in records:
            try:
                parts = record.info["reliability"]
                one = ReliabilityBins(*(tuple(parts[key]) for key in ("count", "confidence", "correct")))
                bins[name] = bins[name] + one if name in bins else one
            except (KeyError, TypeError, ValueError):
                continue  # missing or damaged
    bins = {name: one for name, one in bins.items() if sum(one.count)}
    if not bins:
        return None
    caption = (
        "Bars: accuracy in each bin of confidence, stronger where more predictions are; lines: the gap to the mean "
        "confidence. All domains and seeds together: this ECE may differ from the mean over domains in the table."
    )
    return Plot("reliability", "Reliability", caption, figures.reliability(bins))


def _cost(summary: Summary) -> Plot | None:
    """Return bars of time and memory."""
    averages = summary.averages

    def means(metric: str, scale: float) -> dict[str, float]:
        return {m: averages[m, metric].mean / scale for m in summary.methods if (m, metric) in averages}

    samples = means("n", 1000)
    per_image = {m: seconds / samples[m] for m, seconds in means("seconds", 1).items() if samples.get(m)}
    source = per_image.get(method_title("source"))
    times = (lambda ms: f"{ms:.2f} ({ms / source:.1f} ×)") if source else "{:.2f}".format
    time, memory, kept = "ms/image (× Source)" if source else "ms/image", "peak memory (MB)", "kept, vs TENT (kB)"
    panels = {time: per_image, memory: means("peak_memory", 1e6), kept: means("extra_bytes", 1e3)}
    panels = {title: values for title, values in panels.items() if values}
    if not panels:
        return None
    notes = {
        time: "Time: all passes over a domain, per image.",
        memory: "Memory: of the process (CPU) or allocated by torch (CUDA).",
        kept: "Kept: tensors beside the model, minus TENT's; without the optimiser's.",
    }
    figure = figures.cost(panels, {time: times, memory: "{:,.0f}".format, kept: "{:,.1f}".format})
    return Plot("cost", "Cost", " ".join(map(notes.__getitem__, panels)), figure)


def _dimensions(comparison: Comparison) -> Iterator[Plot]:
    """Yield the dimension figure of each method that has one, for its first settings and domain."""
    seen = set()
    for number, (name, records) in enumerate(comparison.records.items()):
        found = [record for record in records if _has_dimension(record)]
        method = comparison.variants[name].method
        if found and method not in seen:
            seen.add(method)
            first = found[0]
            chosen = {r.cell.target.label: r.info["d_target"] for r in found if r.cell.seed == first.cell.seed}
            title = f"{name}, {first.cell.target.label}"
            figure = figures.dimension(first.info["dimension"], first.info["d_target"], title)
            caption = (
                f"d with seed {first.cell.seed}: " + ", ".join(f"{label} {d}" for label, d in chosen.items()) + "."
            )
            yield Plot(f"dimension-{number}", f"Dimension of {name}", caption, figure)


def _has_dimension(record: Record) -> bool:
    """Return whether a record holds the data of the dimension figure."""
    curve, d = record.info.get("dimension"), record.info.get("d_target")
    return isinstance(d, int) and isinstance(curve, dict) and {"d", "target", "bound"} <= curve.keys()


def _windows(record: Record) -> Iterable[tuple[float, float]]:
    """Return the points of a stream; raise ValueError if the record has none, as for a damaged one."""
    facts = StreamFacts.of(record)
    if facts is None:
        raise ValueError("not a stream")
    return facts.windows


def _curves(comparison: Comparison, points: Callable[[Record], Iterable[tuple[float, float]]]) -> dict[str, Curve]:
    """Return a curve per method: the mean over domains per seed, then mean and standard deviation over seeds."""
    curves = {}
    for name, records in comparison.records.items():
        by_seed: dict[int, list[list[tuple[float, float]]]] = {}
        for record in records:
            try:
                found = [(float(x), float(y)) for x, y in points(record)]
            except (KeyError, TypeError, ValueError, ZeroDivisionError):
                continue  # missing or damaged
            by_seed.setdefault(record.cell.seed, []).append(found)
        # As for the averages, a mean over fewer domains must not pass for the mean over all.
        by_seed = {seed: found for seed, found in by_seed.items() if len(found) == len(comparison.summary.domains)}
        every = [one for found in by_seed.values() for one in found]
        x = [place for place, _ in every[0]] if every else []
        if not x or any([place for place, _ in one] != x for one in every):
            continue  # no points, or no common axis: domains of different sizes
        seeds = [
            [statistics.fmean(one[place][1] for one in found) for place in range(len(x))] for found in by_seed.values()
        ]
        means = [Statistic.of(values) for values in zip(*seeds, strict=True)]
        curves[name] = Curve.of(dict(zip(x, means, strict=True)))
    return curves
