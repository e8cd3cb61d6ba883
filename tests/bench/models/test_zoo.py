"""Source models by name: exactly the weights that they say, normalised inside, and clear words where there are none."""

from __future__ import annotations

import io
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tta_cattan.bench.models.zoo import LoadedModel, check_arch, load_model
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_tensors
from tta_cattan.util.upstream import import_robustbench

pytest.importorskip("torchvision")
pytest.importorskip("timm")


def load(arch: str, num_classes: int = 10, family: str | None = None, **changes: object) -> LoadedModel:
    values = {"MODEL.ARCH": arch, "DEVICE": "cpu", **changes}
    return load_model(load_cfg(None, [str(part) for pair in values.items() for part in pair]), num_classes, family)


def inner(loaded: LoadedModel) -> nn.Module:
    return loaded.model.model


@pytest.mark.parametrize(("arch", "shape"), [("torchvision/resnet18", 64), ("timm/resnet10t", 64)])
def test_library_models_take_their_weights_from_the_file(tmp_path, arch, shape):
    import timm
    import torchvision

    torch.manual_seed(3)
    library, _, name = arch.partition("/")
    build = torchvision.models.get_model if library == "torchvision" else timm.create_model
    bare = build(name, num_classes=10).eval()
    torch.save(bare.state_dict(), tmp_path / "w.pt")
    loaded = load(arch, **{"MODEL.CKPT_PATH": tmp_path / "w.pt"})
    assert sha256_tensors(inner(loaded).state_dict()) == sha256_tensors(bare.state_dict())
    assert loaded.origin == str(tmp_path / "w.pt") and loaded.sha256 == sha256_tensors(loaded.model.state_dict())
    assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())
    x = torch.rand(2, 3, shape, shape)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalised = (x - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(x), bare(normalised))
    other = "torchvision/resnet34" if library == "torchvision" else "timm/resnet14t"
    with pytest.raises(UserError, match="another architecture"):
        load(other, **{"MODEL.CKPT_PATH": tmp_path / "w.pt"})


