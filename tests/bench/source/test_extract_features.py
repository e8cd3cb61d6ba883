"""``extract-features``: the same bytes in one process or two, killed or not, and nothing foreign continued."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from digits_runs import main_in_process, start
from feature_folders import encoder_weights

from tta_cattan.bench.data.digits import N_TRAIN, corrupted_test_images, load_digit_images
from tta_cattan.bench.data.features import FeatureFolder
from tta_cattan.bench.data.image_files import ImageList
from tta_cattan.bench.source import extract
from tta_cattan.cli.main import main
from tta_cattan.util import files
from tta_cattan.util.progress import progress

pytest.importorskip("timm")

ROOT = Path(__file__).parents[3]
N = 44
SHARDS = 6


def command(out: Path, *options: str, **changes: object) -> list[str]:
    """Return the arguments that take features of 44 digits, as they are and corrupted, in shards of 8."""
    values = {
        "MODEL.ARCH": "timm/resnet10t",
        "MODEL.CKPT_PATH": encoder_weights("resnet10t"),
        "CORRUPTION.NUM_EX": N,
        "CORRUPTION.TYPE": "fog,contrast",
        "CORRUPTION.SEVERITY": 5,
        "DATA.IMAGE_SIZE": 32,
        "TEST.BATCH_SIZE": 5,
        "DEVICE": "cpu",
        **changes,
    }
    pairs = [str(part) for pair in values.items() for part in pair]
    cfg = str(ROOT / "cfgs/digits_c/base.yaml")
    return ["extract-features", "--cfg", cfg, "--out", str(out), "--shard-size", "8", *options, *pairs]


def contents(out: Path) -> dict[str, str]:
    """Return the hash of every file under ``out``."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Both domains, extracted without interruption."""
    out = tmp_path_factory.mktemp("whole")
    assert main(command(out)) == 0
    return out


