"""Run a host's own script with our methods plugged in; no file of the host changes."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tta_cattan.host import ifchain_host, registry_host, ttab_host
from tta_cattan.host.recognise import Host, recognise, version
from tta_cattan.util.errors import UserError
from tta_cattan.util.upstream import heal_autoattack


def parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own arguments; everything after the script belongs to the script."""
    result = argparse.ArgumentParser(
        prog="python -m tta_cattan.host",
        description="Run a test-time adaptation framework's own script with CATTAn among its methods.",
        epilog="Example: python -m tta_cattan.host test_time.py --cfg cfgs/cifar10_c/tent.yaml "
        "MODEL.ADAPTATION cattan CATTAN.D 256 CATTAN.SOURCE_BASIS classifier",
    )
    result.add_argument("--cpu", action="store_true", help="make the host's hard-coded .cuda() do nothing")
    result.add_argument(
        "--two-pass", action="store_true", help="fit the target subspace on each test set before it is evaluated"
    )
    result.add_argument("script", type=Path, metavar="SCRIPT", help="the host's script, e.g. cifar10c.py")
    result.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Recognise the host, plug in, and hand over to its script."""
    args = parser().parse_args(argv)
    script = args.script.resolve()
    host = recognise(script)
    print(f"tta-cattan: {host.name} in {script.parent} ({version(host, script)})", file=sys.stderr)
    enter(host, script, args.cpu)
    arguments, names, transform = plug_in(host, args.arguments, args.cpu, args.two_pass)
    sys.argv = [str(args.script), *arguments]
    run_script(script, names, transform)
    return 0


def enter(host: Host, script: Path, cpu: bool) -> None:
    """Prepare this process for the host: change to its folder, put it first in ``sys.path``, and check the device."""
    if cpu:
        stay_on_cpu()
    elif host.contract == "ifchain" and not torch.cuda.is_available():
        raise UserError(
            f"{host.name} calls .cuda() throughout, and torch sees no CUDA device here: run it on a GPU machine, or "
            "pass --cpu before the script, which makes .cuda() do nothing in this process"
        )
    os.chdir(script.parent)
    # `utils`, `methods`, `conf` are the host's: put its folder where `python script.py` would.
    sys.path[:] = [str(script.parent), *(entry for entry in sys.path if entry not in ("", str(script.parent)))]
    heal_autoattack()  # without it `import robustbench` fails in every host, with or without us


def stay_on_cpu() -> None:
    """Make ``.cuda()`` of tensors and modules do nothing, and load checkpoints to the CPU, in this process only."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # hosts that ask torch.cuda.is_available() get the same answer
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    load = torch.load

    @functools.wraps(load)
    def load_to_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(f, "cpu" if map_location is None else map_location, *args, **kwargs)

    torch.load = load_to_cpu


def plug_in(
    host: Host, arguments: list[str], cpu: bool = False, two_pass: bool = False
) -> tuple[list[str], dict[str, Any], Callable[[ast.Module], ast.Module] | None]:
    """Plug our methods into the host; return the script's arguments, extra names and syntax-tree transformation."""
    if two_pass:
        if host.evaluator is None:
            raise UserError(f"--two-pass: {host.name} does not expose its test loader, so there is no first pass")
        module, function = importlib.import_module(host.evaluator[0]), host.evaluator[1]
        setattr(module, function, preparing(getattr(module, function)))  # before the script imports it by name
    if host.contract == "ttab":
        return ttab_host.plug_in(arguments, cpu), {}, None
    if host.contract == "registry":
        registry_host.register()
        return arguments, {}, None
    if not host.takes_pairs:
        arguments = ifchain_host.take_overrides(host.conf, arguments)
    return arguments, ifchain_host.plug_in(host.conf), ifchain_host.add_branch


def run_script(
    script: Path,
    names: dict[str, Any],
    transform: Callable[[ast.Module], ast.Module] | None = None,
    module_name: str = "__main__",
) -> types.ModuleType:
    """Run a script as ``__main__`` with ``names`` in its namespace and its syntax tree passed through ``transform``."""
    tree = ast.parse(script.read_bytes(), filename=str(script))
    code = compile(transform(tree) if transform else tree, str(script), "exec")
    module = types.ModuleType(module_name)
    module.__file__ = str(script)
    module.__dict__.update(names)
    before = sys.modules.get(module_name)
    sys.modules[module_name] = module  # worker processes and pickle look for it there
    try:
        exec(code, module.__dict__)
    finally:
        if before is not None:
            sys.modules[module_name] = before
    return module


def preparing(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a host's evaluator preceded by ``model.prepare``, once per test set."""
    seen: list[Any] = [None]  # kept alive, so that no new test set gets its id

    @functools.wraps(evaluate)
    def prepared(model: Any, *args: Any, **kwargs: Any) -> Any:
        data: Any = kwargs.get("data_loader", args[0] if args else kwargs.get("x"))
        if hasattr(model, "prepare") and data is not seen[0]:
            seen[0] = data
            batch_size = args[2] if len(args) > 2 else kwargs.get("batch_size", 100)  # clean_accuracy's default
            model.prepare(map(_images, data.split(batch_size) if isinstance(data, Tensor) else data))
        return evaluate(model, *args, **kwargs)

    return prepared


def _images(batch: Any) -> Any:
    """Return the images of a batch: (images, labels, ...), where images may be a list of views."""
    return _images(batch[0]) if isinstance(batch, (list, tuple)) else batch