def test_a_library_download_that_fails_is_one_line(monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to host\nand more")

    import timm
    import torchvision

    monkeypatch.setattr(torchvision.models, "get_model", fail)
    monkeypatch.setattr(timm, "create_model", fail)
    for arch in ("torchvision/resnet18", "timm/resnet10t"):
        with pytest.raises(UserError) as caught:
            load(arch, num_classes=1000)
        assert "(no route to host)" in str(caught.value) and "MODEL.CKPT_PATH" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arch", ["torchvision/resnet18", "timm/resnet10t"])
def test_pretrained_weights_of_other_classes_are_refused(arch):
    # A library would silently put a random classifier (timm) or 1,000 outputs (torchvision) in their place.
    with pytest.raises(UserError, match="weights have 1000 classes and the data set has 10"):
        load(arch)


def test_names_that_nobody_has_suggest_others():
    for arch, words in (
        ("torchvision/resnet5", "torchvision has no model 'resnet5'. Did you mean 'resnet"),
        ("timm/resnet10", "timm has no model 'resnet10'. Did you mean 'resnet"),
        ("cifar_resnet58", "Did you mean 'cifar_resnet5"),
        ("Standard_R50", "'Standard_R50' is not known"),
    ):
        with pytest.raises(UserError) as caught:
            check_arch(arch, None)
        assert words in str(caught.value)
    with pytest.raises(UserError, match=r"comes without weights: set MODEL\.CKPT_PATH"):
        load("cifar_resnet20")


def test_our_own_names_do_not_need_robustbench(monkeypatch):
    def absent(*_: object) -> None:
        raise UserError("RobustBench cannot be imported")

    monkeypatch.setattr("tta_cattan.bench.models.robustbench.import_robustbench", absent)
    check_arch("cifar_resnet20", "cifar10")
    check_arch("torchvision/resnet18", "imagenet")
    with pytest.raises(UserError, match="RobustBench cannot be imported"):
        check_arch("Standard", "cifar10")


needs_robustbench = pytest.mark.skipif(find_spec("robustbench") is None, reason="RobustBench is not installed")


@needs_robustbench
class TestRobustBench:
    """RobustBench's zoo, with checkpoints that the test puts where its downloads would be."""

    @pytest.fixture(autouse=True)
    def healed(self):
        """Make ``robustbench`` importable, whichever test comes first."""
        import_robustbench("robustbench.utils")

    NAME = "Hendrycks2020AugMix_WRN"

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "cifar10" / "corruptions" / f"{self.NAME}.pt"
        path.parent.mkdir(parents=True)
        return path

    def entry(self) -> dict:
        from tta_cattan.bench.models.robustbench import _entries

        return _entries("cifar10")[self.NAME]

    def build(self) -> nn.Module:
        torch.manual_seed(11)
        return self.entry()["model"]()

    def load(self, tmp_path, **changes: object) -> LoadedModel:
        return load(self.NAME, 10, "cifar10", CKPT_DIR=tmp_path, **changes)

    def test_a_name_close_to_one_of_its_is_suggested(self):
        with pytest.raises(UserError, match="Did you mean 'Hendrycks2020AugMix'"):
            check_arch("Hendrycks2020Augmix", "imagenet")

    def test_names(self):
        from tta_cattan.bench.models.robustbench import robustbench_names

        names = robustbench_names("imagenet")
        assert {"Standard_R50", "Hendrycks2020AugMix", "Hendrycks2020Many"} <= set(names)
        assert {"Standard", self.NAME} <= set(robustbench_names("cifar10")) and robustbench_names("cifar100")
        assert robustbench_names(None) == []

    @pytest.mark.parametrize("prefix", ["", "module."])
    def test_exactly_the_weights_of_the_file(self, tmp_path, path, prefix):
        made = self.build()
        torch.save({"state_dict": {prefix + n: v for n, v in made.state_dict().items()}}, path)
        loaded = self.load(tmp_path)
        assert loaded.sha256 == sha256_tensors(made.state_dict()) and loaded.origin == str(path)
        changed = made.state_dict()
        next(iter(changed.values())).view(-1)[0] += 1
        torch.save(changed, tmp_path / "other.pt")
        other = self.load(tmp_path, **{"MODEL.CKPT_PATH": tmp_path / "other.pt"})
        assert other.sha256 == sha256_tensors(changed) != loaded.sha256
        assert other.origin == str(tmp_path / "other.pt")

    def test_what_lies_in_its_place_is_named(self, tmp_path, path):
        path.write_bytes(b"<!DOCTYPE html><html>Quota exceeded</html>")
        with pytest.raises(UserError, match=rf"{self.NAME}\.pt is an HTML page"):
            self.load(tmp_path)
        torch.save(nn.Linear(3, 4).state_dict(), path)
        with pytest.raises(UserError, match=self.NAME):
            self.load(tmp_path)
        weights = self.build().state_dict()
        torch.save({n: v for n, v in weights.items() if not n.startswith(("fc.", "mu", "sigma"))}, path)
        with pytest.raises(UserError, match=rf"{self.NAME}\.pt is of another architecture.*fc\."):
            self.load(tmp_path)
        assert path.is_file(), "the user's file is not ours to delete"

    def test_an_imagenet_checkpoint_that_lacks_weights_is_refused_though_robustbench_forgives_it(self, tmp_path):
        import torchvision

        path = tmp_path / "imagenet" / "corruptions" / "Hendrycks2020AugMix.pt"
        path.parent.mkdir(parents=True)
        made = torchvision.models.resnet50().state_dict()
        torch.save({"state_dict": {f"module.{n}": v for n, v in made.items()}}, path)
        whole = load("Hendrycks2020AugMix", 1000, "imagenet", CKPT_DIR=tmp_path)
        assert sha256_tensors(inner(whole).state_dict()) == sha256_tensors(made)
        torch.save({n: v for n, v in made.items() if not n.startswith("layer3")}, path)
        with pytest.raises(UserError, match=r"another architecture: it lacks 'model\.layer3"):
            load("Hendrycks2020AugMix", 1000, "imagenet", CKPT_DIR=tmp_path)

    def test_standard_r50_from_a_file_needs_no_download(self, tmp_path):
        import torchvision

        made = torchvision.models.resnet50().state_dict()
        torch.save(made, tmp_path / "r50.pt")
        loaded = load("Standard_R50", 1000, "imagenet", **{"MODEL.CKPT_PATH": tmp_path / "r50.pt"})
        assert sha256_tensors(inner(loaded).state_dict()) == sha256_tensors(made)

    @pytest.mark.parametrize("fault", ["raises", "html", "nothing", "other"])
    def test_a_download_that_fails_leaves_no_file(self, tmp_path, monkeypatch, fault):
        def download(_: str, path) -> None:
            if fault == "raises":
                path.write_bytes(b"half")
                raise ConnectionError("no network\nat all")
            if fault == "html":
                path.write_bytes(b"<html>Google Drive</html>")
            if fault == "other":
                torch.save([1], path)

        monkeypatch.setattr("robustbench.utils.download_gdrive_new", download)
        with pytest.raises(UserError) as caught:
            self.load(tmp_path)
        message = str(caught.value)
        assert self.entry()["gdrive_id"] in message and f"{self.NAME}.pt, or set MODEL.CKPT_PATH" in message
        assert "\n" not in message
        assert [file for file in tmp_path.rglob("*") if file.is_file()] == []

    def test_a_download_that_works_is_kept(self, tmp_path, monkeypatch, path):
        made = self.build()
        monkeypatch.setattr(
            "robustbench.utils.download_gdrive_new", lambda _, file: torch.save(made.state_dict(), file)
        )
        assert self.load(tmp_path).sha256 == sha256_tensors(made.state_dict())
        assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]

    def test_every_file_of_an_ensemble_is_checked(self, tmp_path, path):
        path.with_name("Diffenderfer2021Winning_LRR_CARD_Deck.pt_m0.pt").write_bytes(b"<html>")
        with pytest.raises(UserError, match=r"_m0\.pt is an HTML page"):
            load("Diffenderfer2021Winning_LRR_CARD_Deck", 10, "cifar10", CKPT_DIR=tmp_path)

    def test_a_model_of_another_family_is_refused(self):
        with pytest.raises(UserError, match="'Hendrycks2020AugMix_WRN' is not known"):
            load(self.NAME, 10, None)


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    predictions = torch.cat([model(part).argmax(1) for part in images.split(100)])
    return (predictions == labels).float().mean().item()