def test_the_features_are_the_encoders(whole):
    import timm

    torch.manual_seed(0)
    model = timm.create_model("resnet10t", pretrained=False, num_classes=0).eval()
    found = FeatureFolder(whole / "contrast5")
    images = torch.from_numpy(corrupted_test_images("contrast", 5)[:N]).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(model.default_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        expected = model((images - mean) / std)
    assert np.allclose(found.rows(np.arange(N)), expected.numpy(), atol=1e-5)
    assert found.labels.tolist() == load_digit_images()[1][N_TRAIN : N_TRAIN + N].tolist()


def test_the_manifest_says_what_it_is(whole):
    told = json.loads((whole / "fog5" / "manifest.json").read_text())
    assert (told["n"], told["dim"], told["shard_size"]) == (N, 512, 8)
    assert told["classes"] == [str(i) for i in range(10)]
    assert told["encoder"]["arch"] == "timm/resnet10t" and len(told["encoder"]["sha256"]) == 64
    assert told["versions"]["torch"] == torch.__version__
    assert len(list((whole / "fog5").glob("*.npy"))) == SHARDS


def test_again_it_computes_nothing(whole, capsys, monkeypatch):
    before = contents(whole)
    monkeypatch.setattr(extract, "encode", lambda *_: pytest.fail("encoded again"))
    assert main(command(whole)) == 0
    assert capsys.readouterr().out.count(f"0 shards made, {SHARDS} were there already\n") == 2
    assert contents(whole) == before


def test_progress_counts_images(tmp_path, monkeypatch):
    bars = []
    monkeypatch.setattr(extract, "progress", lambda *args: bars.append(progress(*args)) or bars[-1])
    assert main(command(tmp_path)) == 0
    assert [(bar.n, bar.total) for bar in bars] == [(N, N)] * 2


def extract_as_rank(rank: int, port: int, arguments: list[str], output: str) -> None:
    """Run the command in the environment that torchrun gives to one of two processes."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    os.environ["MASTER_PORT"] = str(port)
    main_in_process(arguments, output)


def test_two_processes_as_under_torchrun_write_the_same_bytes(whole, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    outputs = [tmp_path / "rank0", tmp_path / "rank1"]
    processes = [start(extract_as_rank, i, port, command(tmp_path / "out"), str(o)) for i, o in enumerate(outputs)]
    for process in processes:
        process.join(300)
    told = [output.read_text() for output in outputs]
    assert [process.exitcode for process in processes] == [0, 0], told
    assert contents(tmp_path / "out") == contents(whole)
    for rank, text in enumerate(told):
        assert text.count("3 shards made") == 2, "each process its half of each domain"
        assert f"(process {rank + 1} of 2)" in text


def extract_slowly(arguments: list[str], output: str) -> None:
    """Run the command, and wait between the rows of a shard and the JSON file that completes it."""
    from tta_cattan.bench.data import features

    hash_file = features.sha256_file

    def hash_and_wait(path: Path) -> str:
        time.sleep(0.25)
        return hash_file(path)

    features.sha256_file = hash_and_wait
    main_in_process(arguments, output)


def test_killed_it_goes_on_and_ends_with_the_same_bytes(whole, tmp_path, monkeypatch):
    out = tmp_path / "out"
    process = start(extract_slowly, command(out), str(tmp_path / "output"))
    half = out / "fog5" / "features-00002.npy"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not half.exists():
        time.sleep(0.005)
    process.kill()
    process.join()
    assert half.exists() and not half.with_suffix(".json").exists(), (tmp_path / "output").read_text()
    assert (out / "fog5" / "features-00001.json").exists()
    left = f".features-00003.npy.{files._system()}-{process.pid}-x1y2.tmp"
    (out / "fog5" / left).write_bytes(b"what a kill leaves while the rows are written")

    encoded, encode = [], extract.encode
    monkeypatch.setattr(extract, "encode", lambda *args: encoded.append(list(args[2].indices)) or encode(*args))
    assert main(command(out)) == 0
    assert encoded[0][0] == 16, "the incomplete shard is made again, the two before it are kept"
    assert len(encoded) == 2 * SHARDS - 2
    assert contents(out) == contents(whole)


@pytest.mark.parametrize("damage", ["cut", "bit", "labels"])
def test_a_damaged_shard_is_made_again(whole, tmp_path, damage):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    path = out / "fog5" / ("features-00003.json" if damage == "labels" else "features-00003.npy")
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content[:-4] if damage == "cut" else content)
    assert contents(out) != contents(whole)
    assert main(command(out)) == 0
    assert contents(out) == contents(whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (lambda: {"MODEL.CKPT_PATH": encoder_weights("resnet10t", 2)}, "encoder.sha256 = "),
        (
            lambda: {"MODEL.ARCH": "timm/resnet14t", "MODEL.CKPT_PATH": encoder_weights("resnet14t")},
            "encoder.arch = 'timm/resnet10t', and this extraction has 'timm/resnet14t'",
        ),
        (lambda: {"CORRUPTION.NUM_EX": 43}, "data.sha256 = "),
    ],
)
def test_another_encoder_or_other_data_do_not_mix(whole, capsys, changes, words):
    before = contents(whole)
    assert main(command(whole, **changes())) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert words in told and told.endswith("choose another output folder, or remove this one")
    assert contents(whole) == before


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        (
            ("--domains", "contrats5"),
            {},
            "--domains has 'contrats5'. Did you mean 'contrast5'? There are: fog5, contrast5",
        ),
        (("--shard-size", "0"), {}, "--shard-size 0"),
        ((), {"MODEL.CKPT_PATH": "absent.pt"}, "checkpoint absent.pt does not exist"),
        ((), {"CORRUPTION.DATASET": "shapes_c"}, "'shapes_c' has no images"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(tmp_path, capsys, options, changes, words):
    assert main(command(tmp_path / "out", *options, **changes)) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_images_are_known_by_their_bytes(tmp_path):
    (tmp_path / "ant").mkdir()
    paths = [tmp_path / "ant" / name for name in ("a.png", "b.png")]
    for path in paths:
        path.write_bytes(b"1234")
    images = ImageList([(path, 0) for path in paths], None)
    before = extract.describe_inputs(images)
    paths[1].write_bytes(b"1235")
    assert extract.describe_inputs(images) != before, "of the same size"
    paths[1].write_bytes(b"1234")
    assert extract.describe_inputs(images) == before


def test_one_domain_alone(tmp_path, whole):
    assert main(command(tmp_path, "--domains", "contrast5")) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["contrast5"]
    assert contents(tmp_path / "contrast5") == contents(whole / "contrast5")


def test_features_that_are_not_finite_are_refused(tmp_path, capsys, monkeypatch):
    encode = extract.encode
    monkeypatch.setattr(extract, "encode", lambda *args: (encode(*args)[0] * np.inf, [0] * 8))
    assert main(command(tmp_path)) == 2
    assert "hold NaN or Inf in the rows 0 to 7" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.npy"))
