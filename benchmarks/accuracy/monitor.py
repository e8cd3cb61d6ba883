"""How well accuracy is estimated without labels, and what the monitor finds: ``python -m benchmarks.accuracy.monitor``.

Anything that is fitted is fitted to clean test images and to five corruptions that are not reported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.accuracy import estimators
from benchmarks.accuracy.monitor_runs import (
    ADAPTED,
    BATCH,
    CHOOSING,
    REPORTED,
    SEVERITIES,
    Outputs,
    Run,
    calibration_run,
    clean_runs,
    make_data,
    outputs_of,
    stream_runs,
)
from tta_cattan.alignment import SubspaceTracker
from tta_cattan.monitor import EVENTS, Calibration, Monitor, Reading, Reference

Score = Callable[[Outputs], float]
NETWORKS = {"resnet20": "ResNet-20", "resnet56": "ResNet-56"}
METHODS = {"source": "frozen", "tent": "TENT", "cattan_forward": "CATTAn-F"}
_FROZEN = {"method": "source", "lr": None, "batch": BATCH}
WINDOW = 250  # of the monitor, in streams
# Those that are accuracies as they are; every estimator also gets a line, fitted to the five corruptions that choose.
AS_THEY_ARE = ("average confidence", "difference of confidences", "ATC", "AETTA")


class Evaluation:
    """All outputs of a network, computed where they are missing."""

    def __init__(self, data: Path, out: Path, network: str) -> None:
        self.network = network
        self._outputs = lambda run: outputs_of(data, out, run)

    def clean(self) -> Outputs:
        """Return the frozen network's outputs on clean images, which calibrate every estimator."""
        return self._outputs(Run(self.network, "source", "clean", (("calibration", 0),)))

    def shifts(self, method: str, part: str) -> list[Outputs]:
        names = {"choosing": CHOOSING, "reported": REPORTED}[part]
        levels = SEVERITIES if method == "source" else ADAPTED[self.network]
        return [self._outputs(Run(self.network, method, part, ((name, n),))) for name in names for n in levels]

    def reference(self, method: str, fitted: bool = True) -> Reference:
        """Return the reference by the clean images and, if ``fitted``, by the corruptions that choose."""
        clean = self.clean()
        sets = [clean, *(self.shifts(method, "choosing") if fitted else [])]
        return Reference.of(clean.features, Calibration.of([(one.logits, one.labels) for one in sets], 1000))

    def run(self, run: Run) -> Outputs:
        return self._outputs(run)


def principal_angle(reference: Reference, outputs: Outputs) -> float:
    """``1 - ||W_s^T W_t||_F^2 / d``, the mean squared sine of the angles between ``W_s`` and the tracked ``W_t``."""
    source = reference.subspace
    tracker = SubspaceTracker(source, source.d, prior=0.0)
    for rows in outputs.features.split(outputs.batch):
        tracker.update(rows)
    return 1 - (source.basis.T @ tracker.basis).square().sum().item() / source.d


def scores(clean: Outputs, reference: Reference) -> dict[str, Score]:
    """Return what each estimator computes, before any line."""
    logits, accuracy, source = clean.logits, clean.accuracy, reference.subspace

    def outside(o: Outputs) -> float:
        centred = o.features - source.mean
        return 1 - ((centred @ source.basis).square().sum() / centred.square().sum()).item()

    return {
        "average confidence": lambda o: estimators.average_confidence(o.logits),
        "difference of confidences": lambda o: estimators.difference_of_confidences(o.logits, logits, accuracy),
        "ATC": lambda o: estimators.thresholded_confidence(o.logits, logits, accuracy),
        "AETTA": lambda o: estimators.dropout_agreement(o.logits, o.dropped, o.softened),
        "nuclear norm": lambda o: estimators.nuclear_norm(o.logits),
        "angles between W_s and W_t": lambda o: principal_angle(reference, o),
        "energy outside W_s": outside,
        "Fréchet distance in W_s": lambda o: reference.drift((o.features - source.mean) @ source.basis),
    }


def errors(evaluation: Evaluation, method: str) -> dict[str, tuple[float, float]]:
    """Return mean absolute error (points) and correlation of each estimator on the reported corruptions."""
    clean, reported = evaluation.clean(), evaluation.shifts(method, "reported")
    choosing = evaluation.shifts(method, "choosing")
    truth = np.array([o.accuracy for o in reported])
    found: dict[str, tuple[float, float]] = {}

    def add(name: str, values: Sequence[float]) -> None:
        found[name] = 100 * np.abs(np.array(values) - truth).mean(), float(np.corrcoef(values, truth)[0, 1])

    for name, score in scores(clean, evaluation.reference(method, fitted=False)).items():
        values = [score(o) for o in reported]
        if name in AS_THEY_ARE:
            add(name, values)
        line = np.polyfit([score(o) for o in choosing], [o.accuracy for o in choosing], 1)
        add(f"{name}, line", list(np.polyval(line, values)))
    for name, fitted in (("monitor, clean data alone", False), ("monitor, line", True)):
        calibration = evaluation.reference(method, fitted).calibration
        add(name, [calibration.estimate(o.logits).value for o in reported])
    return found