def cifar_images(path, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path) as file:
        x, y = file["x"][:n], file["y"][:n]
    return torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(y).long()


def test_real_cifar_resnet20(real_data):
    weights = real_data("cifar10/resnet20.safetensors")
    model = load("cifar_resnet20", **{"MODEL.CKPT_PATH": weights}).model
    assert accuracy(model, *cifar_images(real_data("cifar10/test.npz"), 1000)) > 0.90


def test_real_imagenet_resnet50(real_data):
    weights = real_data("imagenet/resnet50.safetensors")
    with zipfile.ZipFile(real_data("imagenet/val_2per_class_224.zip")) as file:
        names = sorted(name for name in file.namelist() if name.endswith(".webp"))[::50]
        images = [np.asarray(Image.open(io.BytesIO(file.read(name))).convert("RGB")) for name in names]
    x = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    y = torch.tensor([int(name.split("/")[-2]) for name in names])  # the folder is the class
    model = load("resnet50_v1", 1000, "imagenet", **{"MODEL.CKPT_PATH": weights}).model
    assert accuracy(model, x, y) > 0.65  # 0.76 to 0.78 on all of them


def test_a_bare_name_of_a_library_says_whose_it_is():
    with pytest.raises(UserError, match=r"'resnet50': say whose it is, torchvision/resnet50; resnet50_v1 is Caffe's"):
        check_arch("resnet50", None)
    with pytest.raises(UserError, match=r"say whose it is, torchvision/resnet18$"):
        check_arch("resnet18", "imagenet")
