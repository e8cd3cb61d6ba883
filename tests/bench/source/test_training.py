"""Training a source model: SHOT's recipe by the formula, and a kill at any moment changes no bit of the result."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from digits_runs import overrides, start, train_slowly
from safetensors.torch import load_file
from torch import nn

from tta_cattan.bench.data import BENCHMARK_REGISTRY, Stream
from tta_cattan.bench.models.networks import ShotNetwork
from tta_cattan.bench.source import model as training
from tta_cattan.bench.source.model import (
    Recipe,
    SourceStreams,
    evaluate,
    power_decay,
    source_model,
    train_classifier,
    train_source,
    trained_path,
    validation_accuracy,
)
from tta_cattan.cli.main import main
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError
from tta_cattan.util.state import load_state, save_state

CFG = "cfgs/digits_c/cattan.yaml"
ROOT = Path(__file__).parents[3]
SHOT = {
    "MODEL.ARCH": "shot/small_resnet",
    "SOURCE.EPOCHS": 2,
    "SOURCE.BATCH_SIZE": 256,
    "SOURCE.SCHEDULE": "power",
    "SOURCE.LABEL_SMOOTHING": 0.1,
    "SOURCE.WD": 1e-3,
    "SOURCE.BACKBONE_LR": 0.1,
    "SOURCE.VALIDATION": 0.1,
}


def settings(ckpt: Path, **changes: object):
    cfg = load_cfg(ROOT / CFG, overrides(CKPT_DIR=ckpt, **{**SHOT, **changes}))
    return cfg, BENCHMARK_REGISTRY.get(cfg.CORRUPTION.DATASET)(cfg)


def command(ckpt: Path, **changes: object) -> list[str]:
    return ["train-source", "--cfg", CFG, *overrides(CKPT_DIR=ckpt, **{**SHOT, **changes})]


@pytest.fixture
def one_thread():
    """Sums in the order of the killed process, which has one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_kill_9_in_the_middle_changes_no_bit_of_the_result(tmp_path, one_thread, capsys):
    path = trained_path(*settings(tmp_path / "killed"))
    checkpoint = path.with_name(f".{path.name}.checkpoint")
    process = start(train_slowly, command(tmp_path / "killed"), str(tmp_path / "killed.txt"))
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.is_alive():
        if checkpoint.is_file() and progress_of(checkpoint) >= (1, 2):  # in the second epoch: the first is the best
            break
        time.sleep(0.02)
    process.kill()
    process.join()
    epoch, done = progress_of(checkpoint)
    assert (1, 2) <= (epoch, done) < (2, 0) and not path.exists()
    assert main(command(tmp_path / "killed")) == main(command(tmp_path / "whole")) == 0
    assert f"resuming after {epoch} epochs and {done} batches" in capsys.readouterr().err
    whole = trained_path(*settings(tmp_path / "whole"))
    assert whole.name == path.name and not checkpoint.exists()
    ours, theirs = load_file(path), load_file(whole)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert validation_accuracy(path) == validation_accuracy(whole)


def progress_of(checkpoint: Path) -> tuple[int, int]:
    state = load_state(checkpoint)
    return state["epoch"], state["done"]


def test_the_command_tells_its_files_and_every_other_one_finds_them(tmp_path, capsys):
    assert main(command(tmp_path)) == 0
    shown = capsys.readouterr()
    path = trained_path(*settings(tmp_path))
    (subspace,) = (tmp_path / "subspaces").iterdir()
    assert f"source model: {path} (sha256 " in shown.out and f"source subspace: {subspace} (" in shown.out
    assert f"{validation_accuracy(path):.2%} of the held-out source data right" in shown.out
    assert shown.err.count("validation accuracy") == 2
    cfg, benchmark = settings(tmp_path)
    assert source_model(cfg, benchmark).origin == str(path)
    other, _ = settings(tmp_path, **{"SOURCE.EPOCHS": 7})
    with pytest.raises(UserError, match=r"no source model at .*: train it with `tta-cattan train-source"):
        source_model(other, benchmark)
    with pytest.raises(UserError, match="has its weights already"):
        train_source(settings(tmp_path, **{"MODEL.ARCH": "torchvision/resnet18"})[0], benchmark)


def streams(benchmark, recipe: Recipe) -> SourceStreams:
    return SourceStreams.of(benchmark, recipe, torch.device("cpu"), 0)


