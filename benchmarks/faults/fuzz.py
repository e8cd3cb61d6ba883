"""Search the properties of tests/fuzz for inputs that break them, led by coverage (atheris), for processor hours.

    python benchmarks/faults/fuzz.py --hours 1 --folder fuzz [--targets a_checkpoint,config] [--seed 0]

``--folder`` keeps the corpus, each finding with its input, and the counts; the same command resumes, until the chosen
properties together have had ``--hours`` of processor time. Without atheris, inputs are drawn at random. Exit code 1 if
anything was found. To see a finding again:

    python benchmarks/faults/fuzz.py --replay fuzz/findings/FILE
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SLICE = 120  # seconds of one property, at most, before the next has its turn
SLOW = 10  # processor seconds that an input may take
HANGS = 3600  # seconds after which an input that uses no processor is given up
MEMORY = 6 << 30  # bytes of address space; torch alone takes more than 2
LONGEST = 4096  # bytes of an input
INSTRUMENTED = ["tta_cattan.util", "tta_cattan.config", "tta_cattan.alignment", "tta_cattan.bench", "yaml", "zipfile"]
SEEDS = 50  # random inputs to begin with


def properties(atheris: ModuleType | None) -> dict[str, Callable[[bytes], object]]:
    """Return the property tests by name, without ``test_``, as functions of bytes."""
    folder = ROOT / "tests" / "fuzz"
    sys.path[:0] = [str(ROOT), str(folder.parent), str(folder)]
    with atheris.instrument_imports(include=INSTRUMENTED) if atheris else nullcontext():
        modules = [importlib.import_module(path.stem) for path in sorted(folder.glob("test_*.py"))]
    found = {name.removeprefix("test_"): test for module in modules for name, test in vars(module).items()}
    return {name: test.hypothesis.fuzz_one_input for name, test in found.items() if hasattr(test, "hypothesis")}


def search(name: str, run: Callable[[bytes], object], folder: Path, seconds: float, seed: int, atheris: Any) -> None:
    """Try inputs of one property; write down what is found, and the number of executions."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    most = int(time.process_time() + seconds) + HANGS // 60
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))  # ends what never ends, however busy the machine
    corpus = folder / "corpus" / name
    pick, end, executions = random.Random(seed), time.monotonic() + seconds, 0
    if not corpus.is_dir():  # of few bytes no example can be made, and nothing is covered
        corpus.mkdir(parents=True)
        for number in range(SEEDS):
            (corpus / str(number)).write_bytes(pick.randbytes(pick.randrange(200, LONGEST)))

    def one(data: bytes) -> None:
        nonlocal executions
        began, executions = time.process_time(), executions + 1
        try:
            run(data)
            if time.process_time() - began > SLOW:
                raise TimeoutError(f"one input took more than {SLOW} seconds")
        except BaseException as error:
            report(name, folder, data, error)
        if executions % 10 == 0:
            (folder / "now").write_text(str(executions))

    if atheris:
        limits = [f"-max_total_time={int(seconds)}", f"-timeout={HANGS}", f"-max_len={LONGEST}", "-len_control=0"]
        where = [f"-artifact_prefix={folder}/findings/{name}-", str(corpus)]
        atheris.Setup(
            [
                sys.argv[0],
                *limits,
                f"-seed={seed + 1}",
                "-rss_limit_mb=0",
                f"-report_slow_units={HANGS}",
                "-verbosity=0",
                *where,
            ],
            one,
        )
        atheris.Fuzz()
    while not atheris and time.monotonic() < end:
        one(pick.randbytes(pick.randrange(1, LONGEST)))


def report(name: str, folder: Path, data: bytes, error: BaseException) -> None:
    """Write a finding down, one per place in the code where it was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if str(ROOT) in f.filename]
    place = "-".join(f"{Path(f.filename).stem}.{f.name}.{f.lineno}" for f in frames[-2:])
    path = folder / "findings" / f"{name}-{type(error).__name__}-{place}"[:200]
    if not path.exists():
        path.write_bytes(data)
        path.with_name(path.name + ".txt").write_text("".join(traceback.format_exception(error)))
        print(f"finding: {path.name}: {str(error)[:200]!r}", file=sys.stderr, flush=True)


def turn(name: str, run: Callable[[bytes], object], folder: Path, seconds: float, seed: int, atheris: Any) -> dict:
    """Search one property in a process of its own, which may be killed for its time or memory; return its counts."""
    (folder / "now").write_text("0")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        child = os.fork()
        if not child:
            os.environ["FUZZ_FOLDER"] = scratch
            os.chdir(scratch)
            search(name, run, folder, seconds, seed, atheris)
            os._exit(0)
        _, status, used = os.wait4(child, 0)
    if status:
        print(f"finding: {name} ended with exit code {status}", file=sys.stderr, flush=True)
    counts = {"turns": 1, "executions": int((folder / "now").read_text()), "ended": int(status != 0)}
    return {**counts, "seconds": time.monotonic() - began, "cpu_seconds": used.ru_utime + used.ru_stime}


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=1.0, help="processor time of all properties together (1)")
    parser.add_argument("--folder", type=Path, default=Path("fuzz"))
    parser.add_argument("--targets", default="", help="parts of names, separated by commas (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=Path)
    args = parser.parse_args()
    atheris = importlib.import_module("atheris") if importlib.util.find_spec("atheris") and not args.replay else None
    tests = properties(atheris)
    if args.replay:
        name = max((name for name in tests if args.replay.name.startswith(name)), key=len)
        tests[name](args.replay.read_bytes())
        return 0
    logging.disable(logging.CRITICAL)
    sys.modules["torch"].set_num_threads(1)
    folder = args.folder.resolve()
    (folder / "findings").mkdir(parents=True, exist_ok=True)
    state = folder / "state.json"
    counts = json.loads(state.read_text()) if state.is_file() else {}
    chosen = [name for name in tests if any(part in name for part in args.targets.split(","))]
    used = {name: counts.get(name, {}).get("cpu_seconds", 0.0) for name in chosen}
    number = sum(each["turns"] for each in counts.values())
    while sum(used.values()) < 3600 * args.hours:
        name = min(used, key=lambda name: used[name])
        seconds = min(SLICE, 3600 * args.hours / len(chosen))
        done, before = turn(name, tests[name], folder, seconds, args.seed + number, atheris), counts.get(name, {})
        counts[name] = {key: before.get(key, 0) + value for key, value in done.items()}
        used[name] = counts[name]["cpu_seconds"]
        state.write_text(json.dumps(counts, indent=1))
        number += 1
    found = sorted(path.name for path in (folder / "findings").iterdir() if not path.name.endswith(".txt"))
    print("| property | executions | seconds | processor seconds | findings |\n|---|---:|---:|---:|---:|")
    for name, each in counts.items():
        numbers = f"{each['executions']:,} | {each['seconds']:,.0f} | {each['cpu_seconds']:,.0f}"
        print(f"| {name.replace('_', ' ')} | {numbers} | {sum(path.startswith(name) for path in found)} |")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
