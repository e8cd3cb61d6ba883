"""The hosts we know: which one a script belongs to, and which version of it."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tta_cattan.util.errors import UserError

RECIPE = "model = tta_cattan.setup_model(model, cfg, num_classes, source_subspace); outputs = model(x)"


@dataclass(frozen=True)
class Host:
    """A framework: how its scripts are recognised and how they are entered.

    ``marks`` are (file beside the script, text in it); the file ``""`` is the script itself. ``tried`` is the commit
    that we tested. ``evaluator`` is the module and the function that evaluates a model on one test set.
    """

    name: str
    scripts: str
    marks: tuple[tuple[str, str], ...]
    tried: str
    contract: str = "ifchain"  # the adapter: 'ifchain', 'registry' or 'ttab'
    conf: str = "conf"  # the module that holds the YACS config
    evaluator: tuple[str, str] | None = ("robustbench.utils", "clean_accuracy")
    takes_pairs: bool = True  # its command line accepts KEY VALUE


# The more specific host first: CoTTA has everything that TENT has.
HOSTS = (
    Host(
        "CoTTA",
        "cifar/cifar10c.py, cifar/cifar100c.py, imagenet/imagenetc.py",
        (("", "setup_tent("), ("cotta.py", "class CoTTA"), ("conf.py", "load_cfg_fom_args")),
        "c212a20",
    ),
    Host(
        "TENT",
        "cifar10c.py",
        (("", "setup_tent("), ("tent.py", "class Tent"), ("conf.py", "load_cfg_fom_args")),
        "e9e926a",
    ),
    Host(
        "Benchmark-TTA",
        "test-time.py",
        (
            ("", "setup_tent("),
            ("src/methods/setup.py", "def setup_tent("),
            ("src/utils/conf.py", "load_cfg_fom_args"),
        ),
        "d1c14ff",
        conf="src.utils.conf",
        evaluator=("src.utils", "get_accuracy"),
        takes_pairs=False,
    ),
    Host(
        "test-time-adaptation",
        "classification/test_time.py",
        (
            ("", "ADAPTATION_REGISTRY"),
            ("utils/registry.py", "ADAPTATION_REGISTRY"),
            ("methods/base.py", "class TTAMethod"),
            ("conf.py", "load_cfg_from_args"),
        ),
        "8b2ed63",
        contract="registry",
        evaluator=("utils.eval_utils", "get_accuracy"),
    ),
    Host(
        "TTAB",
        "run_exp.py",
        (
            ("", "get_model_adaptation_method"),
            ("parameters.py", "model_adaptation_method"),
            ("ttab/model_adaptation/base_adaptation.py", "class BaseAdaptation"),
        ),
        "19cb3ce",
        contract="ttab",
        evaluator=None,
    ),
)


def recognise(script: Path) -> Host:
    """Return the host that ``script`` belongs to, by its text and the files beside it."""
    if not script.is_file():
        raise UserError(f"{script}: there is no such script; run the launcher from the host's folder")
    for host in HOSTS:
        if all(text in _read(script, file) for file, text in host.marks):
            return host
    known = "; ".join(f"{host.name} ({host.scripts})" for host in HOSTS)
    raise UserError(
        f"{script} belongs to no known framework. Known: {known}. In any other evaluation loop one line is "
        f"enough: {RECIPE}"
    )


def version(host: Host, script: Path) -> str:
    """Return the host's git commit and the one that we tested.

    Note: a copy of the host inside another repository is untracked there, so that commit would not identify it.
    """
    git = ["git", "-C", str(script.parent)]
    commit = "not tracked by git"
    with suppress(OSError, subprocess.SubprocessError):
        for command in (["ls-files", "--error-unmatch", script.name], ["describe", "--always", "--dirty"]):
            done = subprocess.run([*git, *command], capture_output=True, text=True, check=True, timeout=10)
        commit = f"commit {done.stdout.strip()}"
    return f"{commit}; this package was tried with {host.tried}"


def _read(script: Path, file: str) -> str:
    """Return the text of a file beside ``script`` ('' = the script itself); empty if there is none."""
    path = script.parent / file if file else script
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
