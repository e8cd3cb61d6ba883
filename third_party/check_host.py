"""Check in a minute that CATTAn runs in a real checkout: ``python third_party/check_host.py --host PATH``.

The host's own script and loop run on a small random network and random images that stand in for its model and data, and
the logits must be bit for bit those of our class without the host. No file of the host may change.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tta_cattan.config import load_cfg
from tta_cattan.host import launcher
from tta_cattan.host.recognise import Host, recognise, version
from tta_cattan.methods import AdaptationMethod, setup_model
from tta_cattan.util.errors import UserError

DOMAINS = ("gaussian_noise", "fog")
METHOD = [
    "MODEL.ADAPTATION", "cattan", "OPTIM.LR", "1e-3", "CATTAN.D", "8", "CATTAN.LAMBDA_LR", "1",
    "CATTAN.SOURCE_BASIS", "classifier",
]  # fmt: skip
SMALL = ["CORRUPTION.TYPE", str(list(DOMAINS)), "CORRUPTION.SEVERITY", "[5]", "TEST.BATCH_SIZE", "20"]


def network() -> nn.Module:
    """Return the small network that stands in for the host's model."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(16, 10)).eval()


def images(domain: str) -> tuple[Tensor, Tensor]:
    """Return the random images and labels that stand in for a target domain."""
    generator = torch.Generator().manual_seed(DOMAINS.index(domain))
    return torch.rand(40, 3, 32, 32, generator=generator), torch.randint(0, 10, (40,), generator=generator)


def loader(domain: str) -> DataLoader[Any]:
    """Return a data loader of a target domain."""
    data = TensorDataset(*images(domain))
    data.transform = None  # hosts log it
    return DataLoader(data, batch_size=20)


