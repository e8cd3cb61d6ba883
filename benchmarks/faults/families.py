"""The contract over model families: the smallest member of each, random weights, a tiny input, TENT and CATTAn.

    python benchmarks/faults/families.py --json FILE [--only NAME,NAME] [--seconds 120] [--gigabytes 6] [--table FILE]

Each method is set up, adapts twice, gives finite logits, folds into a plain model of the same function, and resets bit
for bit. Prints one line per family: passed, or the reason that a user gets. Each family has a process of its own with a
limit of processor time and of memory; families whose outcome is in FILE already are not tried again.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from tta_cattan import CATTAn, UserError
from tta_cattan.methods import AdaptationMethod, Tent
from tta_cattan.network.normalization import affine_parameters

CLASSES = 10
LARGEST = 150_000_000  # parameters; beyond it a family has no member that is small enough for here
SIZES = (64, 96, 128, 224, 256)
LIBRARIES = ("torchvision", "timm")
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

        sizes, without = {}, set()
        for name in names:
            try:
                with torch.device("meta"):
                    model = timm.create_model(name, pretrained=False)
            except (RuntimeError, NotImplementedError):
                continue  # some read numbers while they are built, which meta tensors do not have
            sizes[name] = _parameters(model)
            if not affine_parameters(model)[0]:
                without.add(name)  # only where the whole family has no normalisation layers
        smallest = min(sizes, key=lambda name: (name in without, sizes[name], name), default=names[0])
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
            if _is_memory(error):
                raise
            problem = str(error)
    raise UserError(f"takes no square image that was tried ({problem.splitlines()[0] if problem else ''})")


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def check(method: AdaptationMethod, images: torch.Tensor) -> str:
    """Return what a method does not keep of the contract, or an empty string."""
    start = {name: value.clone() for name, value in method.model.state_dict().items()}
    for _ in range(2):
        if not torch.isfinite(method(images)).all():
            return "the logits are not finite"
    if method.safety.skipped_steps:
        return "an update was not finite"
    plain = method.fold()
    # With statistics of the batch the plain model has the stream's instead: the same for any batch.
    same = method.predict(images) if not method.statistics_layers else torch.cat([plain(x) for x in images.split(1)])
    if not torch.allclose(plain(images), same, atol=1e-3, rtol=1e-3):
        return "the folded model is another function"
    method.reset()
    after = method.model.state_dict()
    moved = [name for name, value in start.items() if not torch.equal(after[name], value)]
    return f"reset does not restore {moved[0]}" if moved or start.keys() != after.keys() else ""


@dataclass(frozen=True)
class Outcome:
    """What was tried of a family, and an empty reason where it keeps the contract."""

    reason: str
    member: str = ""
    parameters: int = 0
    pixels: int = 0

    @property
    def words(self) -> str:
        """What a reader is told."""
        return self.reason or "passed"


def outcome(build: Callable[[], nn.Module]) -> Outcome:
    """Return how the contract went for a family."""
    torch.manual_seed(0)
    tried: dict[str, str | int] = {}
    try:
        model = filled(build())
        tried = {"member": getattr(model, "default_cfg", {}).get("architecture", ""), "parameters": _parameters(model)}
        images = find_input(model)
        tried["pixels"] = images.shape[-1]
        for make in (Tent, lambda net: CATTAn(net, num_classes=CLASSES)):
            problem = check(make(copy.deepcopy(model)), images)
            if problem:
                return Outcome(f"BROKEN: {problem}", **tried)
    except UserError as error:
        return Outcome(str(error), **tried)
    except Exception as error:
        if _is_memory(error):
            return Outcome("not tried: needs more memory than it was given", **tried)
        line = (str(error) or "-").splitlines()[0][:160]
        return Outcome(f"BROKEN: {type(error).__name__}: {line}", **tried)
    return Outcome("", **tried)


def members() -> dict[str, Callable[[], nn.Module]]:
    """Return the builder of each family's member."""
    return dict((*torchvision_members(), *timm_members()))


def work(family: str, gigabytes: float, seconds: int, answer: multiprocessing.Queue) -> None:
    """Try one family in this process, within limits that the system holds it to."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30), resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    answer.put(asdict(outcome(members()[family])))


def tried_apart(family: str, gigabytes: float, seconds: int) -> Outcome:
    """Return a family's outcome from a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torchvision", "timm", "tta_cattan.methods"])
    answer = context.Queue()
    process = context.Process(target=work, args=(family, gigabytes, seconds, answer))
    process.start()
    process.join(20 * seconds)  # processor time is limited; this is for a process that waits for ever
    if process.exitcode is None:
        process.kill()
        process.join()
    if process.exitcode == 0:
        return Outcome(**answer.get())
    if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Outcome(f"not tried: not done within {seconds} s of processor time")
    return Outcome(f"BROKEN: the process ended with {process.exitcode}")


def table(found: dict[str, Outcome]) -> str:
    """Return the page of all outcomes."""
    passed = {library: [n for n in found if n.startswith(library) and not found[n].reason] for library in LIBRARIES}
    tried = {library: [n for n in found if n.startswith(library)] for library in LIBRARIES}
    counts = ", ".join(f"{len(passed[name])} of {name}'s {len(tried[name])}" for name in LIBRARIES)
    lines = [
        "# Model families",
        "",
        "TENT and CATTAn on the smallest member of every family of torchvision and timm, random weights: set up, adapt "
        f"twice, fold, reset. {counts}",
        "families pass. The others are refused before anything changes, with the message in the table.",
        "`python benchmarks/faults/families.py --json FILE --table FILE` makes the table.",
        "",
    ]
    lines += ["| family | member | parameters | pixels | outcome |", "|---|---|---:|---:|---|"]
    for name, one in found.items():
        lines.append(
            f"| {name} | {one.member} | {one.parameters or '':{',' if one.parameters else ''}} "
            f"| {one.pixels or ''} | {one.words} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="families separated by commas")
    parser.add_argument("--json", type=Path, required=True, help="the outcomes, as they come; those in it are kept")
    parser.add_argument("--table", type=Path, help="write a page of all outcomes here")
    parser.add_argument("--seconds", type=int, default=120, help="of processor time per family (120)")
    parser.add_argument("--gigabytes", type=float, default=6.0, help="of memory per family (6)")
    args = parser.parse_args()
    found: dict[str, Outcome] = {}
    if args.json.exists():
        found = {name: Outcome(**one) for name, one in json.loads(args.json.read_text()).items()}
    wanted = args.only.split(",") if args.only else list(members())
    for name in wanted:
        if name not in found:
            found[name] = tried_apart(name, args.gigabytes, args.seconds)
            args.json.write_text(json.dumps({n: asdict(one) for n, one in sorted(found.items())}, indent=1) + "\n")
            print(f"{name}: {found[name].words}", flush=True)
    if args.table:
        args.table.write_text(table(dict(sorted(found.items()))))
    print(f"{sum(not one.reason for one in found.values())} of {len(found)} families passed")
    return int(any(one.reason.startswith("BROKEN") for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
