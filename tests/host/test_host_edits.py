"""The routes for those who prefer to edit, and the ready config files in third_party."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch
from reference import CATTAN, host_logits, own_logits

from tta_cattan.host.launcher import main, stay_on_cpu

THIRD_PARTY = Path(__file__).parents[2] / "third_party"
DECLARE = "import tta_cattan.host; tta_cattan.host.declare(cfg)"
BRANCH = 'if cfg.MODEL.ADAPTATION == "cattan": model = tta_cattan.host.setup_method(base_model, cfg)'


def run_edited(folder, script, before, after, monkeypatch):
    """Run a script as its user would, with ``after`` in the place of ``before``."""
    path = folder / script
    text = path.read_text()
    for old, new in zip(before, after, strict=True):
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)
    stay_on_cpu()
    monkeypatch.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = [script, "--cfg", "cfgs/tent.yaml", "MODEL.ADAPTATION", "cattan", *CATTAN]
    runpy.run_path(script, run_name="__main__")


def test_two_lines_in_an_if_chain(host, monkeypatch):
    folder = host("tent")
    places = ["\nlogger = ", '    if cfg.MODEL.ADAPTATION == "source"']
    edits = [f"{DECLARE}\n{places[0]}", f"    {BRANCH}\n{places[1]}"]
    run_edited(folder, "cifar10c.py", places, edits, monkeypatch)
    assert torch.equal(host_logits(folder), own_logits(["fog", "snow"], CATTAN))


def test_one_line_in_a_registry_host(host, monkeypatch):
    folder = host("registry")
    line = "import tta_cattan.host; tta_cattan.host.register()"
    run_edited(folder, "test_time.py", ["\nlogger = "], [f"{line}\n\nlogger = "], monkeypatch)
    assert torch.equal(host_logits(folder), own_logits(["fog", "snow"], CATTAN, reset_each=False, flat=True))


HOST_OF_CONFIG = {
    "tent": ("tent", "cifar10c.py"),
    "cotta": ("cotta", "cifar10c.py"),
    "benchmark-tta": ("benchmark_tta", "test-time.py"),
    "test-time-adaptation": ("registry", "test_time.py"),
}


@pytest.mark.parametrize(
    "config", sorted(THIRD_PARTY.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_ready_config_files_run(host, config):
    name, script = HOST_OF_CONFIG[config.parent.name]
    folder = host(name)
    shutil.copy(config, folder)
    main(["--cpu", str(folder / script), "--cfg", config.name, "CATTAN.D", "6"])
    assert host_logits(folder).isfinite().all()
