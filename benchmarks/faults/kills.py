"""Kill every long command at random moments, start it again, and compare the end with that of an undisturbed run.

    python benchmarks/faults/kills.py --kills 20 [--signal KILL] [--commands compare,fit-source] [--seed 0]
    python benchmarks/faults/kills.py --commands stream --stream CORRUPTION.DATASET cifar10_c DATA_DIR data ...

Everything runs on the digits that ship with scikit-learn, unless keys of the stream name other data. Prints one row per
command; exit code 1 if any end differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CFG = str(ROOT / "cfgs" / "digits_c" / "cattan.yaml")
MOST_PER_ROUND = 6  # kills before a command may come to its end


@dataclass(frozen=True)
class Command:
    """A command by the folder that it writes to, and what must be the same at its end."""

    arguments: Callable[[Path], list[str]]
    outcome: Callable[[Path], Any]
    equal: Callable[[Any, Any], bool] = lambda one, other: one == other


def pairs(**changes: object) -> list[str]:
    """Return KEY VALUE pairs; ``__`` stands for the dot."""
    return [str(part) for key, value in changes.items() for part in (key.replace("__", "."), value)]


def small(folder: Path, **changes: object) -> list[str]:
    """Return the keys of a small run whose model lies in ``folder`` too."""
    keys = {"CKPT_DIR": folder / "ckpt", "DEVICE": "cpu", "SOURCE__EPOCHS": 1, "CORRUPTION__NUM_EX": 64, **changes}
    return pairs(**keys)


def compare(folder: Path) -> list[str]:
    """Return the harness on 3 methods x 2 corruptions x 2 seeds, with the training of its source model."""
    keys = {"CORRUPTION__TYPE": "gaussian_noise,contrast", "SEEDS": "0,1", "TEST__EPOCHS": 1}
    return ["--cfg", CFG, "--methods", "source,tent,cattan", *small(folder, SAVE_DIR=folder / "save", **keys)]


def cells(folder: Path) -> dict[str, Any]:
    """Return every cell's metrics but for times; a cell that is there twice is an error."""
    from tta_cattan.bench.run.cell import COST_METRICS

    found: dict[str, Any] = {}
    for line in next((folder / "save").glob("*/results.jsonl")).read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the torn line of a killed run, which the store skips
        key = "/".join(str(record[name]) for name in ("method", "domain", "severity", "seed", "fingerprint"))
        if key in found:
            raise RuntimeError(f"{key} was computed twice")
        found[key] = {name: value for name, value in record["metrics"].items() if name not in COST_METRICS}
    return found


def predicted(folder: Path) -> dict[str, Any]:
    """Return every cell's metrics and, bit for bit, its predictions in the order of the stream."""
    found = sorted((folder / "save").glob("*/predictions/*"))
    return {**cells(folder), **{path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}}


def files(folder: Path) -> dict[str, str]:
    """Return the hash of every finished file; temporary ones of killed processes are not finished."""
    found = (p for p in sorted((folder / "out").rglob("*")) if p.is_file() and not p.name.startswith("."))
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def subspace(folder: Path) -> Any:
    """Return the subspace that was fitted."""
    from tta_cattan.alignment import Subspace

    return Subspace.load(folder / "out" / "subspace.safetensors")


def same_subspace(one: Any, other: Any) -> bool:
    """Tell whether two subspaces agree to float32: a resumed sum is rounded at other places."""
    import torch

    close = torch.allclose(one.eigenvalues, other.eigenvalues, rtol=1e-5, atol=1e-6)
    signs = (one.basis * other.basis).sum(0).sign()[:10]
    return (
        one.count == other.count and close and torch.allclose(one.basis[:, :10], signs * other.basis[:, :10], atol=1e-4)
    )


def weights(folder: Path) -> list[str]:
    """Return the hash of the weights of the model that was trained."""
    from safetensors.torch import load_file

    from tta_cattan.util.files import sha256_tensors

    found = [p for p in (folder / "ckpt").rglob("*.safetensors") if p.parent.name != "subspaces" and p.name[0] != "."]
    return sorted(sha256_tensors(load_file(path)) for path in found)


