"""TTAB: the dictionary contract."""

from __future__ import annotations

import pytest
import torch
from reference import CATTAN, host_logits, own_logits

from tta_cattan.host.launcher import main
from tta_cattan.util.errors import UserError

METHOD = "--model_adaptation_method"


@pytest.mark.parametrize("spelling", [[METHOD, "cattan"], [f"{METHOD}=cattan"]])
def test_logits_are_those_of_our_own_run(host, spelling, capsys):
    folder = host("ttab")
    assert main([str(folder / "run_exp.py"), *spelling, "--device", "cpu", *CATTAN]) == 0
    assert torch.equal(host_logits(folder), own_logits(["fog"], CATTAN))
    assert "stats of test-time adaptation: cattan" in capsys.readouterr().out


def test_options_of_the_host_reach_the_method(host):
    folder = host("ttab")
    options = ["--device", "cpu", "--lr", "0.01", "--n_train_steps", "2", "--episodic", "true"]
    main([str(folder / "run_exp.py"), METHOD, "cattan", *options, *CATTAN])
    settings = ["OPTIM.LR", "0.01", "OPTIM.STEPS", "2", "MODEL.EPISODIC", "True"]
    assert torch.equal(host_logits(folder), own_logits(["fog"], CATTAN + settings))


def test_the_flag_for_the_cpu(host):
    folder = host("ttab")
    main(["--cpu", str(folder / "run_exp.py"), METHOD, "shot_bn"])
    assert torch.equal(host_logits(folder), own_logits(["fog"], [], method="shot"))


def test_missing_device_is_said_before_the_start(host):
    folder = host("ttab")
    with pytest.raises(UserError, match=r"cuda:0.*add --device cpu"):
        main([str(folder / "run_exp.py"), METHOD, "cattan", *CATTAN])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model_selection_method", "oracle_model_selection"], "picks an update by the labels"),
        (["CATTAN.D"], "pairs KEY VALUE"),
    ],
)
def test_what_cannot_work_is_refused(host, options, message):
    folder = host("ttab")
    with pytest.raises(UserError, match=message):
        main([str(folder / "run_exp.py"), METHOD, "cattan", "--device", "cpu", *options])


def test_two_passes_are_refused(host):
    folder = host("ttab")
    with pytest.raises(UserError, match="does not expose its test loader"):
        main(["--two-pass", str(folder / "run_exp.py"), METHOD, "cattan", "--device", "cpu", *CATTAN])
