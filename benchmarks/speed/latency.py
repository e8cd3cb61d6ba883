"""What serving costs: a prediction and an adapting call against the plain network, a switch of streams, its size."""

from __future__ import annotations

import copy
import io

import torch

from benchmarks.speed.subjects import TINY, network
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved
from tta_cattan.methods import CATTAn, CATTAnPlus, Tent

PLAIN = "plain network"
STEP = "<= 1.15"


def measure(tiny: bool = False) -> list[Line]:
    """Time TENT, CATTAn and CATTAn+ at batch 1, 16 and 64, and the switch between two streams at batch 1."""
    name, size, batches = (TINY, 32, (1, 2)) if tiny else ("resnet50", 64, (1, 16, 64))
    plain = network(name).requires_grad_(False)
    models = {kind.title: kind(copy.deepcopy(plain)) for kind in (Tent, CATTAn, CATTAnPlus)}
    lines = []
    for batch in batches:
        x = torch.rand(batch, 3, size, size)
        sides = {PLAIN: lambda x=x: torch.no_grad()(plain)(x)}
        for title, model in models.items():
            sides[f"{title}, predict"] = lambda x=x, model=model: model.predict(x)
            sides[f"{title}, adapt"] = lambda x=x, model=model: model(x)
        rounds = interleaved(sides, 1 if tiny else 3, calls=1 if tiny or batch > 1 else 8)
        what = f"{name}, batch {batch}, {size} px"
        lines += [rounds.line(f"{side}, {what}", side, PLAIN) for side in sides if side != PLAIN]
        step, tent = f"{CATTAnPlus.title}, adapt", f"{Tent.title}, adapt"
        lines.append(rounds.line(f"{step}, {what}", step, tent, STEP))
    return [*lines, *_streams(models[CATTAnPlus.title], plain, name, size, tiny)]


def _streams(model: CATTAnPlus, plain: torch.nn.Module, name: str, size: int, tiny: bool) -> list[Line]:
    """Time a turn of two streams that does nothing, and weigh what the second one owns."""
    x = torch.rand(4, 3, size, size)
    for stream in ("left", "right"):
        with model.stream(stream):
            model(x)

    def turn() -> None:
        with model.stream("left"):
            pass

    sides = {"turn": turn, PLAIN: lambda: torch.no_grad()(plain)(x[:1])}
    rounds = interleaved(sides, rounds=1 if tiny else 5, calls=1 if tiny else 20)
    own, whole = _bytes(model.streams.states(model)["left"]), _bytes(plain.state_dict())
    return [
        rounds.line(f"a turn of a stream (two switches), {name}, against a prediction of one image", "turn", PLAIN),
        Line(f"a stream's state, {name}", "a copy", f"{own / 2**20:.2f} MB", f"{whole / 2**20:.1f} MB", own / whole),
    ]


def _bytes(state: object) -> int:
    file = io.BytesIO()
    torch.save(state, file)
    return file.tell()


if __name__ == "__main__":
    print_lines(measure())
