"""mariodoebler/test-time-adaptation: the registry contract."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from reference import CATTAN, host_logits, own_logits, toy

import tta_cattan.host
from tta_cattan import Subspace
from tta_cattan.host.launcher import main

CFG = ["--cfg", "cfgs/tent.yaml", "MODEL.ADAPTATION"]


def build(folder, monkeypatch, method="cattan", *settings):
    """Return a method as the host builds it, and the host's config."""
    monkeypatch.chdir(folder)
    sys.path.insert(0, str(folder))
    tta_cattan.host.register()
    from conf import cfg
    from utils.registry import ADAPTATION_REGISTRY

    cfg.merge_from_list(["MODEL.ADAPTATION", method, *CATTAN, *settings])
    return ADAPTATION_REGISTRY.get(method)(cfg=cfg, model=toy.ToyNet(flat=True).eval(), num_classes=4)


@pytest.mark.parametrize("setting", ["continual", "reset_each_shift"])
def test_logits_are_those_of_our_own_run(host, setting):
    folder = host("registry")
    assert main([str(folder / "test_time.py"), *CFG, "cattan", *CATTAN, "SETTING", setting]) == 0
    expected = own_logits(["fog", "snow"], CATTAN, reset_each=setting != "continual", flat=True)
    assert torch.equal(host_logits(folder), expected)


def test_steps_and_episodic_of_the_host(host):
    folder = host("registry")
    settings = ["OPTIM.STEPS", "2", "MODEL.EPISODIC", "True", "OPTIM.METHOD", "SGD"]
    main([str(folder / "test_time.py"), *CFG, "cattan", *CATTAN, *settings])
    assert torch.equal(host_logits(folder), own_logits(["fog", "snow"], CATTAN + settings, flat=True))


def test_mixed_precision_of_the_host(host):
    folder = host("registry")
    main([str(folder / "test_time.py"), *CFG, "cattan", *CATTAN, "MIXED_PRECISION", "True"])
    expected = own_logits(["fog", "snow"], [*CATTAN, "MIXED_PRECISION", "True"], reset_each=False, flat=True)
    assert torch.equal(host_logits(folder), expected)
    assert not torch.equal(expected, own_logits(["fog", "snow"], CATTAN, reset_each=False, flat=True))


@pytest.mark.parametrize("window", [1, 4])
def test_batch_size_one_with_the_sliding_window(host, window):
    folder = host("registry")
    settings = ["TEST.BATCH_SIZE", "1", "TEST.WINDOW_LENGTH", str(window), "CORRUPTION.NUM_EX", "10"]
    main([str(folder / "test_time.py"), *CFG, "cattan", *CATTAN, *settings])
    logits = host_logits(folder)
    assert logits.shape == (20, 4)
    assert logits.isfinite().all()


def test_window_predicts_without_an_update(host, monkeypatch):
    method = build(host("registry"), monkeypatch, "cattan", "TEST.WINDOW_LENGTH", "3")
    x, _ = toy.images("fog", 6)
    outputs = [method(x[[i]]) for i in range(2)]
    assert not method.method.aligned.enabled  # no update yet
    # The window's predictions are those of its batch; the one sample of the first call had no statistics of its own.
    assert torch.equal(outputs[1][0], method.method.predict(x[:2])[1])
    method(x[[2]])
    assert method.method.aligned.enabled


def test_reset_after_a_number_of_updates(host, monkeypatch):
    method = build(host("registry"), monkeypatch, "cattan", "MODEL.RESET_AFTER_NUM_UPDATES", "2")
    x, _ = toy.images("fog", 8)
    first = method(x)
    method(x)
    assert torch.equal(method(x), first)


@pytest.mark.parametrize("name", ["cattan", "CATTAn", "tent_plus", "shot_bn", "ip"])
def test_every_method_survives_what_hosts_do(host, monkeypatch, name):
    method = build(host("registry"), monkeypatch, name)
    x, _ = toy.images("fog", 8)
    method.reset()
    first = method(x)
    method.eval()
    second = method([x])
    assert not torch.equal(first, second)
    twin = copy.deepcopy(method)
    assert torch.equal(twin(x), method(x))
    method.load_state_dict(twin.state_dict(), strict=True)
    method.train()
    method.reset()
    assert torch.equal(method(x), first)


def test_the_hosts_names_win(host, monkeypatch):
    folder = host("registry")
    text = (folder / "methods" / "tent.py").read_text()
    (folder / "methods" / "tent.py").write_text(
        text + "\n\n@ADAPTATION_REGISTRY.register()\nclass IP(Tent):\n    pass\n"
    )
    sys.path.insert(0, str(folder))
    names = tta_cattan.host.register()
    assert {"cattan", "tent_plus", "shot_bn", "tta_cattan_ip"} <= set(names)
    assert "ip" not in names
    assert tta_cattan.host.register()  # a second time changes nothing
    method = build(folder, monkeypatch, "tta_cattan_ip")
    assert type(method.method).__name__ == "IP"


def test_source_subspace_is_fitted_from_the_hosts_loader(host):
    folder = host("registry")
    main([str(folder / "test_time.py"), *CFG, "cattan", "CATTAN.D", "6"])
    (path,) = (folder / "ckpt" / "subspaces").iterdir()
    expected = own_logits(["fog", "snow"], ["CATTAN.D", "6"], reset_each=False, flat=True, subspace=Subspace.load(path))
    assert torch.equal(host_logits(folder), expected)


def test_two_passes_fit_on_the_test_set_first(host):
    folder = host("registry")
    arguments = ["--two-pass", str(folder / "test_time.py"), *CFG, "cattan", *CATTAN, "SETTING", "reset_each_shift"]
    main(arguments)
    assert torch.equal(host_logits(folder), own_logits(["fog", "snow"], CATTAN, flat=True, two_pass=True))
