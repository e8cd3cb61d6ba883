"""``tta-cattan paper`` from its arguments to its files, on the embedded digits."""

from __future__ import annotations

import csv

import pytest
from digits_runs import overrides
from feature_folders import write_domain
from image_trees import write_tree

from tta_cattan.bench.paper.study import study_names
from tta_cattan.bench.run import cell as cell_module
from tta_cattan.cli.main import main

pytest.importorskip("matplotlib")
SMALL = {"CORRUPTION.TYPE": "contrast", "TEST.BATCH_SIZE": "32", "CATTAN.D": "8"}


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    """Return the list to which the method of every cell that is really computed is added."""
    cells, compute = [], cell_module.run_cell

    def watched(job, setting):
        cells.append(job.cell.method)
        return compute(job, setting)

    monkeypatch.setattr(cell_module, "run_cell", watched)
    return cells


def paper(save, name: str, *options: str, **changes: object) -> int:
    arguments = [name, "--cfg", "cfgs/digits_c/cattan.yaml", *options]
    return main(["paper", *arguments, *overrides(save, **{**SMALL, **changes})])


def files_of(save) -> set[str]:
    return {path.name for path in (save / "paper").iterdir()}


def test_it_lists_the_studies(capsys):
    assert main(["paper", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == study_names() and all(len(line.split()) > 1 for line in lines)
    tables = {f"table-{name}" for name in ("imagenet-c", "officehome", "office31", "pointda10", "domainnet")}
    figures = {f"figure-{name}" for name in ("dimension", "lambda-cb", "samples", "recovery", "robust")}
    assert tables | figures <= {line.split()[0] for line in lines}


def test_a_table_on_other_data_says_so_and_is_not_computed_twice(tmp_path, capsys, computed):
    assert paper(tmp_path, "table-imagenet-c", "--methods", "source,tent") == 0
    assert computed == ["source", "tent"]
    out = capsys.readouterr().out
    assert "data: NOT THE PAPER'S: digits_c instead of imagenet_c" in out and "difference" not in out
    assert "SEEDS 0 instead of 0,1,2" in out and "published" in out
    assert files_of(tmp_path) == {f"table-imagenet-c.{kind}" for kind in ("md", "csv", "svg", "png")}
    page = (tmp_path / "paper" / "table-imagenet-c.md").read_text()
    assert "NOT THE PAPER'S" in page and "(table-imagenet-c.svg)" in page and "| TENT | ours |" in page
    assert paper(tmp_path, "table-imagenet-c", "--methods", "source,tent,norm") == 0
    assert computed == ["source", "tent", "norm"], "what is there is used again"


def test_a_sweep_has_a_row_per_setting(tmp_path, capsys, computed):
    assert paper(tmp_path, "figure-lambda-cb", "--sweep", "CATTAN.LAMBDA_CB=0,1") == 0
    assert len(computed) == 3 and "TENT+" in capsys.readouterr().out
    with open(tmp_path / "paper" / "figure-lambda-cb.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["CATTAN.LAMBDA_CB"], row["method"]) for row in rows] == [
        ("-", "TENT+"),
        ("0.0", "CATTAn"),
        ("1.0", "CATTAn"),
    ]


def test_the_dimension_and_the_recovery_figures(tmp_path, capsys, computed):
    assert paper(tmp_path, "figure-dimension", **{"CATTAN.D": 0}) == 0
    assert "by the stability rule" in capsys.readouterr().out
    assert paper(tmp_path, "figure-recovery", "--methods", "cattan", **{"RECOVERY.K": 2}) == 0
    out = capsys.readouterr().out
    assert computed == ["cattan", "cattan"] and "CATTAn, tau 0.75: " in out and "AUROC" in out
    assert paper(tmp_path, "figure-recovery", "--methods", "cattan", **{"RECOVERY.K": 2, "RECOVERY.TAU": 0.5}) == 0
    assert len(computed) == 2 and "tau 0.5: " in capsys.readouterr().out, "tau is swept without adapting again"
    assert {"figure-dimension.svg", "figure-recovery.png", "figure-recovery-2.csv"} <= files_of(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["figure-robost"], "Did you mean 'figure-robust'?"),
        ([], "name a study: table-"),
        (["table-imagenet-c", "DATA_DIR", "nowhere"], "nowhere/ImageNet-C/gaussian_noise/5 is missing"),
        (["table-imagenet-c", "--sweep", "TEST.EPOCHS=1,2"], "table-imagenet-c sweeps nothing"),
        (["table-imagenet-c", "--methods", "tnet"], "tnet"),
        (["table-officehome", "DATA_DIR", "nowhere"], "nowhere"),
        (["figure-recovery", "DATA_DIR", "nowhere"], "nowhere"),
        (["figure-robust", "DATA_DIR", "nowhere"], "nowhere"),
        (["table-pointda10", "DATA_DIR", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, said):
    assert main(["paper", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def on_features(folder, *arguments: str, **changes: object) -> int:
    for seed, name in enumerate(("amazon", "dslr", "webcam")):
        write_domain(folder / "data", name, 64, seed)
    values = {"SOURCE.EPOCHS": 1, "TEST.EPOCHS": 1, "SEEDS": 0, "CKPT_DIR": folder, "SAVE_DIR": folder}
    values |= {"DATA_DIR": folder / "data", "MODEL.IN_FEATURES": 6, "CATTAN.D": 3, "DATA.TARGET": "dslr", **changes}
    pairs = [str(part) for pair in values.items() for part in pair]
    return main(["paper", *arguments, "--cfg", "cfgs/office31_features/cattan.yaml", *pairs])


def test_a_method_of_the_study_that_needs_images_is_left_out_on_features_and_named(tmp_path, capsys, computed):
    assert on_features(tmp_path, "table-office31", **{"DATA.SOURCE": "webcam"}) == 0
    assert computed == ["source", "tent", "tent_plus", "shot", "cattan"]
    assert "left out: IP (needs images, and features has none)" in capsys.readouterr().out
    assert on_features(tmp_path, "table-office31", "--methods", "ip", **{"DATA.SOURCE": "webcam"}) == 2
    assert "'ip' needs images" in capsys.readouterr().err, "what the user names is not left out"


def test_pairs_of_domains_are_the_columns(tmp_path, capsys, computed):
    assert on_features(tmp_path, "table-pointda10", "--methods", "source,tent") == 0
    out = capsys.readouterr().out
    assert "A>D" in out and "W>D" in out and "D>A" not in out
    assert len(computed) == 4 and "features instead of pointda10" in out


def test_a_part_of_the_papers_images_is_not_taken_for_all(tmp_path, capsys):
    write_tree(tmp_path, "officehome", n=2)
    values = {"DATA_DIR": tmp_path, "SAVE_DIR": tmp_path / "out", "CKPT_DIR": tmp_path / "out", "DATA.IMAGE_SIZE": 28}
    values |= {"DATA.SOURCE": "Art", "DATA.TARGET": "Clipart", "SOURCE.INIT": "random", "SOURCE.EPOCHS": 1, "SEEDS": 0}
    values |= {"MODEL.ARCH": "shot/small_resnet", "SOURCE.BATCH_SIZE": 6}
    arguments = [str(part) for pair in values.items() for part in pair]
    assert main(["paper", "table-officehome", "--methods", "source", *arguments]) == 0
    out = capsys.readouterr().out
    assert "Art has 6 images here and 2,427 in the data set" in out and "difference" not in out
    assert "published" in out and "43.7" in out
