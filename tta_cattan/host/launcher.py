"""Run a host's own script with our methods plugged in; no file of the host changes."""

from __future__ import annotations

import argparse
import ast
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tta_cattan.host.recognise import Host, recognise, version
from tta_cattan.util.errors import UserError


def parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own arguments; all after the script is the script's."""
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


def main_with_errors(argv: Sequence[str] | None = None) -> int:
    """Run ``main``; a user's mistake is one line and exit code 2."""
    try:
        return main(argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def enter(host: Host, script: Path, cpu: bool) -> None:
    """Make the process one of the host's: its folder, its modules first, and a device that is there."""
    from tta_cattan.host.cuda import require_cuda, stay_on_cpu
    from tta_cattan.util.upstream import heal_autoattack

    if cpu:
        stay_on_cpu()
    elif host.cuda_only:
        require_cuda(host.name)
    os.chdir(script.parent)
    # `utils`, `methods`, `conf` are the host's: its folder takes the place that `python script.py` would give it.
    sys.path[:] = [str(script.parent), *(entry for entry in sys.path if entry not in ("", str(script.parent)))]
    heal_autoattack()  # without it `import robustbench` fails in every host, with or without us


def plug_in(
    host: Host, arguments: list[str], cpu: bool = False, two_pass: bool = False
) -> tuple[list[str], dict[str, Any], Callable[[ast.Module], ast.Module] | None]:
    """Plug our methods into the host; return the script's arguments, names and change of its syntax tree."""
    from tta_cattan.host import ifchain_host, registry_host, ttab_host
    from tta_cattan.host import two_pass as passes

    if two_pass and host.name not in passes.EVALUATORS:
        raise UserError(f"--two-pass: {host.name} keeps its test loader to itself, so there is no first pass to make")
    if host.contract == "ttab":
        return ttab_host.plug_in(arguments, cpu), {}, None
    if host.name == "Benchmark-TTA":
        arguments = ifchain_host.take_overrides(host.conf, arguments)
    adapter = registry_host if host.contract == "registry" else ifchain_host
    names = adapter.plug_in(host.conf)
    if two_pass:
        passes.allow_two_passes(host.name)
    return arguments, names, ifchain_host.add_branch if adapter is ifchain_host else None


def run_script(
    script: Path,
    names: dict[str, Any],
    transform: Callable[[ast.Module], ast.Module] | None = None,
    module_name: str = "__main__",
) -> types.ModuleType:
    """Run a script as ``__main__`` with ``names`` in its namespace, its syntax tree changed by ``transform``."""
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
