"""The peak memory of a step of CATTAn and of CATTAn+ offline over that of TENT, and what a cell copies."""

from __future__ import annotations

import copy

import torch

from benchmarks.speed.subjects import TINY, TINY_DIM, aligned, learning, network
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, peak_memory, show_bytes
from tta_cattan.methods.tent import Tent
from tta_cattan.network.ownership import copy_for_adaptation


def measure(tiny: bool = False) -> list[Line]:
    """Measure how far resident memory rises: for an update with its optimiser state, and for a copy of the model."""
    name, dim, d = (TINY, TINY_DIM, 8) if tiny else ("resnet50", 2048, 800)
    x = torch.rand(2, 3, 32, 32) if tiny else torch.rand(16, 3, 224, 224)
    model = network(name)
    peaks: dict[str, list[int]] = {"TENT": [], "CATTAn": [], "CATTAn+": []}
    build = {"TENT": Tent, "CATTAn": lambda own: aligned(own, dim, d), "CATTAn+": lambda own: learning(own, x)}
    for _ in range(1 if tiny else 3):
        for label in peaks:

            def build_and_step(label: str = label) -> None:
                build[label](copy.deepcopy(model))(x)

            peaks[label].append(peak_memory(build_and_step))
    tent, cattan, plus = (sorted(values)[len(values) // 2] for values in peaks.values())
    what = f"{name}, batch {len(x)}, {x.shape[-1]} px"
    lines = [Line(f"peak memory of a CATTAn step, {what}, d = {d}", "TENT step", *_show(cattan, tent))]
    lines.append(Line(f"peak memory of a CATTAn+ step, {what}, offline", "TENT step", *_show(plus, tent)))
    shared, whole = ([copier(model) for _ in range(1)] for copier in (copy_for_adaptation, copy.deepcopy))
    sizes = [_own_bytes(copies[0], model) for copies in (shared, whole)]
    lines.append(Line(f"memory of the copy that a cell adapts, {name}", "deep copy", *_show(*sizes)))
    return lines


def _own_bytes(mine: torch.nn.Module, source: torch.nn.Module) -> int:
    """Return the bytes of ``mine`` that are not the memory of ``source``."""
    theirs = {t.data_ptr() for t in (*source.parameters(), *source.buffers())}
    tensors = (*mine.parameters(), *mine.buffers())
    return sum(t.numel() * t.element_size() for t in tensors if t.data_ptr() not in theirs)


def _show(ours: int, theirs: int) -> tuple[str, str, float]:
    return show_bytes(ours), show_bytes(theirs), ours / max(theirs, 1)


if __name__ == "__main__":
    print_lines(measure())
