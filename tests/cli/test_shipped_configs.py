"""Every config file that ships: it loads, and what it names exists."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tta_cattan.bench.data import BENCHMARK_REGISTRY
from tta_cattan.bench.models.zoo import check_arch
from tta_cattan.bench.run.plan import plan_rows
from tta_cattan.config import load_cfg
from tta_cattan.methods import ADAPTATION_REGISTRY

ROOT = Path(__file__).parents[2] / "cfgs"
FILES = sorted(path for path in ROOT.rglob("*.yaml") if path.parent.name != "paper")  # those are studies
METHODS = {"source", "norm", "tent", "tent_plus", "shot", "ip", "cattan", "cattan_plus", "cattan_forward"}
VARIANTS = {"cattan_authors": "cattan", "cattan_free": "cattan", "extract": "source"}  # a second file of one method


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_it_loads_and_names_what_exists(path):
    cfg = load_cfg(path)
    assert cfg.MODEL.ADAPTATION in ADAPTATION_REGISTRY
    if path.stem == "base":  # a part of the others, which may have a second base
        return
    assert VARIANTS.get(path.stem, path.stem) == cfg.MODEL.ADAPTATION
    benchmark = BENCHMARK_REGISTRY.get(cfg.CORRUPTION.DATASET)(cfg)
    assert benchmark.domains()
    if benchmark.family is None or find_spec("robustbench"):
        check_arch(cfg.MODEL.ARCH, benchmark.family)


@pytest.mark.parametrize(
    "name",
    [
        "digits_c",
        "cifar10_c",
        "cifar100_c",
        "imagenet_c",
        "imagenet_c_augmix",
        "imagenet_c_deepaugment",
        "mnist_usps",
        "office31",
        "officehome",
        "domainnet",
        "domainnet_features",
        "pointda10",
        "shapes_c",
        "modelnet10",
    ],
)
def test_every_method_runs_on_every_dataset_over_one_base(name):
    dataset = load_cfg(ROOT / name / "base.yaml").CORRUPTION.DATASET
    methods = METHODS if BENCHMARK_REGISTRY.get(dataset).images else METHODS - {"ip"}
    stems = {path.stem for path in FILES if path.parent.name == name} - VARIANTS.keys()
    assert {"base", "cattan"} <= stems <= methods | {"base"}
    cfgs = [row.cfg for row in plan_rows(ROOT / name / "cattan.yaml", [], sorted(methods))]
    for part in ("CORRUPTION", "DATA", "SEEDS"):
        assert all(cfg[part] == cfgs[0][part] for cfg in cfgs), "methods are compared on the same data"
    assert len({(cfg.MODEL.ARCH, cfg.TEST.PROTOCOL) for cfg in cfgs}) == 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_only_repeats_its_base(path):
    content = yaml.safe_load(path.read_text())
    changes = {key: value for key, value in content.items() if key != "_BASE_"}
    entry = path.stem == "cattan" or path.parent.name == "imagenet_c"  # what users type
    assert entry or changes not in ({}, {"MODEL": {"ADAPTATION": path.stem}}) or content["_BASE_"] != "base.yaml"


@pytest.mark.parametrize("name", ["pointda10", "shapes_c"])
def test_the_authors_options_are_those_of_their_code(name):
    paper, authors = (load_cfg(ROOT / name / f"{file}.yaml") for file in ("cattan", "cattan_authors"))
    node = authors.CATTAN
    assert (node.ALIGN_REDUCTION, node.CLASS_BALANCE, node.LAMBDA_CB) == ("mean", "entropy", 0.2)
    assert (node.CENTERING, authors.BN.STATISTICS, authors.OPTIM.WD) == ("none", "running", 5e-4)
    assert node.D == 400 or name != "pointda10"
    assert (paper.CATTAN.ALIGN_REDUCTION, paper.CATTAN.CLASS_BALANCE, paper.OPTIM.WD) == ("sum", "sum", 0)
    for part in ("CORRUPTION", "DATA", "TEST", "SOURCE"):
        assert paper[part] == authors[part]
