"""The three config files of the public TENT repository load unchanged."""

from __future__ import annotations

import pytest

from tta_cattan.config import CORRUPTIONS, get_defaults, load_cfg

COMMON = """\
MODEL:
  ADAPTATION: {method}
  ARCH: Standard
TEST:
  BATCH_SIZE: 200
CORRUPTION:
  DATASET: cifar10
  SEVERITY:
    - 5
    - 4
    - 3
    - 2
    - 1
  TYPE:
    - gaussian_noise
    - shot_noise
    - impulse_noise
    - defocus_blur
    - glass_blur
    - motion_blur
    - zoom_blur
    - snow
    - frost
    - fog
    - brightness
    - contrast
    - elastic_transform
    - pixelate
    - jpeg_compression
"""
OPTIM = """\
OPTIM:
  METHOD: Adam
  STEPS: 1
  BETA: 0.9
  LR: 1e-3
  WD: 0.
"""
# What TENT's own code declares, key by key.
TENT_DEFAULTS = {
    "MODEL": {"ARCH": "Standard", "ADAPTATION": "source", "EPISODIC": False},
    "CORRUPTION": {"DATASET": "cifar10", "SEVERITY": [5, 4, 3, 2, 1], "NUM_EX": 10000},
    "BN": {"EPS": 1e-5, "MOM": 0.1},
    "OPTIM": {
        "STEPS": 1,
        "LR": 1e-3,
        "METHOD": "Adam",
        "BETA": 0.9,
        "MOMENTUM": 0.9,
        "DAMPENING": 0.0,
        "NESTEROV": True,
        "WD": 0.0,
    },
    "TEST": {"BATCH_SIZE": 128},
    "CUDNN": {"BENCHMARK": True},
}
TENT_TOP = {
    "DESC": "",
    "RNG_SEED": 1,
    "SAVE_DIR": "./output",
    "DATA_DIR": "./data",
    "CKPT_DIR": "./ckpt",
    "LOG_DEST": "log.txt",
    "LOG_TIME": "",
}


@pytest.mark.parametrize(("method", "optim"), [("source", ""), ("norm", ""), ("tent", OPTIM)])
def test_the_files_of_tent_load_unchanged(tmp_path, method, optim):
    path = tmp_path / f"{method}.yaml"
    path.write_text(COMMON.format(method=method) + optim)
    expected = get_defaults()
    expected.MODEL.ADAPTATION = method
    expected.TEST.BATCH_SIZE = 200
    cfg = load_cfg(path)
    assert cfg == expected
    assert (type(cfg.OPTIM.LR), type(cfg.OPTIM.WD)) == (float, float)
    assert cfg.OPTIM.LR == 1e-3


def test_the_defaults_of_tent_are_kept():
    cfg = get_defaults()
    for node, keys in TENT_DEFAULTS.items():
        for key, value in keys.items():
            assert (cfg[node][key], type(cfg[node][key])) == (value, type(value)), f"{node}.{key}"
    for key, value in TENT_TOP.items():
        assert (cfg[key], type(cfg[key])) == (value, type(value)), key


def test_the_corruptions_are_in_the_order_of_tent():
    listed = [line.strip("- ") for line in COMMON.split("TYPE:\n")[1].splitlines()]
    assert get_defaults().CORRUPTION.TYPE == listed == list(CORRUPTIONS)
    assert len(listed) == 15


def test_a_command_line_of_tent_is_understood(tmp_path):
    path = tmp_path / "tent.yaml"
    path.write_text(COMMON.format(method="tent") + OPTIM)
    cfg = load_cfg(path, ["OPTIM.LR", "0.00025", "MODEL.EPISODIC", "True", "CORRUPTION.SEVERITY", "[5]"])
    assert (cfg.OPTIM.LR, cfg.MODEL.EPISODIC, cfg.CORRUPTION.SEVERITY) == (0.00025, True, [5])
