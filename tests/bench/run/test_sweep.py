"""Sweeps: what they spell, which rows they make, and what they refuse."""

from __future__ import annotations

import pytest

from tta_cattan.bench.run.plan import Sweep, parse_sweeps, plan_rows
from tta_cattan.util.errors import UserError

CFG = "cfgs/digits_c/cattan.yaml"


def labels(methods: str, *sweeps: str, overrides: list[str] | None = None) -> list[str]:
    rows = plan_rows(CFG, overrides or [], methods.split(","), parse_sweeps(sweeps, overrides or []))
    return [row.label for row in rows]


def test_each_combination_is_a_row_with_its_own_label_and_config():
    rows = plan_rows(CFG, [], ["cattan"], parse_sweeps(["CATTAN.D=8,16", "TEST.EPOCHS=1,2,3"]))
    assert [(row.cfg.CATTAN.D, row.cfg.TEST.EPOCHS) for row in rows] == [
        (8, 1), (8, 2), (8, 3), (16, 1), (16, 2), (16, 3),
    ]  # fmt: skip
    assert rows[3].label == "cattan [CATTAN.D=16, TEST.EPOCHS=1]" and rows[3].method == "cattan"
    assert rows[3].changes == (("CATTAN.D", 16), ("TEST.EPOCHS", 1))


def test_a_method_that_does_not_read_a_key_has_one_row():
    assert labels("tent,cattan", "CATTAN.D=8,16") == ["tent", "cattan [CATTAN.D=8]", "cattan [CATTAN.D=16]"]
    assert labels("tent,cattan", "TEST.EPOCHS=1,2") == [
        "tent [TEST.EPOCHS=1]", "tent [TEST.EPOCHS=2]", "cattan [TEST.EPOCHS=1]", "cattan [TEST.EPOCHS=2]",
    ]  # fmt: skip


def test_a_label_shows_the_value_however_it_is_typed():
    assert labels("tent", "OPTIM.LR=1e-3,.5") == ["tent [OPTIM.LR=0.001]", "tent [OPTIM.LR=0.5]"]
    assert labels("tent", "MIXED_PRECISION=on,no") == ["tent [MIXED_PRECISION=True]", "tent [MIXED_PRECISION=False]"]


def test_a_setting_that_is_a_list_stands_in_brackets():
    assert Sweep.parse("CORRUPTION.TYPE=[fog,snow],frost").settings == ("[fog,snow]", "frost")
    assert Sweep.parse("SEEDS=(0, 1), [2]").settings == ("(0, 1)", "[2]")
    assert labels("tent", "SEEDS=[0,1],[2]") == ["tent [SEEDS=[0,1]]", "tent [SEEDS=[2]]"]


@pytest.mark.parametrize(
    ("methods", "sweeps", "overrides", "words"),
    [
        ("cattan", ["CATTAN.D"], [], "give KEY=a,b,c"),
        ("cattan", ["CATTAN.D=8,,9"], [], "give KEY=a,b,c"),
        ("cattan", ["CATTAN.DD=8"], [], "unknown key 'CATTAN.DD'. Did you mean 'CATTAN.D'"),
        ("cattan", ["CATTAN=8"], [], "group of keys"),
        ("cattan", ["CATTAN.D=8", "CATTAN.D=9"], [], "given twice"),
        ("cattan", ["CATTAN.D=8,9"], ["CATTAN.D", "7"], "given twice"),
        ("cattan", ["OPTIM.LR=0.001,1e-3"], [], "asked for twice"),
        ("cattan", ["CATTAN.D=8,x"], [], "CATTAN.D = 'x': must be an integer"),
        ("cattan", ["CATTAN.D=8,-1"], [], "CATTAN.D = -1: must be >= 0"),
        ("cattan", ["MODEL.ADAPTATION=tent,norm"], [], "--methods"),
        ("cattan", ["SAVE_DIR=a,b"], [], "one folder"),
        ("cattan", ["SOURCE.PER_CLASS=1,2"], [], "fit-source"),
        ("tent,norm", ["CATTAN.D=8,9"], [], "none of the methods compared reads it (tent, norm)"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(methods, sweeps, overrides, words):
    with pytest.raises(UserError) as told:
        labels(methods, *sweeps, overrides=overrides)
    assert words in str(told.value)
