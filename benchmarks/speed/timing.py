"""Timing two or more sides in turn, and telling the ratio against a goal."""

from __future__ import annotations

import gc
import operator
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tta_cattan.util.memory import give_back_freed_memory

# On a machine that others use too, BENCHMARK_CLOCK=cpu with OMP_NUM_THREADS=1 counts only the time of this process.
CPU_CLOCK = os.environ.get("BENCHMARK_CLOCK") == "cpu"
_COMPARE = {"<=": operator.le, ">=": operator.ge}
_MB = 2**20


@dataclass(frozen=True)
class Line:
    """One line of the table: our figure, the peer's, their ratio (ours / peer's unless said) and the goal for it."""

    what: str
    against: str
    ours: str
    theirs: str
    ratio: float
    goal: str = ""

    @property
    def met(self) -> bool | None:
        """Tell whether the ratio reaches the goal, ``"<= 1.03"``; None where there is none."""
        if not self.goal:
            return None
        sign, bound = self.goal.split()
        return _COMPARE[sign](round(self.ratio, 3), float(bound))

    def row(self) -> str:
        """Return the line as a row of a Markdown table."""
        met = {True: "yes", False: "**no**", None: "-"}[self.met]
        cells = (self.what, self.against, self.ours, self.theirs, f"{self.ratio:.3g}", self.goal or "-", met)
        return f"| {' | '.join(cells)} |"


HEAD = "| what | against | ours | theirs | ratio | goal | met |\n|---|---|---:|---:|---:|---|---|"


@dataclass(frozen=True)
class Rounds:
    """The seconds of each side in each round."""

    seconds: Mapping[str, Sequence[float]]

    def median(self, side: str) -> float:
        """Return the median time of a side."""
        return statistics.median(self.seconds[side])

    def ratio(self, ours: str, theirs: str) -> float:
        """Return the median over the rounds of ours / theirs: what slows a whole round down cancels."""
        return statistics.median(a / b for a, b in zip(self.seconds[ours], self.seconds[theirs], strict=True))

    def line(self, what: str, ours: str, theirs: str, goal: str = "") -> Line:
        """Return the line that compares two sides; a goal ``>=`` is for how many times faster we are."""
        ratio = self.ratio(theirs, ours) if goal.startswith(">=") else self.ratio(ours, theirs)
        return Line(what, theirs, show_seconds(self.median(ours)), show_seconds(self.median(theirs)), ratio, goal)


def interleaved(
    sides: Mapping[str, Callable[[], object]], rounds: int, warmups: int = 1, calls: int = 1, wall: bool = False
) -> Rounds:
    """Time every side in each round, in turn; the first ``warmups`` rounds do not count.

    Note: ``calls`` is for what takes milliseconds: the mean of so many calls in a row, as they are in a real run.
    ``wall`` is for what other processes do as well: their time is not in ours.
    """
    clock = time.process_time if CPU_CLOCK and not wall else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(warmups + rounds):
        for name in names if number % 2 else names[::-1]:  # neither side is always the one that comes second
            gc.collect()
            started = clock()
            for _ in range(calls):
                sides[name]()
            if number >= warmups:
                seconds[name].append((clock() - started) / calls)
    return Rounds(seconds)


def show_seconds(value: float) -> str:
    """Return a time in a unit that suits it."""
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def show_bytes(value: float) -> str:
    """Return a size in MB."""
    return f"{value / _MB:,.0f} MB"


def peak_memory(work: Callable[[], object]) -> int:
    """Return how many bytes the process's resident memory rises above its present size while ``work`` runs (Linux)."""
    _release()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return max(_status("VmHWM") - before, 0)


def peak_memory_of_family(work: Callable[[], object]) -> int:
    """Return the same for the process and those that it starts: pages that they share count once (sampled)."""
    _release()
    before, seen = _family_pss(), [0]
    with _sampling(lambda: seen.append(_family_pss())):
        work()
    return max(max(seen) - before, 0)


def _release() -> None:
    """Give freed memory back to the system, so that it does not hide what comes."""
    gc.collect()
    give_back_freed_memory()


def _status(name: str) -> int:
    return int(re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def _family_pss() -> int:
    total, waiting = 0, ["self"]
    while waiting:
        root = Path("/proc") / waiting.pop()
        with suppress(OSError):  # a child may be gone already
            total += int(re.search(r"Pss:\s*(\d+) kB", (root / "smaps_rollup").read_text())[1]) * 1024
            for task in (root / "task").iterdir():
                waiting += (task / "children").read_text().split()
    return total


# A sample takes some 30 ms of a processor: more often it would be in the time as well.
@contextmanager
def _sampling(sample: Callable[[], None], every: float = 0.5) -> Iterator[None]:
    done = threading.Event()

    def loop() -> None:
        while not done.wait(every):
            sample()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
