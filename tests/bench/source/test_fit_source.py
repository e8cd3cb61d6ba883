"""``fit-source``: the same subspace in one process or two, killed or not, and only for the model it was made for."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from digits_runs import ckpt_dir, compare, fit_slowly, overrides, start
from safetensors import safe_open
from safetensors.torch import save_file

from tta_cattan.alignment import SourceMoments, Subspace, fit_subspace, orthonormality_error
from tta_cattan.alignment.subspace import sha256_weights
from tta_cattan.bench.data import BENCHMARK_REGISTRY, Stream
from tta_cattan.bench.run.log import reset_logging
from tta_cattan.bench.source import subspace as fitting
from tta_cattan.bench.source.model import source_model
from tta_cattan.bench.source.subspace import default_path, source_subspace
from tta_cattan.cli.main import main
from tta_cattan.config import load_cfg
from tta_cattan.network.layers import iterate_features
from tta_cattan.util.errors import UserError

CFG = "cfgs/digits_c/cattan.yaml"
ROOT = Path(__file__).parents[3]


def settings(**changes: object):
    cfg = load_cfg(ROOT / CFG, overrides(**changes))
    benchmark = BENCHMARK_REGISTRY.get(cfg.CORRUPTION.DATASET)(cfg)
    return cfg, benchmark, source_model(cfg, benchmark)


def fit(out: Path, *options: str, **changes: object) -> list[str]:
    return ["fit-source", "--cfg", CFG, "--out", str(out), *options, *overrides(**changes)]


@pytest.fixture(scope="module")
def direct() -> Subspace:
    """The subspace of the features of all source images, computed in one go."""
    _, benchmark, loaded = settings()
    images = benchmark.source().tensors[0]
    return fit_subspace(torch.cat(list(iterate_features(loaded.model, "fc", images.split(500)))))


def assert_same(one: Subspace, other: Subspace, directions: int = 30) -> None:
    """Compare eigenvalues, mean and the directions that the data determine, up to sign."""
    assert one.count == other.count and one.centered == other.centered
    torch.testing.assert_close(one.eigenvalues, other.eigenvalues, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one.mean, other.mean, atol=1e-5, rtol=1e-5)
    a, b = one.basis[:, :directions], other.basis[:, :directions]
    signs = (a * b).sum(0).sign()
    # Small eigenvalue gaps amplify the float32 rounding of the features, which differs between processors.
    torch.testing.assert_close(a * signs, b, atol=1e-4, rtol=0)


def test_it_equals_the_fit_of_the_features_themselves(tmp_path, direct, capsys):
    assert main(fit(tmp_path / "s.safetensors")) == 0
    assert f"wrote {tmp_path / 's.safetensors'}: 64 directions of 64, from 1297 images" in capsys.readouterr().out
    found = Subspace.load(tmp_path / "s.safetensors")
    assert_same(found, direct)
    assert orthonormality_error(found.basis) < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"], "the checkpoint of a finished fit is gone"
    cfg, _, loaded = settings()
    origin = found.provenance
    assert (
        origin["weights_sha256"] == sha256_weights(loaded.model)
        and origin["model"] == "small_resnet"
        and origin["n"] == 1297
    )
    assert origin["data"] == {"name": "digits", "n": 1297} and origin["versions"]["torch"] == torch.__version__
    assert main(fit(tmp_path / "u.safetensors", **{"CATTAN.CENTERING": "none"})) == 0
    assert not Subspace.load(tmp_path / "u.safetensors").centered
    assert default_path(cfg, loaded).name != default_path(settings(**{"CATTAN.CENTERING": "none"})[0], loaded).name


def test_options_of_the_file(tmp_path, direct, capsys):
    whole, half, bare = (tmp_path / f"{name}.safetensors" for name in ("whole", "half", "bare"))
    assert main(fit(whole, "--d", "20")) == main(fit(half, "--half", "--d", "20")) == 0
    assert main(fit(bare, "--no-mean", "--d", "20")) == 0
    saved = whole.stat().st_size - half.stat().st_size
    assert abs(saved - 64 * 20 * 2) < 32, "two bytes per entry of the basis, but for padding"
    stored = Subspace.load(half)
    assert stored.basis.dtype == torch.float32 and orthonormality_error(stored.basis) < 1e-5
    signs = (stored.basis * direct.basis[:, :20]).sum(0).sign()
    torch.testing.assert_close(stored.basis * signs, direct.basis[:, :20], atol=2e-3, rtol=0)
    assert Subspace.load(bare).mean is None and Subspace.load(whole).mean is not None
    assert Subspace.load(whole).d == 20 and len(Subspace.load(whole).eigenvalues) == 64
    capsys.readouterr()
    assert main(["inspect", str(half)]) == 0
    shown = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines()[1:])
    assert shown["features"] == "64" and shown["directions"].startswith("20 (") and shown["samples"] == "1,297"
    assert shown["kind"] == "PCA (centred)" and shown["model"] == "small_resnet" and len(shown["weights_sha256"]) == 64
    assert main(fit(tmp_path / "big.safetensors", "--d", "65")) == 2
    assert "determine 1 to 64 directions" in capsys.readouterr().err


def test_per_class(tmp_path):
    assert main(fit(tmp_path / "s.safetensors", "--per-class", "9")) == 0
    found = Subspace.load(tmp_path / "s.safetensors")
    assert found.count == 90 and found.provenance["per_class"] == 9
    _, benchmark, loaded = settings()
    images, labels = benchmark.source().tensors
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))  # RNG_SEED's default
    chosen = torch.cat([order[labels[order] == label][:9] for label in range(10)])
    features = torch.cat(list(iterate_features(loaded.model, "fc", images[chosen].split(500))))
    assert_same(found, fit_subspace(features), 20)


def test_two_processes_under_torchrun_give_the_same(tmp_path, direct):
    out = tmp_path / "shared.safetensors"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "tta_cattan.cli.main", *fit(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote ") == 1, "one process writes"
    assert_same(Subspace.load(out), direct)
    assert list(tmp_path.iterdir()) == [out]


def test_killed_it_goes_on_and_ends_the_same(tmp_path, direct, monkeypatch):
    out = tmp_path / "s.safetensors"
    process = start(fit_slowly, fit(out), str(tmp_path / "output"))
    checkpoint = tmp_path / ".s.safetensors.0-of-1.checkpoint"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not checkpoint.exists():
        time.sleep(0.01)
    time.sleep(0.5)
    process.kill()
    process.join()
    assert checkpoint.exists() and not out.exists(), (tmp_path / "output").read_text()
    kept, batches = checkpoint.read_bytes(), []
    only = Stream.only
    monkeypatch.setattr(Stream, "only", lambda self, chosen: batches.append(len(chosen)) or only(self, chosen))
    assert main(fit(out)) == 0
    total = -(-1297 // 64)
    assert 0 < batches[0] < total
    assert_same(Subspace.load(out), direct)
    assert not checkpoint.exists()

    for content, changes in ((kept, {"TEST.BATCH_SIZE": 32}), (kept[:-9], {}), (b"", {})):
        checkpoint.write_bytes(content)
        assert main(fit(out, **changes)) == 0
        assert batches[-1] == -(-1297 // changes.get("TEST.BATCH_SIZE", 64)), "not from a checkpoint of other batches"
        assert_same(Subspace.load(out), direct)


def test_the_note_says_where_it_came_from(tmp_path, monkeypatch):
    notes = []
    save = fitting.save_state
    monkeypatch.setattr(fitting, "_SAVE_EVERY", -1.0)
    monkeypatch.setattr(fitting, "save_state", lambda *args: notes.append(args[1]["done"]) or save(*args))
    assert main(fit(tmp_path / "s.safetensors")) == 0
    assert notes == list(range(1, 22)), "the number of batches in the sums, after each"


def test_a_subspace_of_another_model_is_refused_and_one_of_no_model_is_told(tmp_path, caplog):
    path = tmp_path / "s.safetensors"
    assert main(fit(path)) == 0
    reset_logging()
    cfg, benchmark, loaded = settings(**{"CATTAN.SOURCE_BASIS": path})
    assert source_subspace(cfg, loaded, benchmark).count == 1297
    before = sha256_weights(loaded.model)[:12]
    with torch.no_grad():
        loaded.model.fc.bias[0] += 1
    other = type(loaded).of(loaded.model, "changed")
    after = sha256_weights(other.model)[:12]
    with pytest.raises(UserError, match=rf"{before}, and this model is {after}: make one for this model"):
        source_subspace(cfg, other, benchmark)
    replace(Subspace.load(path), provenance={}).save(path)
    assert source_subspace(cfg, other, benchmark).count == 1297
    assert "does not say which model it was fitted for" in caplog.text
    classifier = settings(**{"CATTAN.SOURCE_BASIS": "classifier"})[0]
    assert source_subspace(classifier, other, benchmark) is None


def test_auto_fits_once_and_missing_source_data_prints_the_command(tmp_path, monkeypatch):
    cfg, benchmark, loaded = settings()
    path = default_path(cfg, loaded)
    assert path.parent == Path(ckpt_dir()) / "subspaces"
    path.unlink(missing_ok=True)
    made = source_subspace(cfg, loaded, benchmark)
    monkeypatch.setattr(type(benchmark), "source", lambda _: pytest.fail("the file is there"))
    assert torch.equal(source_subspace(cfg, loaded, benchmark).basis, made.basis)
    monkeypatch.setattr(type(benchmark), "has_source", lambda _: False)
    elsewhere = load_cfg(ROOT / CFG, overrides(CKPT_DIR=tmp_path))
    with pytest.raises(UserError) as caught:
        source_subspace(elsewhere, loaded, benchmark)
    for words in ("tta-cattan fit-source --cfg", "DATA.SOURCE_DIR", "CATTAN.SOURCE_BASIS classifier"):
        assert words in str(caught.value)
    with pytest.raises(UserError, match=r"absent\.safetensors does not exist: make it with `tta-cattan fit-source"):
        source_subspace(load_cfg(ROOT / CFG, ["CATTAN.SOURCE_BASIS", "absent.safetensors"]), loaded, benchmark)


def test_the_source_model_is_trained_once_and_a_damaged_file_is_named(tmp_path, monkeypatch):
    cfg, benchmark, first = settings(CKPT_DIR=tmp_path)
    (path,) = (tmp_path / "digits_c").iterdir()
    assert first.origin == str(path)
    header = path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")]
    assert json.loads(json.loads(header)["__metadata__"]["recipe"])["arch"] == "small_resnet"
    monkeypatch.setattr("tta_cattan.bench.source.model.train_classifier", lambda *_: pytest.fail("trained again"))
    assert source_model(cfg, benchmark).sha256 == first.sha256
    monkeypatch.undo()
    assert settings(CKPT_DIR=tmp_path, RNG_SEED=7)[2].sha256 != first.sha256
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=rf"{path.name} is damaged or truncated"):
        source_model(cfg, benchmark)


def test_a_source_model_that_was_changed_after_training_is_refused(tmp_path, capsys):
    cfg, benchmark, first = settings(CKPT_DIR=tmp_path)
    path = Path(first.origin)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["sha256"] == first.sha256
    random = {n: torch.rand(v.shape).to(v.dtype) for n, v in first.model.state_dict().items()}
    for changed in (metadata, {**metadata, "sha256": ""}, None):
        save_file(random, path, metadata=changed)
        with pytest.raises(UserError, match=rf"{path.name} was changed after training: delete it to train again"):
            source_model(cfg, benchmark)
    assert main(["--cfg", CFG, "--methods", "source", *overrides(tmp_path, CKPT_DIR=tmp_path)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"error: {path} was changed after training: delete it to train again"
    path.unlink()
    assert source_model(cfg, benchmark).sha256 == first.sha256


def test_auto_keeps_apart_what_was_fitted_to_other_images(tmp_path):
    def auto(**changes: object) -> Subspace:
        return source_subspace(*reordered(settings(CKPT_DIR=tmp_path, **changes)))

    def reordered(found):
        cfg, benchmark, loaded = found
        return cfg, loaded, benchmark

    few = {"SOURCE.PER_CLASS": 5}
    assert (auto(**few).count, auto().count, auto(**few).count) == (50, 1297, 50)
    assert auto(**few, RNG_SEED=1).provenance["seed"] == 1
    files = sorted(path.name for path in (tmp_path / "subspaces").iterdir())
    assert len(files) == 2
    # What fit-source was told to write there is taken by a config that says nothing, or the same.
    main(["fit-source", "--cfg", CFG, "--per-class", "7", *overrides(CKPT_DIR=tmp_path)])
    assert (auto().count, auto(**{"SOURCE.PER_CLASS": 7}).count, auto(**few).count) == (70, 70, 50)
    assert sorted(path.name for path in (tmp_path / "subspaces").iterdir()) == files


def test_the_file_says_nothing_of_single_images_and_leaves_the_mean_out_on_request(tmp_path):
    assert main(fit(tmp_path / "with")) == 0 and main(fit(tmp_path / "without", "--no-mean")) == 0
    for name, parts in (("with", {"basis", "eigenvalues", "mean"}), ("without", {"basis", "eigenvalues"})):
        content = (tmp_path / name).read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        told = header.pop("__metadata__")
        assert set(header) == parts and header["basis"]["shape"] == [64, 64]
        numbers = sum(math.prod(part["shape"]) for part in header.values())
        assert len(content) == 8 + length + 4 * numbers, "and nothing after it"
        assert set(told) == {"format", "count", "centered", "layer", "provenance"}
        assert set(json.loads(told["provenance"])) <= {
            "model", "weights_sha256", "data", "n", "per_class", "seed", "centering", "versions", "layer",
        }  # fmt: skip
        assert str(tmp_path) not in told["provenance"] and str(Path.home()) not in told["provenance"]


def test_notes_change_no_bit_of_the_fit_and_a_resumed_one_is_the_same(tmp_path, monkeypatch):
    cfg, benchmark, loaded = settings(**{"TEST.BATCH_SIZE": 50})
    fits = {}
    for name, pause in (("few", 1e9), ("many", -1.0)):
        monkeypatch.setattr(fitting, "_SAVE_EVERY", pause)
        fits[name] = fitting.fit_source_subspace(cfg, loaded, benchmark, tmp_path / name)
    checkpoint = fitting._checkpoint(tmp_path / "many", fitting.ALONE)
    assert checkpoint.is_file(), "the last checkpoint is a resumed fit's start"
    fits["resumed"] = fitting.fit_source_subspace(cfg, loaded, benchmark, tmp_path / "many")
    assert torch.equal(fits["few"].basis, fits["many"].basis)
    assert torch.equal(fits["few"].basis, fits["resumed"].basis)


def test_the_moments_for_cattan_forward_take_the_same_route(tmp_path, monkeypatch, capsys):
    changes = {"MODEL.ADAPTATION": "cattan_forward"}
    assert main(fit(tmp_path / "m.safetensors", **changes)) == 0
    assert "moments of " in capsys.readouterr().out
    cfg, benchmark, loaded = settings(**changes)
    auto = source_subspace(cfg, loaded, benchmark)
    found = SourceMoments.load(tmp_path / "m.safetensors")
    assert found.count == auto.count == 1297 and found.tensors().keys() == auto.tensors().keys()
    for name, value in found.tensors().items():  # sums depend on the threads, and the inverse covariance magnifies it
        assert (value - auto.tensors()[name]).norm() <= 0.02 * value.norm(), name
    assert found.provenance["weights_sha256"] == sha256_weights(loaded.model)
    assert default_path(cfg, loaded).is_file() and default_path(cfg, loaded).stem.endswith("-moments-128")
    file = {"CATTAN_FORWARD.SOURCE_MOMENTS": tmp_path / "m.safetensors"}
    assert main(compare(tmp_path / "save", "cattan_forward", **file)) == 0
    replace(found, provenance={**found.provenance, "weights_sha256": "0" * 64}).save(tmp_path / "m.safetensors")
    assert main(compare(tmp_path / "save", "cattan_forward", **file)) == 2
    assert "made for the model 000000000000" in capsys.readouterr().err
    other, _, _ = settings(**changes, **{"CATTAN_FORWARD.SOURCE_MOMENTS": "none"})
    assert source_subspace(other, loaded, benchmark) is None
    cfg, _, _ = settings(**changes, **{"CATTAN_FORWARD.CHANNELS": 16})
    monkeypatch.setattr(type(benchmark), "has_source", lambda _: False)
    with pytest.raises(UserError, match=r"CATTAn-F needs the source's moments.*SOURCE_MOMENTS none"):
        source_subspace(cfg, loaded, benchmark)
