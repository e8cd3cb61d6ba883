"""Frozen encoders: which numbers are the features, and where the weights come from."""

from __future__ import annotations

import pytest
import torch
from feature_folders import encoder_weights
from safetensors.torch import save_file

from tta_cattan.bench.source.extract import feature_dim, load_encoder
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError
from tta_cattan.util.upstream import import_torchvision

timm = pytest.importorskip("timm")
if not timm.list_models("test_vit"):
    pytest.skip("this timm has no test_vit", allow_module_level=True)

VIT = "timm/test_vit"
MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))


def encoder(arch=VIT, path=""):
    return load_encoder(load_cfg(None, ["DEVICE", "cpu", "MODEL.ARCH", arch, "MODEL.CKPT_PATH", str(path)]))


def transformer(seed=0, **options):
    """Return a timm transformer whose final normalisation is not the identity, and its own input normalisation."""
    torch.manual_seed(seed)
    model = timm.create_model("test_vit", pretrained=False, num_classes=0, **options).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("norm.", "fc_norm.")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def normalised(images, model):
    mean, std = (torch.tensor(model.default_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    return (images - mean) / std


@pytest.fixture
def images():
    return torch.rand(3, 3, 160, 160, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_the_class_token_of_a_transformer(tmp_path, images):
    model = transformer()
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    loaded = encoder(path=tmp_path / "vit.safetensors")
    x = model._pos_embed(model.patch_embed(normalised(images, model)))
    token = model.norm(model.blocks(model.norm_pre(x)))[:, 0]  # token by token, without timm's own pooling
    assert torch.allclose(loaded.model(images), token, atol=1e-5)
    assert feature_dim(loaded, 160) == model.num_features


@torch.no_grad()
def test_a_model_that_averages_its_patches_keeps_its_own_pooling(tmp_path, monkeypatch, images):
    model = transformer(global_pool="avg")
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: model)
    loaded = encoder(path=tmp_path / "vit.safetensors")
    assert torch.equal(loaded.model(images), model(normalised(images, model)))


@pytest.mark.parametrize("arch", ["torchvision/resnet18", "timm/resnet10t"])
@torch.no_grad()
def test_other_models_give_what_their_classifier_receives(tmp_path, arch):
    library, name = arch.split("/")
    build = timm.create_model if library == "timm" else import_torchvision("torchvision.models").get_model
    torch.manual_seed(0)
    model = build(name).eval()
    path = tmp_path / "weights.safetensors"
    save_file(model.state_dict(), path)
    loaded = encoder(arch, path)
    received = []
    model.fc.register_forward_pre_hook(lambda _, args: received.append(args[0]))
    x = torch.rand(2, 3, 64, 64)
    model((x - MEAN) / STD)
    assert torch.allclose(loaded.model(x), received[0], atol=1e-5)


def test_the_decoder_and_the_classifier_in_a_checkpoint_are_left_out(tmp_path):
    model = transformer()
    content = {**model.state_dict(), "head.weight": torch.rand(7, 64), "decoder_embed.bias": torch.rand(8),
               "mask_token": torch.rand(1, 1, 8)}  # fmt: skip
    save_file(content, tmp_path / "mae.safetensors")
    save_file(model.state_dict(), tmp_path / "bare.safetensors")
    mae, bare = (encoder(path=tmp_path / name) for name in ("mae.safetensors", "bare.safetensors"))
    assert mae.sha256 == bare.sha256
    save_file({**content, "adapter.weight": torch.rand(2)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=r"has the unknown 'adapter.weight'"):
        encoder(path=tmp_path / "other.safetensors")


def test_without_a_file_the_librarys_weights_are_loaded_or_it_says_why_not(monkeypatch):
    def offline(*_, pretrained=False, **__):
        assert pretrained
        raise OSError("no network")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(UserError, match=r"could not be loaded \(no network\).*MODEL.CKPT_PATH"):
        encoder()


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        ("timm/test_vitt", "timm has no model 'test_vitt'. Did you mean 'test_vit'"),
        ("timm/test_vit.nobody_has_it", "cannot be built.*nobody_has_it"),
        ("small_cnn", "is not an encoder: give timm/NAME"),
        ("resnet50_v1", "is not an encoder: .* with MODEL.CKPT_PATH, resnet50_v1"),
    ],
)
def test_what_is_no_encoder_is_refused(arch, words):
    with pytest.raises(UserError, match=words):
        encoder(arch)


def test_a_wrong_side_is_named():
    with pytest.raises(UserError, match=r"DATA.IMAGE_SIZE = 100.*does not take images of this side"):
        feature_dim(encoder(path=encoder_weights("test_vit")), 100)
