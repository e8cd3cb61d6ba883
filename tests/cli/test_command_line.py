"""What the command line says: help without torch, lists, and one line for a mistake."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import bad_files
import pytest
from digits_runs import compare, overrides

from tta_cattan import __version__
from tta_cattan.cli.arguments import ConfigParser
from tta_cattan.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]


def test_help_is_quick_and_needs_no_torch():
    script = [sys.executable, ROOT / "cifar_imagenet_test.py", "--help"]
    shown = subprocess.run(script, capture_output=True, text=True, check=True, timeout=60).stdout
    assert all(word in shown for word in ("--cfg", "--methods", "--list", "--dry-run", "KEY VALUE"))
    code = "import sys, tta_cattan.cli.main as m\ntry: m.main(['--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT, timeout=60)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command_on_one_line(capsys, arguments):
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, does in COMMANDS.items():
        assert f"  {name:18}{does}" in lines


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    for arguments in ([command, "--help"], ["help", command]):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 0 and capsys.readouterr().out.startswith(f"usage: tta-cattan {command}")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tta-cattan {__version__}\n"


def test_pairs_may_be_written_with_an_equals_sign():
    _, overrides = ConfigParser("compare", "", usage="").parse(
        ["OPTIM.LR=0.1", "DESC", "a=b", "DATA.SOURCE=", "SEEDS", "0"]
    )
    assert overrides == ["OPTIM.LR", "0.1", "DESC", "a=b", "DATA.SOURCE", "", "SEEDS", "0"]


def test_a_method_by_its_key_alone_is_the_only_one_that_runs(tmp_path, capsys):
    assert main(["--dry-run", *overrides(tmp_path, **{"MODEL.ADAPTATION": "tent"})]) == 0
    shown = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert ["tent", "2", "2"] in shown and ["all", "2", "2"] in shown


def test_list_names_everything(capsys):
    assert main(["--list"]) == 0
    methods, datasets, *models = capsys.readouterr().out.splitlines()
    for name in ("source", "norm", "tent", "tent_plus", "shot", "ip", "cattan"):
        assert f" {name}," in f"{methods},"
    for name in ("digits_c", "cifar10_c", "cifar100_c", "imagenet_c", "imagenet_3dcc", "imagenet_clean"):
        assert f" {name}," in f"{datasets},"
    models = "\n".join(models)
    for name in ("small_resnet", "cifar_resnet56", "resnet50_v1", "torchvision/NAME", "timm/NAME"):
        assert name in models
    if find_spec("robustbench"):
        for name in ("Standard_R50", "Hendrycks2020AugMix,", "Hendrycks2020Many", "Hendrycks2020AugMix_WRN"):
            assert name in models


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "source,tnet"], ["unknown adaptation method 'tnet'", "Did you mean 'tent'?"]),
        (["--methods", "tent,,norm"], ["names separated by commas"]),
        (["--methods", "tent,TENT"], ["asked for twice"]),
        (["--cfg", "cfgs/digits_c/catan.yaml"], ["catan.yaml", "cfgs/digits_c/cattan.yaml"]),
        (["CORRUPTION.DATASET", "digit_c"], ["unknown dataset 'digit_c'", "Did you mean 'digits_c'?"]),
        (["MODEL.ARCH", "small_resnt"], ["MODEL.ARCH = 'small_resnt'", "Did you mean 'small_resnet'?"]),
        (["MODEL.ARCH", "torchvision/resnet81"], ["torchvision has no model 'resnet81'", "resnet"]),
        (["MODEL.ARCH", "timm/resnet81"], ["timm has no model 'resnet81'", "Did you mean"]),
        (["CORRUPTION.TYPE", "gausian_noise"], ["CORRUPTION.TYPE has 'gausian_noise'", "'gaussian_noise'?"]),
        (["CATAN.D", "3"], ["unknown key 'CATAN.D'", "CATTAN.D"]),
        (["CATTAN.D"], ["CATTAN.D has no value", "CATTAN.D=VALUE"]),
        (["OPTIM.LR", "-1"], ["OPTIM.LR", ">= 0"]),
        (["MODEL.ADAPTATION", "tent", "CATTAN.D", "3"], ["CATTAN.D has no effect", "reads it (tent)"]),
        (["MODEL.ADAPTATION", "norm", "OPTIM.LR", "3"], ["OPTIM.LR has no effect", "reads it (norm)"]),
        (["BN.BLEND_SCALE", "3"], ["BN.BLEND_SCALE has no effect here: it needs BN.STATISTICS blend"]),
        (["RECOVERY.TAU", "0.5"], ["RECOVERY.TAU has no effect here: it needs TEST.PROTOCOL recovery"]),
        (["TEST.PROTOCOL", "online"], ["TEST.EPOCHS has no effect here: it needs TEST.PROTOCOL offline"]),
        (["STREAM.ROUNDS", "3"], ["STREAM.ROUNDS has no effect here", "SETTING continual"]),
        (["DATA.SOURCE", "Art"], ["DATA.SOURCE has no effect here", "source and target domains"]),
        (["DEVICE", "cuda:77"], ["DEVICE = 'cuda:77' cannot be used here"]),
        (["CORRUPTION.DATASET", "cifar10_c", "DATA_DIR", "absent"], ["absent/CIFAR-10-C/labels.npy is missing"]),
        (["fit-source", "--cfg", "absent.yaml"], ["absent.yaml"]),
        (["fo"], ["unknown command 'fo'. Commands: compare", "make-corruptions"]),
        (["features"], ["unknown command 'features'", "Did you mean 'extract-features'?"]),
        (["MODEL.ADAPTATION", "eata"], ["unknown adaptation method 'eata'. Registered"]),
        (["MODEL.ADAPTATION", "cotta"], ["unknown adaptation method 'cotta'. Registered"]),
        (["MODEL.ADAPTATION", "tnet"], ["Did you mean 'tent'?"]),
        (["raport", "x"], ["unknown command 'raport'", "Did you mean 'report'?"]),
        (["cfgs/cifar10_c/base.yaml"], ["tta-cattan --cfg cfgs/cifar10_c/base.yaml"]),
        (["--methods", "tent", "MODEL.ADAPTATION", "ip"], ["both name methods"]),
        (["--import", "no_such_module"], ["cannot import no_such_module", "No module named"]),
        (["inspect", "absent.safetensors"], ["absent.safetensors does not exist"]),
        (["make-corruptions", "--images", "absent", "--out", "x"], ["--images absent does not exist"]),
    ],
    ids=lambda value: "-".join(value[-2:]) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    if not arguments[0].islower():
        more = ["--dry-run", *overrides(tmp_path / "save", DEVICE="cpu")] if arguments[0].isupper() else ["--dry-run"]
        arguments = [*more, *arguments] if arguments[0].isupper() else [*arguments, *more]
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: ")
    assert len(shown.err.splitlines()) == 1 and "Traceback" not in shown.err
    for word in words:
        assert word in shown.err
    assert list(tmp_path.iterdir()) == []


def test_interrupted_anywhere_is_one_line(monkeypatch, capsys, tmp_path):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tta_cattan.bench.run.runner.run", stop)
    assert main(compare(tmp_path)) == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("interrupted: ")


def test_inspect_does_not_let_a_file_steer_the_terminal(tmp_path, capsys):
    path = bad_files.subspace(
        tmp_path / "s.safetensors", provenance={"a\x1b[2J": "b\x1b]0;title\x07", "c": {"d": "\r"}}
    )
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.splitlines()) and "a\\x1b[2J" in shown and "\\x07" in shown
