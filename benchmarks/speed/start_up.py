"""How long ``tta-cattan --help`` takes."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved, show_seconds


def measure(tiny: bool = False) -> list[Line]:
    """Time whole processes; the ratio of the line is seconds of ours to one second."""

    def ours() -> None:
        subprocess.run([sys.executable, "-m", "tta_cattan.cli.main", "--help"], check=True, capture_output=True)

    rounds = interleaved({"ours": ours}, rounds=1 if tiny else 7, warmups=0 if tiny else 1, wall=True)
    seconds = rounds.median("ours")
    return [Line("start-up, `tta-cattan --help`", "one second", show_seconds(seconds), "1 s", seconds, "<= 1")]


if __name__ == "__main__":
    print_lines(measure())
