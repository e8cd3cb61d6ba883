"""Build wheel and sdist, check them, install each into a new environment, and run from outside the repository.

    python benchmarks/faults/packaging.py [--python PYTHON] [--versions newest|lowest] [--of wheel,sdist]
        [--tests PATH ...] [--environment DIR]

``lowest`` installs the lowest version of every requirement that setup.py names. With ``--tests`` those tests of the
repository run with the same versions. Exit code 1 at the first step that fails, with its output.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("source", "tent", "cattan")
SHORT_RUN = (
    "--cfg", "cfgs/digits_c/cattan.yaml", "--methods", ",".join(METHODS), "CORRUPTION.TYPE", "contrast",
    "CORRUPTION.NUM_EX", "64", "SOURCE.EPOCHS", "1", "TEST.EPOCHS", "1", "SEEDS", "0", "DEVICE", "cpu",
    "SAVE_DIR", "out", "CKPT_DIR", "ckpt",
)  # fmt: skip
FACTS = (
    "import importlib.metadata as m, json, pathlib, tta_cattan;"
    "here = pathlib.Path(tta_cattan.__file__).parent;"
    "versions = {d.metadata['Name'].lower(): d.version for d in m.distributions()};"
    "print(json.dumps({'place': str(here), 'configs': len(list(here.rglob('*.yaml'))), 'versions': versions}))"
)


def run(*command: str | Path, cwd: Path) -> str:
    """Return what a command prints; where it fails, end with its output."""
    # The repository must not be found by accident.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def environment(python: str, folder: Path) -> Path:
    """Return the python of a virtual environment, a new one where there is none."""
    inner = folder / "bin" / "python"
    if not inner.exists():
        run(python, "-m", "venv", folder, cwd=folder.parent)
    return inner


def requirements() -> dict[str, str]:
    """Return the lowest version of each requirement that setup.py names."""
    listed = re.search(r"REQUIRES = \[(.*?)\]", (ROOT / "setup.py").read_text(encoding="utf-8"), re.DOTALL)
    assert listed is not None
    return dict(re.findall(r'"([\w-]+)>=([\d.]+)"', listed.group(1)))


def build(python: str, scratch: Path) -> dict[str, Path]:
    """Return wheel and sdist, built and checked."""
    tools = environment(python, scratch / "tools")
    run(tools, "-m", "pip", "install", "-q", "build", "twine", cwd=scratch)
    dist = scratch / "dist"
    # The wheel of `build` is made of the sdist: what the sdist lacks is missing there too.
    run(tools, "-m", "build", "--outdir", dist, ROOT, cwd=scratch)
    archives = {"wheel": next(dist.glob("*.whl")), "sdist": next(dist.glob("*.tar.gz"))}
    said = run(tools, "-m", "twine", "check", "--strict", *archives.values(), cwd=scratch)
    if said.count("PASSED") != len(archives):
        raise SystemExit(f"twine check: {said}")
    return archives


def install(python: Path, archive: Path, folder: Path, lowest: bool) -> None:
    """Install an archive, and the lowest or newest versions of what it requires."""
    pins = folder / "lowest.txt"
    pins.write_text("".join(f"{name}=={version}\n" for name, version in requirements().items()) if lowest else "")
    run(python, "-m", "pip", "install", "-q", "-c", pins, archive, cwd=folder)


def use(python: Path, away: Path) -> dict[str, str]:
    """Run what is installed from a folder outside the repository; return the versions that it ran with."""
    away.mkdir()
    facts = json.loads(run(python, "-c", FACTS, cwd=away))
    assert facts["place"].startswith(str(python.parents[2])), facts["place"]
    assert facts["configs"] == len(list((ROOT / "cfgs").rglob("*.yaml"))), "configs are missing from the package"
    command = python.with_name("tta-cattan")
    run(command, "--list", cwd=away)
    run(command, *SHORT_RUN, cwd=away)
    cells = [json.loads(line) for line in next(away.glob("out/*/results.jsonl")).read_text().splitlines()]
    assert sorted(cell["method"] for cell in cells) == sorted(METHODS), cells
    assert all(0 <= cell["metrics"]["accuracy"] <= 1 for cell in cells), cells
    return facts["versions"]


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the new environments")
    parser.add_argument("--versions", choices=("newest", "lowest"), default="newest")
    parser.add_argument("--of", default="wheel,sdist", help="the archives to install (wheel,sdist)")
    parser.add_argument("--tests", nargs="*", default=[], help="tests to run with the first archive's versions")
    parser.add_argument("--environment", type=Path, help="install here and keep it (default: a new one, thrown away)")
    args = parser.parse_args()
    if args.environment:
        args.environment = args.environment.resolve()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        archives = build(args.python, scratch)
        python = environment(args.python, args.environment or scratch / "environment")
        number = run(python, "-c", "import platform; print(platform.python_version())", cwd=scratch).strip()
        print(f"Python {number}, {args.versions} versions; twine check passed", flush=True)
        for kind in args.of.split(","):
            install(python, archives[kind], scratch, args.versions == "lowest")
            versions = use(python, scratch / f"away-{kind}")
            print(f"{kind}: ran with {', '.join(f'{name} {versions[name]}' for name in requirements())}", flush=True)
            run(python, "-m", "pip", "uninstall", "-q", "-y", "tta-cattan", cwd=scratch)
        if args.tests:
            run(python, "-m", "pip", "install", "-q", "pytest", "hypothesis", cwd=scratch)
            said = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args.tests, cwd=ROOT)
            print(f"tests: {said.strip().splitlines()[-1]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