def test_the_two_parts_are_all_of_the_source_and_nothing_twice(tmp_path):
    cfg, benchmark = settings(tmp_path)
    parts = streams(benchmark, Recipe.of(cfg))
    whole = benchmark.source().tensors[0]
    train, held = parts.training.dataset.tensors[0], parts.held_out.dataset.tensors[0]
    assert len(train) + len(held) == len(whole) and len(held) == round(0.1 * len(whole))
    both = torch.cat([train, held]).flatten(1)
    assert torch.equal(both.sum(1).sort().values, whole.flatten(1).sum(1).sort().values)


def test_the_epoch_that_does_best_on_the_held_out_part_is_kept(tmp_path, monkeypatch):
    cfg, benchmark = settings(tmp_path, **{"SOURCE.EPOCHS": 3})
    recipe, told, states = Recipe.of(cfg), [0.5, 0.7, 0.6], []

    def scripted(model: nn.Module, stream: Stream) -> float:
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        return told[len(states) - 1]

    monkeypatch.setattr(training, "evaluate", scripted)
    torch.manual_seed(0)
    model = ShotNetwork(nn.Flatten(), 3 * 32 * 32, 10)
    assert train_classifier(model, streams(benchmark, recipe), recipe, tmp_path / "checkpoint", {}) == 0.7
    assert all(torch.equal(value, states[1][name]) for name, value in model.state_dict().items())
    assert not model.training


def test_accuracy_is_that_of_a_loop():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    data = torch.utils.data.TensorDataset(torch.randn(10, 4), torch.randint(0, 3, (10,)))
    right = [int(model(x[None]).argmax()) == int(y) for x, y in data]
    assert evaluate(model, Stream(data, 4, None, torch.device("cpu"))) == sum(right) / 10


def test_rates_and_their_course_are_shots(tmp_path):
    recipe = Recipe.of(settings(tmp_path)[0])
    model = ShotNetwork(nn.Linear(5, 4), 4, 3)
    optimizer = recipe.optimizer(model)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert all(rates[id(p)] == pytest.approx(1e-3) for p in model.backbone.parameters())
    assert all(rates[id(p)] == 1e-2 for m in (model.bottleneck, model.bn, model.fc) for p in m.parameters())
    for group in optimizer.param_groups:
        assert group["nesterov"] and (group["momentum"], group["weight_decay"]) == (0.9, 1e-3)
    schedule = recipe.scheduler(optimizer, 20)
    for step in range(20):
        by_formula = 1e-2 * (1 + 10 * step / 20) ** -0.75
        assert schedule.get_last_lr()[-1] == pytest.approx(by_formula) == 1e-2 * power_decay(step / 20)
        optimizer.step()
        schedule.step()


def test_a_damaged_checkpoint_and_one_of_another_training_are_ignored(tmp_path, caplog):
    cfg, benchmark = settings(tmp_path, **{"SOURCE.EPOCHS": 1})
    path = trained_path(cfg, benchmark)
    checkpoint = path.with_name(f".{path.name}.checkpoint")
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"PK\x03\x04 damaged")
    with caplog.at_level("WARNING"):
        first = train_source(cfg, benchmark)
    assert "its work starts again" in caplog.text and not checkpoint.exists()
    path.unlink()
    save_state(checkpoint, {"of": "something else"})
    assert train_source(cfg, benchmark).sha256 == first.sha256


def test_mixed_precision_trains_another_model_of_float32_weights(tmp_path):
    models = []
    for mixed in (False, True):
        cfg, benchmark = settings(tmp_path, **{"SOURCE.EPOCHS": 1, "SOURCE.MIXED_PRECISION": mixed})
        models.append(train_source(cfg, benchmark))
    one, other = (loaded.model.state_dict() for loaded in models)
    assert models[0].origin != models[1].origin and all(one[name].dtype == other[name].dtype for name in one)
    weight = "bottleneck.weight"
    assert not torch.equal(one[weight], other[weight])
    torch.testing.assert_close(one[weight], other[weight], atol=0.05, rtol=0)  # bfloat16 has 8 bits


def test_what_cannot_be_trained_is_said(tmp_path):
    cfg, benchmark = settings(tmp_path, **{"SOURCE.INIT": ""})
    with pytest.raises(UserError, match=r"SOURCE\.INIT is empty: name the initial weights"):
        train_source(cfg, benchmark)
    cfg, benchmark = settings(tmp_path, **{"SOURCE.INIT": "pretrained"})
    with pytest.raises(UserError, match="small_resnet has no published weights"):
        train_source(cfg, benchmark)
    cfg, benchmark = settings(tmp_path, **{"SOURCE.LR": 1e30})
    with pytest.raises(UserError, match=r"diverged in epoch 1 .*: lower SOURCE\.LR \(it is 1e\+30\)"):
        train_source(cfg, benchmark)
