"""The study's blocks are in order, the best rates are the best, and a block runs and is used again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from digits_runs import overrides

from benchmarks.accuracy.__main__ import best_settings, main, run_block, to_markdown
from benchmarks.accuracy.blocks import Block, blocks
from benchmarks.accuracy.product import draw, main_effects
from benchmarks.accuracy.shifts import ChoosingDigits, CleanImages, UnevenDigits, make_cifar, make_digits
from tta_cattan.bench.domain import Domain
from tta_cattan.bench.run.plan import plan_rows
from tta_cattan.config import find_config, load_cfg

TINY = Block("tiny", "Tiny", "cfgs/digits_c/cattan.yaml", overrides(), ("norm", "tent"), rates=(1e-4, 0.5))


def test_every_block_loads_and_is_chosen_by_one_that_is_not_reported():
    all_blocks = {block.name: block for block in blocks(Path("data"), Path("out"))}
    for block in all_blocks.values():
        values = [str(value) if isinstance(value, Path) else value for value in block.overrides]
        rows = plan_rows(find_config(block.cfg), values, block.methods)
        assert [row.method for row in rows] == list(block.methods)
        assert not (block.rates and block.chosen_by)
        if block.chosen_by:
            chooser = all_blocks[block.chosen_by]
            assert (chooser.rates or chooser.draws) and not chooser.chosen_by
            assert dict(zip(chooser.overrides[::2], chooser.overrides[1::2], strict=True)) != dict(
                zip(block.overrides[::2], block.overrides[1::2], strict=True)
            )


def test_a_block_runs_and_its_cells_are_used_again(tmp_path):
    table = run_block(TINY, tmp_path)
    low, high = (("OPTIM.LR", 0.0001),), (("OPTIM.LR", 0.5),)
    assert [(method, changes) for method, changes, _ in table] == [("norm", ()), ("tent", low), ("tent", high)]
    accuracy = {changes: summary.averages[summary.methods[0], "accuracy"].mean for _, changes, summary in table[1:]}
    assert best_settings(table) == {"tent": max(accuracy, key=accuracy.get)} and len(set(accuracy.values())) == 2
    text = to_markdown(table)
    assert text.count("\n") == 4 and "| TENT | OPTIM.LR 0.5 |" in text and "| Norm | - |" in text

    written = sorted(tmp_path.rglob("results.jsonl"))
    before = [path.read_bytes() for path in written]
    assert to_markdown(run_block(TINY, tmp_path)) == text
    assert [path.read_bytes() for path in written] == before, "nothing was computed again"


def test_a_chosen_rate_is_for_its_method_alone(tmp_path):
    block = Block("reported", "Reported", TINY.cfg, TINY.overrides, ("norm", "tent"), chosen_by="tiny")
    chosen = (("OPTIM.LR", 0.5), ("OPTIM.BETA", 0.8))
    assert [changes for _, changes, _ in run_block(block, tmp_path, {"tent": chosen})] == [(), chosen]


def test_a_draw_has_every_setting_equally_often():
    keys = ("LAMBDA_LR", "PHI_LR", "DECAY")
    grid = ("CATTAN.D=16,64,256", *(f"CATTAN.{key}=0.1,0.2,0.3" for key in keys), "BN.STATISTICS=batch,running")
    points = draw(grid, 18)
    assert points == draw(grid, 18) != draw(grid, 18, seed=1)
    assert len(set(points)) == len(points) == 18
    for key in ("CATTAN.D", "CATTAN.PHI_LR", "BN.STATISTICS"):
        counts = Counter(dict(point)[key] for point in points)
        assert len(set(counts.values())) == 1, (key, counts)
    with pytest.raises(ValueError, match="more than half"):
        draw(grid, 82)


def test_main_effects_are_means_over_the_points():
    results = [((("CATTAN.D", d), ("OPTIM.LR", lr)), 0.5 + 0.001 * d + lr) for d in (10, 20) for lr in (0.0, 0.1, 0.2)]
    rows = main_effects(results).splitlines()[2:]
    spread = np.std([0, 10, 20], ddof=1) / np.sqrt(3)
    assert rows[0] == f"| CATTAN.D | 10 | 3 | 61.0 ± {spread:.1f} | 71.0 |"
    assert [row.split("|")[4].strip() for row in rows] == [
        f"61.0 ± {spread:.1f}", f"62.0 ± {spread:.1f}", "51.5 ± 0.5", "61.5 ± 0.5", "71.5 ± 0.5",
    ]  # fmt: skip


def test_a_block_of_draws_runs_each_point(tmp_path):
    block = Block(
        "drawn", "Drawn", TINY.cfg, overrides(), ("tent",), grid=("OPTIM.LR=0.0001,0.5", "OPTIM.BETA=0.8,0.9"), draws=2
    )
    table = run_block(block, tmp_path)
    assert [changes for _, changes, _ in table] == draw(block.grid, 2)
    accuracies = [summary.averages["tent", "accuracy"].mean for _, _, summary in table]
    assert len(set(accuracies)) == 2, "each row is its own point's"
    assert "| TENT | OPTIM.LR 0.0001" in to_markdown(table)
    assert best_settings(table) == {"tent": table[accuracies.index(max(accuracies))][1]}


def test_an_unknown_block_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["--data", "data", "cifar100"])
    assert "no block is called cifar100; there are choose-digits" in capsys.readouterr().err


def test_digits_that_choose_stand_beside_the_others(tmp_path):
    data = tmp_path / "data" / "digits"
    data.mkdir(parents=True)
    x, y = np.full((3000, 16, 16), 9, np.uint8), np.arange(3000) % 10
    np.savez(data / "usps.npz", x_train=x[:5], y_train=y[:5], x_test=x, y_test=y)
    np.savez(data / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    make_digits(tmp_path / "data", tmp_path / "digits")
    cfg = load_cfg(None, ["DATA_DIR", str(tmp_path / "digits"), "DATA.SOURCE", "mnist", "CORRUPTION.NUM_EX", -1])
    images, labels = ChoosingDigits(cfg).target(Domain("uci")).tensors
    assert images.shape == (1797, 1, 28, 28) and 0.9 < images.max() <= 1 and labels.bincount().min() > 150
    uneven = UnevenDigits(cfg)
    counts = {domain.name: uneven.target(domain).tensors[1].bincount(minlength=10) for domain in uneven.domains()}
    assert counts["to4"].tolist() == [300] * 5 + [0] * 5 and counts["to1"].tolist() == [300] * 2 + [0] * 8
    expected = 300 * 0.6 ** torch.arange(10)
    assert ((counts["tail"] - expected).abs() <= 5 * expected.sqrt()).all()


def test_clean_images_are_those_of_the_part(tmp_path):
    (tmp_path / "cifar10").mkdir()
    x = np.random.default_rng(0).integers(0, 255, (12, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "cifar10" / "test.npz", x=x, y=np.arange(12) % 10)
    make_cifar(tmp_path, tmp_path / "out", slice(4, 12), ("contrast",))
    cfg = load_cfg(None, ["DATA_DIR", str(tmp_path / "out"), "CORRUPTION.NUM_EX", 5])
    images, labels = CleanImages(cfg).target(Domain("clean")).tensors
    assert labels.tolist() == [4, 5, 6, 7, 8]
    torch.testing.assert_close(images, torch.from_numpy(x[4:9]).permute(0, 3, 1, 2).float() / 255)
    rows = np.load(tmp_path / "out" / "CIFAR-10-C" / "contrast.npy", mmap_mode="r")
    assert rows[-8:].any()


def test_a_block_on_real_features(tmp_path, real_data):
    block = next(block for block in blocks(real_data("office_caltech10").parent, tmp_path) if block.name == "office")
    few = ["DATA.SOURCE", "dslr", "DATA.TARGET", "webcam", "SEEDS", [0], "SOURCE.EPOCHS", 5, "TEST.EPOCHS", 1]
    few_rows = Block("office", "", block.cfg, [*block.overrides, *few], ("source", "cattan_plus"), pairs=True)
    accuracies = [
        summary.averages[summary.methods[0], "accuracy"].mean for _, _, summary in run_block(few_rows, tmp_path)
    ]
    assert all(0.3 < accuracy <= 1 for accuracy in accuracies)
