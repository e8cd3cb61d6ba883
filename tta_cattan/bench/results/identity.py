"""The identity of a result: a fingerprint of its inputs, and the versions, machine and hashes of a run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_text, write_text

RUN_FILE = "run.json"
_DISTRIBUTIONS = ("torch", "torchvision", "timm", "numpy", "robustbench", "scikit-learn", "tta-cattan")


def canonical_json(value: Any, name: str = "value", indent: int | None = None) -> str:
    """Return the canonical JSON of ``value`` (sorted keys, floats by repr); refuse what JSON cannot hold exactly."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(value, sort_keys=True, separators=separators, indent=indent, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} cannot be stored as JSON: {error}") from error


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that change whenever anything in ``parts`` does."""
    return sha256_text(canonical_json(parts, "fingerprint"))[:16]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a result ("absent" if not installed)."""
    found = {"python": platform.python_version()}
    found.update((name, _installed(name)) for name in _DISTRIBUTIONS)
    return found


@cache  # reading metadata takes milliseconds, and every fingerprint needs it
def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def machine(device: str = "cpu") -> dict[str, Any]:
    """Describe the machine; ``device`` is the one that computes."""
    import torch

    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": device,
    }


def git_revision(folder: str | os.PathLike[str]) -> str | None:
    """Return the commit checked out in ``folder`` ("-dirty" appended if files were changed), or None outside git."""
    command = ["git", "-C", os.fspath(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    # Inside a git hook, GIT_DIR and the like would override the folder.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def config_path(folder: Path, method: str, fingerprint: str) -> Path:
    return folder / f"config-{method.replace(':', '_')}-{fingerprint}.yaml"


def write_run_file(folder: str | os.PathLike[str], description: Mapping[str, Any]) -> Path:
    """Write ``description`` to ``run.json`` in ``folder`` and return its path."""
    path = Path(folder) / RUN_FILE
    write_text(path, canonical_json(description, RUN_FILE, indent=2) + "\n")
    return path


def _processor() -> str:
    """Return the processor's name (on Linux from /proc/cpuinfo, which ``platform`` does not read)."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
