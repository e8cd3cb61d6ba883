"""TENT, CoTTA and Benchmark-TTA: the if-chain contract."""

from __future__ import annotations

import ast
import hashlib

import pytest
import torch
from reference import CATTAN, host_logits, own_logits

from tta_cattan import Subspace
from tta_cattan.host.ifchain_host import add_branch
from tta_cattan.host.launcher import main
from tta_cattan.util.errors import UserError

CFG = ["--cfg", "cfgs/tent.yaml", "MODEL.ADAPTATION"]
SCRIPTS = {"tent": "cifar10c.py", "cotta": "cifar10c.py", "benchmark_tta": "test-time.py"}


def files(folder):
    """Return the digests of a host's own files."""
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.suffix in (".py", ".yaml")
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_logits_are_those_of_our_own_run(host, name, caplog):
    folder = host(name)
    before = files(folder)
    assert main(["--cpu", str(folder / SCRIPTS[name]), *CFG, "cattan", *CATTAN]) == 0
    # CoTTA resets at the first corruption of a severity only.
    expected = own_logits(["fog", "snow"], CATTAN, reset_each=name != "cotta")
    assert torch.equal(host_logits(folder), expected)
    assert files(folder) == before


@pytest.mark.parametrize("method", ["tent_plus", "shot_bn", "ip"])
def test_other_methods_run(host, method):
    folder = host("tent")
    torch.manual_seed(5)
    main(["--cpu", str(folder / "cifar10c.py"), *CFG, method])
    if method != "ip":  # its transformation is drawn at random
        assert torch.equal(host_logits(folder), own_logits(["fog", "snow"], [], method=method.removesuffix("_bn")))


def test_host_settings_reach_the_method(host):
    folder = host("tent")
    settings = ["OPTIM.LR", "0.01", "OPTIM.STEPS", "2", "MODEL.EPISODIC", "True", "CATTAN.LAMBDA_LR", "1"]
    main(["--cpu", str(folder / "cifar10c.py"), *CFG, "cattan", *CATTAN, *settings])
    assert torch.equal(host_logits(folder), own_logits(["fog", "snow"], CATTAN + settings))


def test_own_methods_of_the_host_stay(host, capfd):
    folder = host("tent")
    main(["--cpu", str(folder / "cifar10c.py"), *CFG, "tent"])
    log = capfd.readouterr().err
    assert "test-time adaptation: TENT" in log
    assert "[cifar10c.py]: error % [snow5]: " in log


def test_log_of_the_host_goes_on(host, capfd):
    folder = host("tent")
    main(["--cpu", str(folder / "cifar10c.py"), *CFG, "cattan", *CATTAN])
    log = capfd.readouterr().err
    assert "test-time adaptation: CATTAN" in log
    assert "not resetting model" not in log
    assert log.count("resetting model") == 2


@pytest.mark.parametrize("name", ["tent", "benchmark_tta"])
def test_two_passes_fit_on_the_test_set_first(host, name):
    folder = host(name)
    main(["--cpu", "--two-pass", str(folder / SCRIPTS[name]), *CFG, "cattan", *CATTAN])
    assert torch.equal(host_logits(folder), own_logits(["fog", "snow"], CATTAN, two_pass=True))


def test_two_passes_prepare_once_for_several_epochs(host):
    folder = host("benchmark_tta")
    main(["--cpu", "--two-pass", str(folder / "test-time.py"), *CFG, "cattan", *CATTAN, "TEST.EPOCH", "2"])
    logits = host_logits(folder)
    once = own_logits(["fog"], CATTAN, two_pass=True)
    assert torch.equal(logits[:24], once)
    assert not torch.equal(logits[24:48], once)


def test_source_subspace_is_fitted_from_the_hosts_loader_and_cached(host):
    folder = host("benchmark_tta")
    arguments = ["--cpu", str(folder / "test-time.py"), *CFG, "cattan", "CATTAN.D", "6"]
    main(arguments)
    (path,) = (folder / "ckpt" / "subspaces").iterdir()
    subspace = Subspace.load(path)
    assert (subspace.dim, subspace.count) == (12, 64)
    expected = own_logits(["fog", "snow"], ["CATTAN.D", "6"], subspace=subspace)
    assert torch.equal(host_logits(folder), expected)
    stamp = path.stat().st_mtime_ns
    main(arguments)
    assert path.stat().st_mtime_ns == stamp


def test_host_without_source_loader_names_the_remedy(host):
    folder = host("tent")
    with pytest.raises(UserError, match=r"CATTAN.SOURCE_BASIS to a file .* or to 'classifier'"):
        main(["--cpu", str(folder / "cifar10c.py"), *CFG, "cattan", "CATTAN.D", "6"])


def test_cuda_only_host_is_refused_before_it_starts(host):
    folder = host("tent")
    with pytest.raises(UserError, match=r"no CUDA device here.*--cpu"):
        main([str(folder / "cifar10c.py"), *CFG, "cattan", *CATTAN])
    assert not (folder / "logits.pt").exists()


def test_script_without_a_chain_is_refused():
    with pytest.raises(UserError, match=r"no `if cfg.MODEL.ADAPTATION"):
        add_branch(ast.parse("def evaluate():\n    model = METHODS[cfg.MODEL.ADAPTATION](base_model)\n"))


def test_the_hosts_names_win():
    source = "def f(cfg):\n    if cfg.MODEL.ADAPTATION == 'ip':\n        model = setup_ip(base)\n    return model\n"
    extended = ast.unparse(add_branch(ast.parse(source)))
    assert "'tta_cattan_ip'" in extended
    assert "'ip'," not in extended.replace("'tta_cattan_ip'", "")


def test_branch_keeps_the_line_numbers():
    source = "def f():\n    if cfg.MODEL.ADAPTATION == 'source':\n        model = setup(base)\n    return model\n"
    lines = {node.lineno for node in ast.walk(add_branch(ast.parse(source))) if hasattr(node, "lineno")}
    assert lines == {1, 2, 3, 4}
