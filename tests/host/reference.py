"""What our own class does on the stream that a small host shows it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from tta_cattan import setup_model
from tta_cattan.config import load_cfg

SMALL_HOSTS = Path(__file__).parent / "small_hosts"
_SPEC = importlib.util.spec_from_file_location("toy_of_tests", SMALL_HOSTS / "common" / "toy.py")
toy = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(toy)

# CoTTA grew out of TENT, and its small host does too.
_GROWN_FROM = {"cotta": "tent"}

CATTAN = ["CATTAN.D", "6", "CATTAN.SOURCE_BASIS", "classifier"]


def own_logits(
    domains, overrides, reset_each=True, batch_size=8, flat=False, subspace=None, two_pass=False, method="cattan"
):
    """Return the logits of our method over the domains, set up by our own ``setup_model``."""
    cfg = load_cfg(None, ["MODEL.ADAPTATION", method, "OPTIM.LR", 1e-3, *overrides])  # the hosts' rate
    adapted = setup_model(toy.ToyNet(flat).eval(), cfg, 4, subspace)
    logits = []
    for place, domain in enumerate(domains):
        if place == 0 or reset_each:
            adapted.reset()
        batches = toy.images(domain)[0].split(batch_size)
        if two_pass:
            adapted.prepare([(torch.arange(len(x)), x) for x in batches])
        logits += [adapted(x) for x in batches]
    return torch.cat(logits)


def host_logits(folder):
    """Return the logits that the host saw."""
    return torch.load(folder / "logits.pt", weights_only=True)


def host_layers(name: str) -> list[Path]:
    """Return the folders that make up a small host, later ones over earlier ones."""
    return [SMALL_HOSTS / layer for layer in ("common", _GROWN_FROM.get(name), name) if layer]