def write_images(folder: Path) -> Path:
    """Write a few clean images in class folders, once."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(6):
        path = folder / f"class{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return folder


def write_encoder(path: Path) -> Path:
    """Write random weights of the encoder, once."""
    import timm
    from safetensors.torch import save_file

    save_file(timm.create_model("resnet10t").state_dict(), path)
    return path


def commands(scratch: Path, of_stream: list[str]) -> dict[str, Command]:
    """Return the long commands by name; ``of_stream`` are keys of the stream."""
    images = write_images(scratch / "images")
    shot = {"SOURCE__EPOCHS": 3}
    encoder = {
        "MODEL__ARCH": "timm/resnet10t",
        "MODEL__CKPT_PATH": write_encoder(scratch / "encoder.safetensors"),
        "CORRUPTION__TYPE": "fog,contrast",
        "CORRUPTION__SEVERITY": 5,
    }
    corrupt = ["make-corruptions", "--size", "32", "--workers", "1", "--images", str(images)]
    return {
        "compare": Command(compare, cells),
        "stream": Command(
            lambda f: [
                "--cfg", CFG, "--methods", "tent,cattan_plus", "SAVE_DIR", str(f / "save"),
                *small(f, CKPT_DIR=scratch / "ckpt", SETTING="continual", TEST__PROTOCOL="online", SEEDS=0), *of_stream,
            ],
            predicted,
        ),
        "train-source": Command(lambda f: ["train-source", "--cfg", CFG, *small(f, **shot)], weights),
        "fit-source": Command(
            lambda f: [
                "fit-source", "--cfg", CFG, "--out", str(f / "out" / "subspace.safetensors"),
                *small(f, CKPT_DIR=scratch / "ckpt", TEST__BATCH_SIZE=16),
            ],
            subspace,
            same_subspace,
        ),
        "extract-features": Command(
            lambda f: [
                "extract-features", "--cfg", CFG, "--out", str(f / "out"), "--shard-size", "16",
                *small(f, DATA__IMAGE_SIZE=32, TEST__BATCH_SIZE=8, **encoder),
            ],
            files,
        ),
        "make-corruptions": Command(lambda f: [*corrupt, "--out", str(f / "out")], files),
    }  # fmt: skip


def work(arguments: list[str], output: str) -> None:
    """Run a command line in this process, its output in a file; fits and streams save checkpoints often."""
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    import torch

    from tta_cattan.bench.protocols import stream
    from tta_cattan.bench.source import subspace
    from tta_cattan.cli.main import main

    subspace._SAVE_EVERY, stream._SAVE_EVERY = 0.05, 64
    torch.set_num_threads(1)
    sys.exit(main(arguments))


def start(arguments: list[str], output: Path) -> Any:
    """Start a process that can be killed; the imports are paid for once, in a server that forks it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torchvision", "timm", "sklearn.datasets", "tta_cattan.bench.run.runner"])
    process = context.Process(target=work, args=(arguments, str(output)))
    process.start()
    return process


def disturb(name: str, command: Command, scratch: Path, kills: int, pick: random.Random, by: signal.Signals) -> bool:
    """Print the row of one command; tell whether every end was that of the undisturbed run."""
    whole = scratch / name / "whole"
    output = scratch / f"{name}.log"
    for folder in (scratch / name / "first", whole):  # the second: what is made once for all is there
        began = time.monotonic()
        process = start(command.arguments(folder), output)
        process.join()
        duration = time.monotonic() - began
        if process.exitcode:
            raise SystemExit(f"{name} fails undisturbed: {output.read_text()[-2000:]}")
    expected = command.outcome(whole)
    done = rounds = same = 0
    while done < kills:
        folder = scratch / name / f"round{rounds}"
        code = None
        for _ in range(MOST_PER_ROUND):
            process = start(command.arguments(folder), output)
            process.join(pick.uniform(0, duration))
            if process.exitcode is None:
                os.kill(process.pid, by)
                process.join()
            code = process.exitcode
            if code not in (-by, 130):
                break  # it came to its end before the kill
            done += 1
        if code in (-by, 130):
            process = start(command.arguments(folder), output)
            process.join()
        rounds += 1
        same += process.exitcode == 0 and command.equal(expected, command.outcome(folder))
    print(f"| `{name}` | SIG{by.name.removeprefix('SIG')} | {done} | {rounds} | {same} |", flush=True)
    return same == rounds


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="per command (20)")
    parser.add_argument("--signal", choices=("KILL", "INT", "TERM"), default="KILL")
    parser.add_argument("--commands", help="names separated by commas (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stream", metavar="KEY VALUE", nargs="*", default=[], help="keys of the command stream")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        known = commands(Path(scratch), args.stream)
        names = args.commands.split(",") if args.commands else list(known)
        pick, by = random.Random(args.seed), signal.Signals[f"SIG{args.signal}"]
        start(["--help"], Path(scratch) / "help.log").join()  # the server is up: its imports belong to no run
        print("| command | signal | kills | rounds | ended as undisturbed |\n|---|---|---:|---:|---:|", flush=True)
        good = [disturb(name, known[name], Path(scratch), args.kills, pick, by) for name in names]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
