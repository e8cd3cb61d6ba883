"""The contract over model families: the smallest member of each, random weights, a tiny input, TENT and CATTAn.

    python reliability/families.py [--only NAME,NAME] [--json FILE]

Each method is set up, adapts twice, gives finite logits, folds into a plain model of the same function, and resets bit
for bit. Prints one line per family: passed, or the reason that a user gets.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from tta_cattan import CATTAn, UserError
from tta_cattan.methods import AdaptationMethod, Tent

CLASSES = 10
LARGEST = 80_000_000  # parameters; beyond it a family has no member that is small enough for here
SIZES = (64, 96, 128, 224, 256)
# Marks of small variants, the smallest first.
_SMALL = ("test_", "atto", "femto", "pico", "zepto", "nano", "xx_small", "xxs", "xxt", "micro", "mini", "050", "035",
          "n0", "t0", "tiny", "_xs", "s0", "b0", "_s", "small", "10t", "14t", "18", "_a0", "19",
          "26", "50", "mobile")  # fmt: skip
_SKIPPED = ("dsnt", "gdn", "distilled", "clip", "in22k")


def timm_members() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield each family (module) of timm with a builder of its smallest member."""
    import timm

    for family in sorted(timm.list_modules()):
        names = sorted(timm.list_models(module=family), key=_rank)
        if names:
            yield f"timm/{family}", _timm_builder(names[:4])


def _rank(name: str) -> tuple[int, int, str]:
    mark = next((position for position, word in enumerate(_SMALL) if word in name), len(_SMALL))
    return mark + 100 * any(word in name for word in _SKIPPED), len(name), name


def _timm_builder(names: list[str]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        sizes = {}
        for name in names:
            try:
                with torch.device("meta"):
                    sizes[name] = _parameters(timm.create_model(name, pretrained=False))
            except (RuntimeError, NotImplementedError):
                continue  # some read numbers while they are built, which meta tensors do not have
        smallest = min(sizes, key=lambda name: (sizes[name], name), default=names[0])
        if sizes.get(smallest, 0) > LARGEST:
            raise UserError(f"not tried: its smallest member, {smallest}, has {sizes[smallest]:,} parameters")
        return timm.create_model(smallest, pretrained=False, num_classes=CLASSES)

    return build


def torchvision_members() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield a small member of each of torchvision's classifiers."""
    from torchvision import models

    for name in (
        "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
        "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnext50_32x4d",
        "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vgg11_bn", "vit_b_32",
        "wide_resnet50_2",
    ):  # fmt: skip
        yield f"torchvision/{name}", lambda name=name: models.get_model(name, weights=None, num_classes=CLASSES)


def _parameters(model: nn.Module) -> int:
    return sum(param.numel() for param in model.parameters())


def filled(model: nn.Module) -> nn.Module:
    """Give random weights to linear layers that begin at zero, as some classifiers do; trained ones are not zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.1)
    return model


def find_input(model: nn.Module) -> torch.Tensor:
    """Return four images of the smallest size that the model takes."""
    own = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
    fixed = getattr(model, "default_cfg", {}).get("fixed_input_size", False)
    problem = ""
    for size in (own[-1],) if fixed else (*SIZES, own[-1]):
        images = torch.rand(4, own[0], size, size, generator=torch.Generator().manual_seed(0))
        try:
            with torch.no_grad():
                model.eval()(images)
            return images
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            problem = str(error)
    raise UserError(f"takes no square image that was tried ({problem.splitlines()[0] if problem else ''})")


def check(method: AdaptationMethod, images: torch.Tensor) -> str:
    """Return what a method does not keep of the contract, or an empty string."""
    start = {name: value.clone() for name, value in method.model.state_dict().items()}
    for _ in range(2):
        if not torch.isfinite(method(images)).all():
            return "the logits are not finite"
    if method.safety.skipped_steps:
        return "an update was not finite"
    plain = method.fold()
    if not torch.allclose(plain(images), method.predict(images), atol=1e-3, rtol=1e-3):
        return "the folded model is another function"
    method.reset()
    after = method.model.state_dict()
    moved = [name for name, value in start.items() if not torch.equal(after[name], value)]
    return f"reset does not restore {moved[0]}" if moved or start.keys() != after.keys() else ""


def outcome(build: Callable[[], nn.Module]) -> str:
    """Return an empty string where a family keeps the contract, or the reason why not."""
    torch.manual_seed(0)
    try:
        model = filled(build())
        images = find_input(model)
        for make in (Tent, lambda net: CATTAn(net, num_classes=CLASSES)):
            problem = check(make(copy.deepcopy(model)), images)
            if problem:
                return f"BROKEN: {problem}"
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"BROKEN: {type(error).__name__}: {(str(error) or '-').splitlines()[0][:160]}"
    return ""


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="families separated by commas")
    parser.add_argument("--json", type=Path, help="write the outcomes here too, as they come")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else None
    found = {}
    for name, build in (*torchvision_members(), *timm_members()):
        if wanted is None or name in wanted:
            began = time.monotonic()
            found[name] = outcome(build)
            print(f"{name}: {found[name] or 'passed'} ({time.monotonic() - began:.0f} s)", flush=True)
            if args.json:
                args.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    passed = sum(not reason for reason in found.values())
    print(f"{passed} of {len(found)} families passed")
    return int(any(reason.startswith("BROKEN") for reason in found.values()))


if __name__ == "__main__":
    sys.exit(main())