def table(evaluations: Sequence[Evaluation]) -> str:
    """Return the table of errors: a row per estimator, a column per network and method."""
    columns = {(e.network, m): errors(e, m) for e in evaluations for m in METHODS}
    heads = [f"{NETWORKS[network]}, {METHODS[method]}" for network, method in columns]
    lines = [f"| estimator | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for name in next(iter(columns.values())):
        cells = [f"{column[name][0]:.1f} ({column[name][1]:.2f})" for column in columns.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def watched(evaluation: Evaluation, run: Run, outputs: Outputs, frozen: Outputs) -> list[Reading]:
    """Return the readings over a run beside the frozen network."""
    fitted, frozen_fitted = (evaluation.run(calibration_run(one)) for one in (run, replace(run, **_FROZEN)))
    sets = [fitted.domain == number for number in range(int(fitted.domain.max()) + 1)]
    own, other = (
        Calibration.of([(one.logits[part], one.labels[part]) for part in sets], WINDOW)
        for one in (fitted, frozen_fitted)
    )
    quiet = {f"on_{event}": "ignore" for event in EVENTS}
    monitor = Monitor(Reference.of(fitted.features[sets[0]], own, other, window=WINDOW), window=WINDOW, **quiet)
    batches = (one.split(run.batch) for one in (outputs.logits, outputs.features, frozen.logits))
    return [monitor.observe(*batch) for batch in zip(*batches, strict=True)]


def collapse_began(outputs: Outputs, frozen: Outputs) -> int | None:
    """Return the samples seen when the last five batches are first less than half as often right as the frozen ones."""
    right = [(o.logits.argmax(1) == o.labels).double().cumsum(0) for o in (outputs, frozen)]
    five = 5 * outputs.batch
    for end in range(five, len(outputs.labels) + 1, outputs.batch):
        mine, theirs = ((one[end - 1] - (one[end - five - 1] if end > five else 0)).item() for one in right)
        if mine < theirs / 2:
            return end
    return None


def stream_table(evaluation: Evaluation) -> str:
    """Return, per stream, how well the estimate follows the truth, which changes and collapses are found."""
    heads = [
        "stream",
        "accuracy",
        "frozen",
        "error",
        "held",
        "new domains",
        "false",
        "drift",
        "worse",
        "collapse",
        "found",
    ]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for run in [*stream_runs(), *clean_runs()]:
        outputs = evaluation.run(run)
        frozen = evaluation.run(replace(run, **_FROZEN))
        readings = watched(evaluation, run, outputs, frozen)
        right = (outputs.logits.argmax(1) == outputs.labels).double()
        full = [r for r in readings if r.accuracy]
        truth = [right[max(r.seen - WINDOW, 0) : r.seen].mean().item() for r in full]
        gaps = [abs(r.accuracy.value - t) for r, t in zip(full, truth, strict=True)]
        held = np.mean([r.accuracy.low <= t <= r.accuracy.high for r, t in zip(full, truth, strict=True)])
        borders = [n for n in range(1, len(right)) if outputs.domain[n] != outputs.domain[n - 1]]
        changes = [r.seen for r in readings if "change" in r.state]
        hits = [b for b in borders if any(b < c <= b + 500 for c in changes)]
        firsts = [
            next((r.seen for r in readings if "drift" in r.state), None),
            next((r.seen for r in readings if "worse" in r.events), None),
            collapse_began(outputs, frozen),
            next((r.seen for r in readings if "collapse" in r.state), None),
        ]
        rate = "" if run.lr is None else f", rate {run.lr:g}"
        what = f"{METHODS[run.method]}{rate}, batch {run.batch}" + (" (clean)" if not run.domains[0][1] else "")
        cells = [
            f"{100 * outputs.accuracy:.1f}", f"{100 * frozen.accuracy:.1f}", f"{100 * np.mean(gaps):.1f}",
            f"{100 * held:.0f} %", f"{len(hits)} of {len(borders)}", str(len(changes) - len(hits)),
            *(f"{first:,}" if first else "-" for first in firsts),
        ]  # fmt: skip
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Compute what is missing and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.monitor", description=__doc__)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)} (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data: cifar10, ...")
    parser.add_argument("--out", type=Path, default=Path("output", "monitor"), help="where outputs are kept")
    options = parser.parse_args(arguments)
    make_data(options.data, options.out)
    evaluations = [Evaluation(options.data, options.out, name) for name in options.networks or NETWORKS]
    if "resnet20" in (options.networks or NETWORKS):
        print(stream_table(evaluations[0]), "\n", flush=True)
    print(table(evaluations))
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
