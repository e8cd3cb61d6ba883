"""All pairs of a benchmark by one command: trained, fitted, adapted, tabled; nothing twice, nothing left unsaid."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from feature_folders import write_domain
from image_trees import DOMAINS, break_image, write_tree

from tta_cattan.bench.data import BENCHMARK_REGISTRY
from tta_cattan.bench.results.published import published
from tta_cattan.bench.run import cell
from tta_cattan.bench.source import model as source_room
from tta_cattan.bench.source.model import trained_path
from tta_cattan.cli.main import main
from tta_cattan.config import load_cfg

TINY = {
    "MODEL.ARCH": "shot/small_resnet",
    "DATA.IMAGE_SIZE": 28,
    "SOURCE.INIT": "random",
    "SOURCE.EPOCHS": 1,
    "SOURCE.BATCH_SIZE": 6,
    "TEST.EPOCHS": 1,
    "TEST.BATCH_SIZE": 6,
    "SEEDS": 0,
    "DEVICE": "cpu",
}


def arguments(tmp_path, *options: str, **changes: object) -> list[str]:
    values = {**TINY, "DATA_DIR": tmp_path, "CKPT_DIR": tmp_path / "ckpt", "SAVE_DIR": tmp_path / "out", **changes}
    return [*options, *(str(part) for pair in values.items() for part in pair)]


def pairs(name: str, methods: str = "source,cattan") -> list[str]:
    return ["pairs", "--cfg", f"cfgs/{name}/cattan.yaml", "--methods", methods]


@pytest.fixture
def work(monkeypatch) -> list[str]:
    """Return the list to which every training and every cell that is really computed is added."""
    done = []
    compute, train = cell.run_cell, source_room.train_classifier

    def watched_cell(job, setting):
        done.append(f"{job.cell.method} {job.cell.domain}")
        return compute(job, setting)

    def watched_training(*args):
        done.append("training")
        return train(*args)

    monkeypatch.setattr(cell, "run_cell", watched_cell)
    monkeypatch.setattr(source_room, "train_classifier", watched_training)
    return done


@pytest.mark.parametrize("name", DOMAINS)
def test_each_image_benchmark_end_to_end(tmp_path, capsys, work, name):
    domains = list(DOMAINS[name])[:3]
    write_tree(tmp_path, name, domains=tuple(domains))
    lists = {"DATA.LISTS": ""}
    source, target = domains[0], domains[1]
    train = ["train-source", "--cfg", f"cfgs/{name}/base.yaml"]
    assert main(arguments(tmp_path, *train, **lists, **{"DATA.SOURCE": source, "DATA.TARGET": target})) == 0
    shown = capsys.readouterr()
    told = [line.split()[2] for line in shown.out.splitlines()]
    assert [Path(path).is_file() for path in told] == [True, True] and work == ["training"]

    command = arguments(tmp_path, *pairs(name), **lists, **{"DATA.SOURCE": source, "DATA.TARGET": target})
    assert main(command) == 0
    shown, once = capsys.readouterr(), list(work)
    assert once == ["training", f"source {target}", f"cattan {target}"], "the finished source model is used"
    short = BENCHMARK_REGISTRY.get(name).short_names
    column = f"{short[source]}>{short[target]}"
    table = [line.split() for line in shown.out.splitlines()]
    assert table[0] == ["method", column, "avg", "ECE"]
    theirs = published(name)
    if theirs.columns:
        assert [row[0] for row in table[1:5]] == ["source", "source", "cattan", "cattan"]
        assert table[4][:3] == ["cattan", "(paper)", f"{theirs.rows['cattan'].accuracy[column]:.1f}"]
        assert table[4][3:] == ["-", "-"], "an average is of all pairs"
    else:
        assert [row[0] for row in table[1:3]] == ["source", "cattan"]
    assert f"NOT the data of the published figures: {source} has 12 images here and " in shown.out
    assert main(command) == 0
    assert work == once, "nothing is computed twice"


def test_all_pairs_of_a_benchmark_and_a_kill_in_between(tmp_path, capsys, work):
    write_tree(tmp_path, "office31")
    write = pairs("office31", "source,ip")
    assert main(arguments(tmp_path, *write, **{"DATA.SOURCE": "dslr"})) == 0  # as after a kill: one source is finished
    capsys.readouterr()
    before = list(work)
    assert before == ["training", "source amazon", "source webcam", "ip amazon", "ip webcam"]
    assert main(arguments(tmp_path, *write)) == 0
    shown = capsys.readouterr().out
    assert work.count("training") == 3 and len(work) == len(before) + 2 * 5
    table = [line.split() for line in shown.splitlines()]
    assert table[0] == ["method", "A>D", "A>W", "D>A", "D>W", "W>A", "W>D", "avg", "ECE"]
    assert table[2] == ["source", "(paper)", "81.1", "74.5", "61.3", "94.3", "62.6", "97.4", "78.5", "0.60"]
    ours = [float(value) for value in table[1][1:7]]
    (folder,) = (tmp_path / "out").glob("*-pairs-offline")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["complete"] and len(summary["domains"]) == 6
    found = next(a for a in summary["averages"] if (a["method"], a["metric"]) == ("source", "accuracy"))
    assert found["mean"] * 100 == pytest.approx(sum(ours) / 6, abs=0.06)
    text = (folder / "summary.md").read_text()
    assert "| cattan (paper) |" in text and "NOT the data of the published figures" in text


def write_digits(folder) -> None:
    rng = np.random.default_rng(0)
    for name, side in (("mnist", 28), ("usps", 16)):
        x, y = rng.integers(0, 256, (60, side, side), dtype=np.uint8), np.arange(60) % 10
        np.savez(folder / f"{name}.npz", x_train=x[:50], y_train=y[:50], x_test=x[50:], y_test=y[50:])


def test_digits_go_both_ways_on_a_part_of_the_target(tmp_path, capsys):
    write_digits(tmp_path)
    changes = {"MODEL.ARCH": "small_cnn", "CORRUPTION.NUM_EX": 20, "SEEDS": "0,1"}
    assert main(arguments(tmp_path, *pairs("mnist_usps", "source,tent"), **changes)) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert table[0] == ["method", "M>U", "U>M", "avg", "ECE"] and [row[0] for row in table[1:3]] == ["source", "tent"]
    records = [json.loads(line) for file in (tmp_path / "out").glob("*/results.jsonl") for line in file.open()]
    assert len(records) == 8 and all(record["metrics"]["n"] == 20 for record in records)


def test_a_method_that_needs_images_has_dashes_on_features(tmp_path, capsys):
    for seed, name in enumerate(("clipart", "sketch")):
        write_domain(tmp_path, name, 40, seed)
    changes = {"MODEL.ARCH": "feature_mlp", "MODEL.IN_FEATURES": 6, "DATA.SOURCE": "clipart", "DATA.TARGET": "sketch"}
    assert main(arguments(tmp_path, *pairs("domainnet_features", "source,ip,tent"), **changes)) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in table[1:4]] == ["source", "ip", "tent"]
    assert table[2] == ["ip", "-", "-", "-"]


def test_faults_are_told_before_anything_is_trained(tmp_path, capsys, work):
    root = write_tree(tmp_path, "officehome", n=2)
    for arguments_, words in (
        (arguments(tmp_path, "pairs", "--cfg", "cfgs/digits_c/cattan.yaml"), "'digits_c' has no source>target pairs"),
        (arguments(tmp_path, *pairs("officehome"), **{"MODEL.CKPT_PATH": "x.pt"}), "names one source model"),
        (arguments(tmp_path, *pairs("officehome", "ip"), **{"SOURCE.INIT": ""}), "SOURCE.INIT is empty"),
    ):
        assert main(arguments_) == 2
        assert words in capsys.readouterr().err
    (root / "Real World" / "mug").rename(root / "Real World" / "cup")
    assert main(arguments(tmp_path, *pairs("officehome"))) == 2
    assert "the class 'cup' is in Real World and not in Art" in capsys.readouterr().err
    (root / "Real World" / "cup").rename(root / "Real World" / "mug")
    break_image(root / "Art" / "mug" / "0001.jpg")
    assert main(arguments(tmp_path, *pairs("officehome"), **{"DATA.SOURCE": "Art"})) == 2
    assert "0001.jpg cannot be read" in capsys.readouterr().err
    assert "training" not in work[1:] and not list((tmp_path / "ckpt").rglob("*.safetensors"))
    three = ["--methods", "source,cattan,cattan_plus"]
    assert main(arguments(tmp_path, *pairs("officehome"), *three, "--dry-run", **{"DATA.SKIP_CORRUPT": True})) == 0
    shown = capsys.readouterr()
    assert "1 of 6 images are corrupt and left out" in shown.err
    assert "12 pairs (A>C, A>P, ..., R>P)" in shown.out and "5 to 6 samples in batches of 6" in shown.out
    rows = {
        line.split()[0]: line.split()[1:3] for line in shown.out.splitlines() if line.startswith(("so", "ca", "al"))
    }
    expected = {"source": ["12", "0"], "cattan": ["12", "12"], "cattan_plus": ["12", "0"], "all": ["36", "12"]}
    assert rows == expected, "results and updates"


def test_the_comparison_says_how_to_train_what_is_missing(tmp_path, capsys):
    write_tree(tmp_path, "officehome", n=1)
    command = ["--cfg", "cfgs/officehome/base.yaml", *arguments(tmp_path, **{"DATA.SOURCE": "Art"})]
    assert main(command) == 2
    assert "train it with `tta-cattan train-source --cfg FILE DATA.SOURCE 'Art'`" in capsys.readouterr().err
    cfg = load_cfg("cfgs/officehome/base.yaml", arguments(tmp_path, **{"DATA.SOURCE": "Real World"}))
    path = trained_path(cfg, BENCHMARK_REGISTRY.get("officehome")(cfg))
    assert path.parent == tmp_path / "ckpt" / "officehome" and path.name.startswith("Real_World-shot_small_resnet-")
