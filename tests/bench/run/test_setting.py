"""What does not fit together is said before anything long is computed, in a dry run and in a real one."""

from __future__ import annotations

import pytest
from digits_runs import compare

from tta_cattan.bench.source import model as training
from tta_cattan.cli.main import main

MISTAKES = [
    ({"CATTAN.D": 65}, "CATTAN.D = 65: the source subspace holds 64 directions"),
    ({"SOURCE.PER_CLASS": 2, "CATTAN.D": 40}, "CATTAN.D = 40: the source subspace holds 20 directions"),
    ({"MODEL.CLASSIFIER": "nowhere"}, "MODEL.CLASSIFIER = 'nowhere' is not a linear layer"),
    ({"CATTAN.CENTERING": "shift", "CATTAN.SOURCE_BASIS": "classifier"}, "CATTAN.CENTERING = 'shift' needs the mean"),
]


@pytest.mark.parametrize(("changes", "words"), MISTAKES)
def test_a_dry_run_builds_the_methods(tmp_path, capsys, changes, words):
    changes = {"CKPT_DIR": tmp_path / "ckpt", **changes}
    assert main(compare(tmp_path / "save", "source,cattan", "--dry-run", **changes)) == 2
    assert words in capsys.readouterr().err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arch", ["torchvision/resnet18", "timm/test_byobnet"])
def test_a_dry_run_builds_the_models_of_libraries_without_their_weights(tmp_path, capsys, arch):
    if arch.startswith("timm"):
        pytest.importorskip("timm")
    weights = tmp_path / "any.safetensors"
    from safetensors.torch import save_file
    from torch import zeros

    save_file({"fc.weight": zeros(1)}, weights)
    changes = {"MODEL.ARCH": arch, "MODEL.CKPT_PATH": weights, "CATTAN.D": 4096}
    assert main(compare(tmp_path / "save", "cattan", "--dry-run", **changes)) == 2
    assert "CATTAN.D = 4096: the source subspace holds" in capsys.readouterr().err


def test_a_run_says_so_before_it_fits_the_subspace(tmp_path, capsys):
    assert main(compare(tmp_path / "save", "source,cattan", **{"CATTAN.D": 65})) == 2
    assert "CATTAN.D = 65" in capsys.readouterr().err
    assert not (tmp_path / "save").exists(), "no cell of another method was computed first"


def test_training_is_not_begun_for_a_dry_run(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train_classifier", lambda *_: pytest.fail("a dry run trains nothing"))
    assert main(compare(tmp_path / "save", "cattan", "--dry-run", CKPT_DIR=tmp_path / "ckpt")) == 0
