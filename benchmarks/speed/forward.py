"""CATTAn-F against plain inference of the source model: the same network, the same batch; time and memory."""

from __future__ import annotations

import copy
import itertools
import sys

import torch

from benchmarks.speed.subjects import TINY, network
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved, peak_memory, show_bytes
from tta_cattan.alignment.source_moments import fit_source_moments
from tta_cattan.bench.models.networks import CifarResNet
from tta_cattan.methods import CATTAnForward

TIME, MEMORY = "<= 1.3", "<= 1.1"
_ROUND = 8  # batches, of which a domain that is known absorbs the same number in every round
_IMAGES = 768  # different ones: fewer come again among those by which a stream is judged, and look like a mixture


def measure(tiny: bool = False, batch: int = 64) -> list[Line]:
    """Time a domain's first eight batches and those after 512 images, and compare the peaks of memory.

    Note: the target is the source in other units, so that every layer has something to align.
    """
    torch.manual_seed(0)
    if tiny:
        x = torch.rand(batch, 3, 16, 16)
        return _lines("CIFAR ResNet-8", CifarResNet(8).eval(), x, 1, 1) + _lines(TINY, network(TINY), x, 1, 1)
    lines = _lines("CIFAR ResNet-20", CifarResNet(20).eval(), torch.randn(batch, 3, 32, 32), 7, 4)
    # ImageNet's preset aligns covariances of up to 512 channels.
    return lines + _lines("resnet50", network("resnet50"), torch.randn(batch, 3, 224, 224), 3, 1, channels=512)


def _lines(
    name: str, source: torch.nn.Module, x: torch.Tensor, rounds: int, repeats: int, channels: int = 128
) -> list[Line]:
    source.requires_grad_(False)
    moments = fit_source_moments(source, [x], channels)
    targets = [1.5 * torch.randn_like(x) + 1 for _ in range(-(-_IMAGES // len(x)))]
    target, stream = targets[0], itertools.cycle(targets)

    def method() -> CATTAnForward:
        # One batch says too little of the source to tell what is far from it.
        made = CATTAnForward(copy.deepcopy(source), source_moments=moments, channels=channels, far=1e30)
        made(target)
        assert made.target.domain is not None, "the target is taken for the source"
        return made

    def forward(model: torch.nn.Module, batches: int) -> None:
        for _ in range(batches):
            model(next(stream))

    settled, new = method(), method()
    forward(settled, -(-512 // len(x)))
    assert len(settled.target.domains) == 1, "the target is taken for a mixture"

    def fresh() -> None:
        new.reset()
        forward(new, 8)

    with torch.no_grad():
        known = interleaved(
            {"CATTAn-F": lambda: forward(settled, _ROUND), "plain network": lambda: forward(source, _ROUND)},
            rounds=rounds,
            calls=repeats,
        )
        begun = interleaved({"CATTAn-F": fresh, "plain network": lambda: forward(source, 8)}, rounds=rounds)
        ours, theirs = peak_memory(lambda: method()(target)), peak_memory(lambda: copy.deepcopy(source)(target))
    what = f"{name}, batch {len(x)}, {x.shape[-1]} px, covariances of up to {channels} channels"
    return [
        known.line(f"CATTAn-F in a known domain, {what}, {_ROUND} batches", "CATTAn-F", "plain network", TIME),
        begun.line(f"CATTAn-F in a new domain, {what}, first 8 batches", "CATTAn-F", "plain network"),
        Line(
            f"CATTAn-F, {what}: peak memory, its weights included",
            "plain network",
            show_bytes(ours),
            show_bytes(theirs),
            ours / max(theirs, 1),
            MEMORY,
        ),
    ]


if __name__ == "__main__":
    print_lines(measure(batch=int(sys.argv[1]) if len(sys.argv) > 1 else 64))
