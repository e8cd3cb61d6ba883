"""Small hosts in a folder of their own, and a process that forgets them again."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yacs.config
from reference import host_layers
from torch import nn

collect_ignore = ["small_hosts"]

# Top-level names that belong to hosts.
_HOST_MODULES = (
    "conf",
    "tent",
    "cotta",
    "toy",
    "robustbench",
    "src",
    "utils",
    "methods",
    "datasets",
    "parameters",
    "ttab",
)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a function that copies a small host to a folder and returns it; the process is restored afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.cuda)
    monkeypatch.setattr(nn.Module, "cuda", nn.Module.cuda)
    monkeypatch.setattr(torch, "load", torch.load)
    monkeypatch.setattr(yacs.config, "_check_and_coerce_cfg_value_type", yacs.config._check_and_coerce_cfg_value_type)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    before = _host_modules()
    for name in before:
        del sys.modules[name]

    def copy(name: str) -> Path:
        folder = tmp_path / name
        for layer in host_layers(name):
            shutil.copytree(layer, folder, dirs_exist_ok=True)
        return folder

    yield copy
    for name in _host_modules():
        del sys.modules[name]
    sys.modules.update(before)


def _host_modules():
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] in _HOST_MODULES}