class Recorder:
    """What a host shows our class, and the logits that it got: resets and batches in their order."""

    def __init__(self) -> None:
        self.events: list[Tensor | None] = []  # None = a reset
        self.logits: list[Tensor] = []

    def watch(self) -> ExitStack:
        """Return the context in which our classes are watched."""
        adapt, reset = AdaptationMethod.forward_and_adapt, AdaptationMethod.reset

        def watched_adapt(method: AdaptationMethod, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
            self.events.append(x.clone())
            self.logits.append(adapt(method, x, *arguments, **options))
            return self.logits[-1]

        def watched_reset(method: AdaptationMethod) -> None:
            self.events.append(None)
            reset(method)

        stack = ExitStack()
        stack.enter_context(mock.patch.object(AdaptationMethod, "forward_and_adapt", watched_adapt))
        stack.enter_context(mock.patch.object(AdaptationMethod, "reset", watched_reset))
        return stack

    def replay(self) -> list[Tensor]:
        """Return the logits of our class on the same stream, without the host."""
        method = setup_model(network(), load_cfg(None, METHOD), 10)
        logits = []
        for event in self.events:
            if event is None:
                method.reset()
            else:
                logits.append(method(event))
        return logits


def stand_in(script: ModuleType, host: Host) -> None:
    """Put the small network and the random images where the script looks for its own."""
    names = vars(script)
    if host.name == "test-time-adaptation":
        names["get_model"] = lambda *_, **__: (network(), None)
        names["get_test_loader"] = lambda **options: loader(options["domain_name"])
        return
    names["load_model"] = lambda *_, **__: network()
    if host.name == "Benchmark-TTA":
        names["load_dataset"] = lambda *_, **options: (loader(options["domain"]).dataset, loader(options["domain"]))
        return
    for name in [name for name in names if name.startswith(("load_cifar", "load_imagenet"))]:
        names[name] = lambda *arguments, **_: images(arguments[-1][0])


def run_loop(host: Host, path: Path, folder: Path) -> None:
    """Run the host's own evaluation loop with CATTAn in it."""
    config = folder / "cattan.yaml"
    config.write_text("MODEL: {ADAPTATION: cattan}\nCATTAN: {LAMBDA_LR: 1}\n")
    out = ["OUTPUT" if host.name == "Benchmark-TTA" else "SAVE_DIR", str(folder)]
    setting = ["SETTING", "reset_each_shift"] if host.contract == "registry" else []
    arguments, names, transform = launcher.plug_in(host, ["--cfg", str(config), *METHOD, *SMALL, *out, *setting])
    sys.argv = [path.name, *arguments]
    script = launcher.run_script(path, names, transform, "host_script")
    stand_in(script, host)
    if host.name == "Benchmark-TTA":
        script.load_cfg_fom_args(str(config), "check")
        (script.evaluate if hasattr(script, "evaluate") else script.validation)(script.cfg)
    else:
        script.evaluate("check")


def run_ttab(path: Path) -> None:
    """Drive the class that TTAB gets, as its Benchmark does; its datasets are too large for a check."""
    launcher.plug_in(recognise(path), ["--device", "cpu", *METHOD])
    from ttab.model_adaptation import get_model_adaptation_method

    conf = SimpleNamespace(device="cpu", seed=0, debug=False, lr=1e-3, n_train_steps=1, optimizer="Adam")
    conf.model_selection_method, conf.model_adaptation_method = "last_iterate", "cattan"
    conf.model_name, conf.base_data_name, conf.ckpt_path = "small", "cifar10", "ckpt/small.pth"
    conf.statistics, conf.record_preadapted_perf, conf.stochastic_restore_model = {"n_classes": 10}, False, False
    method = get_model_adaptation_method("cattan")(conf, network())
    method.copy_model()
    for x, y in loader(DOMAINS[0]):
        batch = SimpleNamespace(_x=x, _y=y)
        method.adapt_and_eval(False, mock.MagicMock(), None, batch, [], mock.MagicMock(), mock.MagicMock())


def digests(folder: Path) -> dict[Path, str]:
    """Return the digests of the host's files."""
    paths = [path for path in folder.rglob("*") if path.suffix in (".py", ".yaml", ".yml", ".sh")]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def check_script(path: Path) -> None:
    """Check one script of a host; raise what goes wrong."""
    host = recognise(path)
    print(f"{path}: {host.name}, {version(host, path)}")
    before = digests(path.parent)
    recorder = Recorder()
    launcher.enter(host, path, cpu=True)
    with tempfile.TemporaryDirectory() as folder, recorder.watch():
        if host.contract == "ttab":
            run_ttab(path)
        else:
            run_loop(host, path, Path(folder))
    assert len(recorder.logits) >= 2, "the host has not called our method"
    assert torch.equal(torch.cat(recorder.logits), torch.cat(recorder.replay())), "the logits differ from our own run"
    assert digests(path.parent) == before, "files of the host changed"


def find_scripts(folder: Path) -> list[Path]:
    """Return the scripts of a known host in a checkout."""
    found = []
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/*.py")]):
        try:
            recognise(path)
            found.append(path)
        except UserError:
            continue
    return found


def main() -> int:
    """Check every script of a checkout, each in a process of its own: their modules have the same names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", type=Path, metavar="PATH", help="a checkout of a known framework")
    parser.add_argument("--script", type=Path, metavar="FILE", help="one script of it only")
    args = parser.parse_args()
    if args.script:
        try:
            check_script(args.script.resolve())
        except Exception as error:
            traceback.print_exc()
            last = traceback.extract_tb(error.__traceback__)[-1].filename
            if args.script.resolve().parent in Path(last).parents:
                print(f"raised in the host's own code ({last}): does the host run without this package?")
            return 1
        print("ok: same logits as our own run, no file changed")
        return 0
    scripts = find_scripts(args.host) if args.host else []
    if not scripts:
        parser.error("--host PATH: no script of a known framework there")
    results = {path: subprocess.run([sys.executable, __file__, "--script", str(path)]).returncode for path in scripts}
    print("\n".join(f"{'FAILED' if code else 'passed'} {path}" for path, code in results.items()))
    return int(any(results.values()))


if __name__ == "__main__":
    sys.exit(main())
